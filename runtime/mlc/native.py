"""The C library libmlc_rt through ctypes: structures, functions, and no policy.

Imports ctypes only; numpy comes with the callers. `MLC_LIBRARY` names a library to load in place of the package's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

RANK_MAX = 16
ABI_MAJOR = 1
DIM_COMPUTED = -(2**63)


class TensorInfo(ctypes.Structure):
    """mlc_tensor_info."""

    _fields_ = (
        ("struct_size", c_uint32), ("dtype", c_uint32), ("rank", c_uint32), ("reserved", c_uint32),
        ("name", c_char_p), ("dims", c_int64 * RANK_MAX),
    )  # fmt: skip


class SymbolInfo(ctypes.Structure):
    """mlc_symbol_info."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("name", c_char_p), ("min", c_int64), ("max", c_int64),
    )  # fmt: skip


class Tensor(ctypes.Structure):
    """mlc_tensor."""

    _fields_ = (
        ("struct_size", c_uint32), ("dtype", c_uint32), ("rank", c_uint32), ("reserved", c_uint32),
        ("data", c_void_p), ("size_bytes", c_uint64), ("shape", c_int64 * RANK_MAX),
    )  # fmt: skip


class Cpu(ctypes.Structure):
    """mlc_cpu."""

    _fields_ = (
        ("struct_size", c_uint32), ("arch", c_uint32), ("features", c_uint64), ("sve_bits", c_uint32),
        ("reserved", c_uint32),
    )  # fmt: skip


class ViewOptions(ctypes.Structure):
    """mlc_view_options."""

    _fields_ = (
        ("struct_size", c_uint32), ("verify", c_uint32), ("cpu", POINTER(Cpu)), ("detail", POINTER(c_char)),
        ("detail_bytes", c_uint32), ("reserved", c_uint32), ("method", c_char_p),
    )  # fmt: skip


class Need(ctypes.Structure):
    """mlc_need."""

    _fields_ = (
        ("struct_size", c_uint32), ("session_align_bytes", c_uint32), ("session_bytes", c_uint64),
        ("arena_align_bytes", c_uint32), ("io_align_bytes", c_uint32), ("arena_bytes_max", c_uint64),
        ("state_bytes", c_uint64),
    )  # fmt: skip


class ModelStorage(ctypes.Structure):
    """mlc_model_storage."""

    _fields_ = (("opaque", c_uint64 * 64),)


class ProfileRow(ctypes.Structure):
    """mlc_profile_row."""

    _fields_ = (("time_ns", c_uint64), ("launch_count", c_uint64))


class ChecksumState(ctypes.Structure):
    """mlc_checksum_state."""

    _fields_ = (("lanes", c_uint64 * 4), ("total_bytes", c_uint64), ("tail", c_char * 32))


# Name: (result, parameters). Handles and data are plain addresses.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mlc_abi_version": (c_uint32, ()),
    "mlc_status_text": (c_char_p, (c_int32,)),
    "mlc_status_name": (c_char_p, (c_int32,)),
    "mlc_dtype_name": (c_char_p, (c_uint32,)),
    "mlc_dtype_bytes": (c_uint32, (c_uint32,)),
    "mlc_cpu_query": (c_int32, (POINTER(Cpu),)),
    "mlc_feature_name": (c_char_p, (c_uint32, c_uint32)),
    "mlc_checksum": (c_uint64, (c_void_p, c_uint64)),
    "mlc_checksum_begin": (None, (POINTER(ChecksumState),)),
    "mlc_checksum_update": (None, (POINTER(ChecksumState), c_void_p, c_uint64)),
    "mlc_checksum_end": (c_uint64, (POINTER(ChecksumState),)),
    "mlc_model_view": (
        c_int32, (c_void_p, c_uint64, POINTER(ViewOptions), POINTER(ModelStorage), POINTER(c_void_p)),
    ),
    "mlc_model_close": (None, (c_void_p,)),
    "mlc_model_need": (c_int32, (c_void_p, POINTER(Need))),
    "mlc_model_method_count": (c_uint32, (c_void_p,)),
    "mlc_model_method_name": (c_char_p, (c_void_p, c_uint32)),
    "mlc_model_input_count": (c_uint32, (c_void_p,)),
    "mlc_model_output_count": (c_uint32, (c_void_p,)),
    "mlc_model_state_count": (c_uint32, (c_void_p,)),
    "mlc_model_symbol_count": (c_uint32, (c_void_p,)),
    "mlc_model_kernel_count": (c_uint32, (c_void_p,)),
    "mlc_model_target_index": (c_uint32, (c_void_p,)),
    "mlc_model_target_name": (c_char_p, (c_void_p,)),
    "mlc_model_input": (c_int32, (c_void_p, c_uint32, POINTER(TensorInfo))),
    "mlc_model_output": (c_int32, (c_void_p, c_uint32, POINTER(TensorInfo))),
    "mlc_model_state": (c_int32, (c_void_p, c_uint32, POINTER(TensorInfo))),
    "mlc_model_symbol": (c_int32, (c_void_p, c_uint32, POINTER(SymbolInfo))),
    "mlc_model_info": (c_void_p, (c_void_p, POINTER(c_uint64))),
    "mlc_large_pages": (None, (c_void_p, c_uint64)),
    "mlc_pool_need": (c_uint64, (c_uint32,)),
    "mlc_pool_init": (c_int32, (c_void_p, c_uint64, c_uint32, POINTER(c_void_p))),
    "mlc_pool_close": (None, (c_void_p,)),
    "mlc_session_init": (c_int32, (c_void_p, c_void_p, c_uint64, POINTER(c_void_p))),
    "mlc_session_use_pool": (c_int32, (c_void_p, c_void_p)),
    "mlc_session_bind_input": (c_int32, (c_void_p, c_uint32, POINTER(Tensor))),
    "mlc_session_plan": (c_int32, (c_void_p, POINTER(c_uint64))),
    "mlc_session_output_shape": (c_int32, (c_void_p, c_uint32, POINTER(Tensor))),
    "mlc_session_symbol": (c_int32, (c_void_p, c_uint32, POINTER(c_int64))),
    "mlc_session_bind_arena": (c_int32, (c_void_p, c_void_p, c_uint64)),
    "mlc_session_bind_state": (c_int32, (c_void_p, c_void_p, c_uint64)),
    "mlc_session_reset": (c_int32, (c_void_p,)),
    "mlc_session_state": (c_int32, (c_void_p, c_uint32, POINTER(Tensor))),
    "mlc_session_rebind": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "mlc_session_run": (c_int32, (c_void_p,)),
    "mlc_session_detail": (c_char_p, (c_void_p,)),
    "mlc_session_profile": (c_int32, (c_void_p, c_void_p, c_uint32)),
}  # fmt: skip


