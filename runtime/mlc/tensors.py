"""Tensors of other libraries as addresses: numpy, torch and whatever has `__dlpack__`, without a copy where it goes.

Imports numpy; torch is used only where the caller's program has imported it already.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

from mlc import native
from mlc.signature import DTYPES

_NUMPY_TO_DTYPE = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
    "float8_e4m3fn": "f8e4m3fn", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz", "float8_e8m0fnu": "f8e8m0fnu", "float4_e2m1fn": "f4e2m1fn",
    "int4": "i4", "uint4": "u4", "int2": "i2", "uint2": "u2",
}  # fmt: skip
# Types that numpy has of its own; the others are ml_dtypes', which is imported only where they occur.
_OF_NUMPY = frozenset(DTYPES[: DTYPES.index("bool") + 1]) - {"bf16"}
_DTYPE_TO_NUMPY = {dtype: name for name, dtype in _NUMPY_TO_DTYPE.items()}
assert set(_DTYPE_TO_NUMPY) == set(DTYPES)
# By dtype, native byte order only: numpy computes a dtype's name anew each time it is asked.
_NATIVE_DTYPES = {np.dtype(name): dtype for dtype, name in _DTYPE_TO_NUMPY.items() if dtype in _OF_NUMPY}


# To the C struct behind numpy's `__array_struct__`: 0.3 us, where `__array_interface__` takes 1.5.
struct_address: Any = ctypes.pythonapi.PyCapsule_GetPointer
struct_address.restype, struct_address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)


_LARGE_PAGE_BYTES = 1 << 21


class _Struct(ctypes.Structure):
    """mlc_array, which is the interface's PyArrayInterface."""

    _fields_ = (
        ("two", ctypes.c_int32), ("rank", ctypes.c_int32), ("kind", ctypes.c_char), ("item_bytes", ctypes.c_int32),
        ("flags", ctypes.c_int32), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p), ("descr", ctypes.c_void_p),
    )  # fmt: skip


class DataView(NamedTuple):
    """A dense tensor's memory. `owner` keeps it alive; `dtype` is mlc's name."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of mlc's name; those that numpy has not are ml_dtypes', imported only then."""
    if dtype in _OF_NUMPY:
        return np.dtype(_DTYPE_TO_NUMPY[dtype])
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, _DTYPE_TO_NUMPY[dtype]))


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], align_bytes: int) -> np.ndarray[Any, Any]:
    """An uninitialised array whose data is aligned."""
    size_bytes = dtype.itemsize
    for dim in shape:
        size_bytes *= dim
    block = np.empty(size_bytes + align_bytes, dtype=np.uint8)
    start = -address(block) % align_bytes
    return block[start : start + size_bytes].view(dtype).reshape(shape)


def large(size_bytes: int) -> np.ndarray[Any, Any]:
    """Uninitialised bytes on large pages, where the system has them: for what is read over and over."""
    block = empty((size_bytes,), np.dtype(np.uint8), _LARGE_PAGE_BYTES)
    native.library().mlc_large_pages(address(block), size_bytes)
    return block


def address(array: np.ndarray[Any, Any]) -> int:
    """Where an array's data is; array.ctypes.data takes twice as long."""
    struct = array.__array_struct__
    return _Struct.from_address(struct_address(struct, None)).data or 0


def is_same_memory(value: Any, seen: DataView) -> bool:
    """Whether `seen`, the view of `value`, is its own memory and not a copy."""
    if is_torch(value):
        return bool(value.data_ptr() == seen.address)
    return isinstance(value, np.ndarray) and seen.owner is value


def is_torch(value: Any) -> bool:
    """Whether it is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def view(value: Any, dtype: str, align_bytes: int) -> DataView:
    """`value` as dense memory. `dtype` is what Python numbers and lists become; tensors keep their own.

    Raises: TypeError for what is no tensor or is not in the CPU's memory.
    """
    if is_torch(value):
        return _view_torch(value, align_bytes)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
    elif isinstance(value, bool | int | float | list | tuple):
        array = np.asarray(value, dtype=numpy_dtype(dtype))
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(value)
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
    else:
        raise TypeError(f"a {type(value).__name__} is not a tensor: pass numpy arrays, torch tensors or __dlpack__")
    name = _NATIVE_DTYPES.get(array.dtype) or _NUMPY_TO_DTYPE.get(array.dtype.name)
    if name is None:
        raise TypeError(f"numpy dtype {array.dtype} has no counterpart in a model")
    at = address(array)
    if not (array.flags.c_contiguous and array.dtype.isnative and at % align_bytes == 0):
        dense = empty(array.shape, array.dtype.newbyteorder("="), align_bytes)
        dense[...] = array
        array = dense
        at = address(array)
    return DataView(at, array.shape, name, array)


def _from_dlpack(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        if hasattr(value, "__array__"):  # bf16, which numpy's dlpack does not know, or another device
            return np.asarray(value)
        raise TypeError(f"a {type(value).__name__} does not give its memory to the CPU: {error}") from error


def _view_torch(tensor: Any, align_bytes: int) -> DataView:
    if tensor.device.type != "cpu":
        raise TypeError(f"a torch tensor on {tensor.device}; the model runs on the CPU: pass tensor.cpu()")
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    name = _NUMPY_TO_DTYPE.get(str(tensor.dtype).removeprefix("torch."))
    if name is None:
        raise TypeError(f"{tensor.dtype} has no counterpart in a model")
    if tensor.data_ptr() % align_bytes:
        tensor = tensor.clone()
        if tensor.data_ptr() % align_bytes:
            raise TypeError(f"torch memory is not aligned to {align_bytes} bytes")
    return DataView(tensor.data_ptr(), tuple(tensor.shape), name, tensor)


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """The array as a torch tensor over the same memory."""
    torch = sys.modules["torch"]
    if _NUMPY_TO_DTYPE[array.dtype.name] in _OF_NUMPY:
        return torch.from_numpy(array)
    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8)).view(dtype)


def torch_memory(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor's memory as an array to write into."""
    tensor = tensor.detach()
    dtype = _NUMPY_TO_DTYPE[str(tensor.dtype).removeprefix("torch.")]
    if dtype not in _OF_NUMPY:
        torch = sys.modules["torch"]
        array: np.ndarray[Any, Any] = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
        return array.view(numpy_dtype(dtype))
    memory: np.ndarray[Any, Any] = tensor.numpy()
    return memory