def sized(structure: type[ctypes.Structure]) -> Any:
    """A zeroed structure with struct_size set."""
    value = structure()
    value.struct_size = ctypes.sizeof(structure)  # type: ignore[attr-defined]
    return value


def _library_paths() -> list[str]:
    if os.environ.get("MLC_LIBRARY"):
        return [os.environ["MLC_LIBRARY"]]
    if sys.platform == "win32":
        name = "libmlc_rt_shared.dll"
    else:
        name = "libmlc_rt.dylib" if sys.platform == "darwin" else "libmlc_rt.so"
    here = os.path.dirname(os.path.abspath(__file__))
    # In an editable install the modules stay in the source tree and the built library goes to site-packages.
    installed = [os.path.join(entry, "mlc") for entry in sys.path if entry]
    return [os.path.join(folder, name) for folder in (here, *installed)]


@cache
def library() -> Any:
    """The loaded library. Raises: ImportError where it is not there or of another ABI major."""
    paths = _library_paths()
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        raise ImportError(f"mlc's runtime library is missing; looked for {paths[0]} and in sys.path: reinstall mlc")
    loaded: Any = ctypes.CDLL(path)
    for name, (result, parameters) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, parameters
    # Called with the interpreter's lock held, as it calls the interpreter back.
    loaded.open_arrays = ctypes.PyDLL(None, handle=loaded._handle).mlc_arrays_open
    loaded.open_arrays.restype = None
    loaded.run_arrays = loaded.mlc_session_run_arrays  # no argtypes: called with ctypes objects, prepared once
    version = loaded.mlc_abi_version()
    if version >> 16 != ABI_MAJOR:
        raise ImportError(f"{path} has ABI {version >> 16}; this package needs {ABI_MAJOR}")
    return loaded


def _address(view: memoryview) -> tuple[Any, int]:
    """An owner of the buffer's address and the address; works for read-only buffers, which ctypes refuses."""
    import numpy as np

    array = np.frombuffer(view, dtype=np.uint8)
    return array, array.ctypes.data


def checksum(data: Any) -> int:
    """XXH64 of a buffer's bytes."""
    state = Checksum()
    state.update(data)
    return state.value()


class Checksum:
    """XXH64 of bytes given in pieces."""

    def __init__(self) -> None:
        self._state = ChecksumState()
        library().mlc_checksum_begin(byref(self._state))

    def update(self, data: Any) -> None:
        """Takes the bytes of a C-contiguous buffer."""
        view = memoryview(data)
        if view.nbytes:
            owner, address = _address(view.cast("B"))
            library().mlc_checksum_update(byref(self._state), address, view.nbytes)
            del owner

    def value(self) -> int:
        """The checksum so far."""
        return int(library().mlc_checksum_end(byref(self._state)))


@cache
def feature_names(arch: int) -> tuple[str, ...]:
    """CPU features of an arch code that an artifact can ask for; the index is the file's bit."""
    names: list[str] = []
    while (name := library().mlc_feature_name(arch, len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def query_cpu() -> Any:
    """This machine's mlc_cpu."""
    cpu = sized(Cpu)
    library().mlc_cpu_query(byref(cpu))
    return cpu
