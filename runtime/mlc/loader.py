"""Runs compiled artifacts: `load` maps one, a `Model` is called like the function it was made from.

The C library allocates nothing; sessions, arenas, thread pools and outputs are numpy arrays owned here. Calls release
the GIL while the model runs; calls from several threads each take a session of their own.
May import numpy, never the compiler.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlc import native, structure, tensors
from mlc.artifact import COMPUTED_DIM, DTYPES, Symbol, TensorInfo

BAD_ARGUMENT, BAD_TYPE, BAD_SHAPE, BAD_STATE, BAD_MODEL = 0x10, 0x11, 0x12, 0x13, 0x20
INDEX_BOUNDS = 0x51
_VERIFY = {"all": 0, "header": 1}
_BLOB_ALIGN_BYTES = 64
_LINE_BYTES, _LARGE_BYTES = 64, 1 << 20


class MlcError(RuntimeError):
    """What the runtime refused: `status` (mlc_status), its `name` ("BAD_SHAPE") and one sentence, `message`."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.name = native.library().mlc_status_name(status).decode()
        self.message = message or native.library().mlc_status_text(status).decode()
        super().__init__(status, message)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True)
class KernelTime:
    """A row of a profile: time summed over `launch_count` launches."""

    kernel_index: int
    name: str
    time_ns: int
    launch_count: int


def load(
    path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview,
    threads: int | None = None,
    verify: str = "all",
) -> Model:
    """Loads a compiled artifact: maps a path, or takes the file's bytes.

    `threads`: how many compute, None: all cores this process may use; results do not depend on it.
    `verify`: "all" checks every byte against its checksum, "header" all but the weights.
    Raises: MlcError for what is no artifact, is damaged or is for another CPU; OSError where the path cannot be read.
    """
    if verify not in _VERIFY:
        raise ValueError(f"verify is {verify!r}; choose 'all' or 'header'")
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Model(_map(path_or_bytes), threads, _VERIFY[verify])


def _map(path_or_bytes: Any) -> np.ndarray[Any, Any]:
    """The file's bytes at an aligned address; a path is mapped, bytes are copied only if they lie badly."""
    if isinstance(path_or_bytes, str | os.PathLike):
        with open(path_or_bytes, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise MlcError(BAD_MODEL, "not an mlc artifact: the file is empty")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    blob = np.frombuffer(path_or_bytes, dtype=np.uint8)
    if tensors.address(blob) % _BLOB_ALIGN_BYTES:
        aligned = tensors.empty(blob.shape, blob.dtype, _BLOB_ALIGN_BYTES)
        aligned[...] = blob
        return aligned
    return blob


def _release(library: Any, pool: int | None, model: int | None, keep_alive: list[Any]) -> None:
    """Ends threads and unmaps code; `keep_alive` holds the memory that both live in until now."""
    if pool:
        library.mlc_pool_close(pool)
    if model:
        library.mlc_model_close(model)
    keep_alive.clear()


class Model:
    """A loaded artifact. Call it with the model's own arguments; it gives the model's own output structure."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    symbols: tuple[Symbol, ...]
    threads: int
    target: str

    def __init__(self, blob: np.ndarray[Any, Any], threads: int, verify: int) -> None:
        self._library = native.library()
        if threads < 1:
            raise MlcError(BAD_ARGUMENT, f"threads is {threads}; it takes at least 1")
        self._blob = blob
        self._storage = native.ModelStorage()
        self._handle = self._view(verify)
        keep_alive: list[Any] = [blob, self._storage]
        self._finalizer = weakref.finalize(self, _release, self._library, None, self._handle, keep_alive)
        self._need = native.sized(native.Need)
        self._check(self._library.mlc_model_need(self._handle, byref(self._need)), "need")
        self._describe()
        self.threads = min(threads, 256)
        self._pool: int | None = None
        if self.threads > 1:
            self._pool = self._start_pool(keep_alive)
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, _release, self._library, self._pool, self._handle, keep_alive)
        self._idle_sessions: list[_Session] = []

    def _view(self, verify: int) -> int:
        detail = ctypes.create_string_buffer(512)
        options = native.sized(native.ViewOptions)
        options.verify = verify
        options.detail = ctypes.cast(detail, ctypes.POINTER(ctypes.c_char))
        options.detail_bytes = len(detail)
        handle = c_void_p()
        address, size_bytes = tensors.address(self._blob), self._blob.nbytes
        status = self._library.mlc_model_view(
            address, size_bytes, byref(options), byref(self._storage), byref(handle)
        )
        if status:
            raise MlcError(status, detail.value.decode(errors="replace"))
        assert handle.value is not None
        return handle.value

    def _start_pool(self, keep_alive: list[Any]) -> int:
        block = tensors.empty((self._library.mlc_pool_need(self.threads),), np.dtype(np.uint8), 64)
        handle = c_void_p()
        status = self._library.mlc_pool_init(tensors.address(block), block.nbytes, self.threads, byref(handle))
        self._check(status, f"the system starts no {self.threads} threads")
        assert handle.value is not None
        keep_alive.append(block)
        return handle.value

    def _check(self, status: int, message: str) -> None:
        if status:
            raise MlcError(status, message)

    def _describe(self) -> None:
        library, handle = self._library, self._handle
        symbols = []
        for index in range(library.mlc_model_symbol_count(handle)):
            row = native.sized(native.SymbolInfo)
            self._check(library.mlc_model_symbol(handle, index, byref(row)), "symbol")
            symbols.append(Symbol(row.name.decode(), row.min, row.max))

        def tensor(query: Callable[..., int], index: int) -> TensorInfo:
            row = native.sized(native.TensorInfo)
            self._check(query(handle, index, byref(row)), "tensor")
            dims = [
                None if dim == COMPUTED_DIM else dim if dim >= 0 else symbols[-1 - dim].name
                for dim in row.dims[: row.rank]
            ]
            return TensorInfo(row.name.decode(), DTYPES[row.dtype], tuple(dims))

        self.symbols = tuple(symbols)
        input_count, output_count = library.mlc_model_input_count(handle), library.mlc_model_output_count(handle)
        self.inputs = tuple(tensor(library.mlc_model_input, index) for index in range(input_count))
        self.outputs = tuple(tensor(library.mlc_model_output, index) for index in range(output_count))
        self.target = library.mlc_model_target_name(handle).decode()

    @cached_property
    def info(self) -> dict[str, Any]:
        """The artifact's INFO section: kernels, trees, report. Parsed on first use."""
        size = c_uint64()
        address = self._library.mlc_model_info(self._handle, byref(size))
        if not address:
            return {}
        value: dict[str, Any] = json.loads(ctypes.string_at(address, size.value).rstrip(b"\0"))
        return value

    @cached_property
    def _input_tree(self) -> structure.Tree:
        tree: structure.Tree = self.info.get("input_tree") or structure.flat_tree([row.name for row in self.inputs])
        if structure.leaf_count(tree) != len(self.inputs):
            raise MlcError(BAD_MODEL, "the artifact's input_tree has another number of tensors than the model")
        return tree

    @cached_property
    def _output_tree(self) -> structure.Tree:
        tree: structure.Tree | None = self.info.get("output_tree")
        if tree is None:
            leaves = [{"kind": "leaf"} for _ in self.outputs]
            tree = leaves[0] if len(leaves) == 1 else {"kind": "tuple", "items": leaves}
        return tree

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Runs the model on numpy arrays, torch tensors or anything with `__dlpack__`, by position or by name.

        `out`: arrays to write into, in the model's output structure or as a flat sequence; they are what is returned.
        Gives numpy arrays, or torch tensors where an argument is one. Raises: MlcError.
        """
        leaves = self._bind(args, kwargs)
        results = self.run_flat(leaves, None if out is None else self._flatten_out(out))
        if out is not None:
            return out
        if any(tensors.is_torch(leaf) for leaf in leaves):
            results = [tensors.to_torch(array) for array in results]
        return structure.unflatten(self._output_tree, results)

    def run_flat(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Runs on one array an input, in the order of `inputs`; gives numpy arrays in the order of `outputs`."""
        session = self._idle_sessions.pop() if self._idle_sessions else _Session(self)
        try:
            return session.run(leaves, out)
        finally:
            self._idle_sessions.append(session)

    @property
    def arena_bytes(self) -> int:
        """Arena of the sessions made so far, for the largest shapes they saw; planned activations live there."""
        return sum(session.arena_bytes for session in self._idle_sessions)

    def profile(self, *args: Any, **kwargs: Any) -> list[KernelTime]:
        """Runs once and gives the time of each kernel, most first."""
        return self.profile_flat(self._bind(args, kwargs))

    def profile_flat(self, leaves: Sequence[Any]) -> list[KernelTime]:
        """`profile` on one array an input, in the order of `inputs`."""
        count = self._library.mlc_model_kernel_count(self._handle)
        rows = (native.ProfileRow * max(count, 1))()
        session = _Session(self)
        session.check(self._library.mlc_session_profile(session.handle, ctypes.addressof(rows), len(rows)))
        session.run(leaves, None)
        times = [KernelTime(at, self._kernel_name(at), rows[at].time_ns, rows[at].launch_count) for at in range(count)]
        return sorted(times, key=lambda row: -row.time_ns)

    def close(self) -> None:
        """Ends the threads and unmaps the code now; later calls fail. No call may be under way."""
        self._idle_sessions.clear()
        self._handle = 0
        self._finalizer()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        def words(rows: Sequence[TensorInfo]) -> str:
            shapes = (f"{row.name}: {row.dtype}[{', '.join(map(str, row.dims))}]" for row in rows)
            return ", ".join(shapes).replace("None", "?")

        return f"mlc.Model({words(self.inputs)} -> {words(self.outputs)}; {self.target}, threads={self.threads})"

    def _kernel_name(self, kernel_index: int) -> str:
        kernels = self.info.get("kernels", ())
        row = kernels[kernel_index] if kernel_index < len(kernels) else {}
        return str(row.get("name", f"kernel {kernel_index}") if isinstance(row, Mapping) else row)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Leaves of a call's arguments in the order of `inputs`."""
        if not self._handle:
            raise MlcError(BAD_STATE, "the model is closed")
        tree = self._input_tree
        keys, items = tree["keys"], tree["items"]
        if len(args) > len(keys):
            raise MlcError(BAD_ARGUMENT, f"{len(args)} arguments; the model takes {', '.join(keys) or 'none'}")
        values = dict(zip(keys, args, strict=False))
        for name, value in kwargs.items():
            if name not in keys:
                raise MlcError(BAD_ARGUMENT, f"the model has no input {name!r}; it takes {', '.join(keys) or 'none'}")
            if name in values:
                raise MlcError(BAD_ARGUMENT, f"input {name!r} is given twice, by position and by name")
            values[name] = value
        leaves: list[Any] = []
        try:
            for key, item in zip(keys, items, strict=True):
                if key not in values and structure.leaf_count(item):
                    raise MlcError(BAD_STATE, f"input {key!r} is missing")
                leaves += structure.flatten(item, values[key], f"input {key!r}") if key in values else []
        except structure.StructureError as error:
            raise MlcError(BAD_ARGUMENT, str(error)) from None
        return leaves

    def _flatten_out(self, out: Any) -> list[Any]:
        is_flat = isinstance(out, list | tuple) and len(out) == len(self.outputs)
        if is_flat and all(not isinstance(leaf, list | tuple | Mapping) for leaf in out):
            return list(out)
        try:
            return structure.flatten(self._output_tree, out, "out")
        except structure.StructureError as error:
            raise MlcError(BAD_ARGUMENT, str(error)) from None


class _Session:
    """One C session with its arena, used by one call at a time. Plans only for other shapes than the last call's."""

    def __init__(self, model: Model) -> None:
        self._library = model._library
        self._inputs, self._outputs = model.inputs, model.outputs
        self._io_align_bytes = model._need.io_align_bytes
        self._arena_align_bytes = model._need.arena_align_bytes
        self._kernel_words = weakref.WeakMethod(model._kernel_name)
        self._block = tensors.empty((model._need.session_bytes,), np.dtype(np.uint8), model._need.session_align_bytes)
        handle = c_void_p()
        status = self._library.mlc_session_init(
            model._handle, tensors.address(self._block), self._block.nbytes, byref(handle)
        )
        if status:
            raise MlcError(status, "")
        self.handle = handle.value
        if model._pool:
            self.check(self._library.mlc_session_use_pool(self.handle, model._pool))
        self._shapes: list[tuple[int, ...]] | None = None
        self._output_shapes: list[tuple[int, ...]] = []
        self._output_dtypes = [tensors.numpy_dtype(row.dtype) for row in self._outputs]
        self._arena = np.empty(0, dtype=np.uint8)
        self._input_addresses = (c_void_p * max(len(self._inputs), 1))()
        self._output_addresses = (c_void_p * max(len(self._outputs), 1))()

    @property
    def arena_bytes(self) -> int:
        return int(self._arena.nbytes)

    def check(self, status: int) -> None:
        """Raises the session's failure."""
        if not status:
            return
        detail = self._library.mlc_session_detail(self.handle).decode(errors="replace")
        found = re.match(r"kernel (\d+)", detail) if status == INDEX_BOUNDS else None
        name_of = self._kernel_words()
        if found and name_of:
            detail = f"{name_of(int(found[1]))}{detail[found.end() :]}"
        raise MlcError(status, detail)

    def run(self, leaves: Sequence[Any], out: Sequence[Any] | None) -> list[np.ndarray[Any, Any]]:
        """Runs on the leaves; into `out` where given."""
        views = [self._view(row, leaf) for row, leaf in zip(self._inputs, leaves, strict=True)]
        shapes = [view.shape for view in views]
        if shapes != self._shapes:
            self._plan(views)
            self._shapes = shapes
        for index, view in enumerate(views):
            self._input_addresses[index] = view.address
        copies: list[tuple[Any, np.ndarray[Any, Any]]] = []
        results = self._allocate() if out is None else self._take_out(out, copies)
        self.check(
            self._library.mlc_session_rebind(
                self.handle, ctypes.addressof(self._input_addresses), ctypes.addressof(self._output_addresses)
            )
        )
        self.check(self._library.mlc_session_run(self.handle))
        for target, array in copies:
            target[...] = array
        return results

    def _view(self, row: TensorInfo, leaf: Any) -> tensors.DataView:
        try:
            view = tensors.view(leaf, row.dtype, self._io_align_bytes)
        except TypeError as error:
            raise MlcError(BAD_TYPE, f"input '{row.name}': {error}") from None
        if view.dtype != row.dtype:
            raise MlcError(BAD_TYPE, f"input '{row.name}' has type {view.dtype}; the model takes {row.dtype}")
        if len(view.shape) > native.RANK_MAX:
            raise MlcError(BAD_SHAPE, f"input '{row.name}' has {len(view.shape)} dims; the model takes {len(row.dims)}")
        return view

    def _plan(self, views: Sequence[tensors.DataView]) -> None:
        self._shapes = None
        for index, view in enumerate(views):
            tensor = native.sized(native.Tensor)
            tensor.dtype = DTYPES.index(view.dtype)
            tensor.rank = len(view.shape)
            tensor.data = view.address
            tensor.size_bytes = 2**63 - 1  # numpy and torch vouch for the shape
            tensor.shape[: len(view.shape)] = view.shape
            self.check(self._library.mlc_session_bind_input(self.handle, index, byref(tensor)))
        arena_bytes = c_uint64()
        self.check(self._library.mlc_session_plan(self.handle, byref(arena_bytes)))
        if arena_bytes.value > self._arena.nbytes:
            self._arena = np.empty(0, dtype=np.uint8)  # before the larger one comes, not after
            self._arena = tensors.empty((arena_bytes.value,), np.dtype(np.uint8), self._arena_align_bytes)
            address, size_bytes = tensors.address(self._arena), self._arena.nbytes
            self.check(self._library.mlc_session_bind_arena(self.handle, address, size_bytes))
        self._output_shapes = []
        for index in range(len(self._outputs)):
            tensor = native.sized(native.Tensor)
            self.check(self._library.mlc_session_output_shape(self.handle, index, byref(tensor)))
            self._output_shapes.append(tuple(tensor.shape[: tensor.rank]))

    def _allocate(self) -> list[np.ndarray[Any, Any]]:
        results = []
        for index, (shape, dtype) in enumerate(zip(self._output_shapes, self._output_dtypes, strict=True)):
            array = np.empty(shape, dtype)
            address = tensors.address(array)
            # Large results are written past the caches where they begin with a line, which numpy's own never do.
            align_bytes = _LINE_BYTES if array.nbytes >= _LARGE_BYTES else self._io_align_bytes
            if address % align_bytes:
                array = tensors.empty(shape, dtype, align_bytes)
                address = tensors.address(array)
            self._output_addresses[index] = address
            results.append(array)
        return results

    def _take_out(
        self, out: Sequence[Any], copies: list[tuple[Any, np.ndarray[Any, Any]]]
    ) -> list[np.ndarray[Any, Any]]:
        """Arrays to compute into: the caller's where their layout allows, else others that are copied afterwards."""
        results: list[np.ndarray[Any, Any]] = []
        rows = zip(self._outputs, self._output_shapes, self._output_dtypes, strict=True)
        for leaf, (row, shape, dtype) in zip(out, rows, strict=True):
            array = self._out_array(row, leaf)
            if tuple(array.shape) != shape or array.dtype != dtype:
                message = f"out '{row.name}' is {array.dtype}{list(array.shape)}; the model gives {dtype}{list(shape)}"
                raise MlcError(BAD_SHAPE, message)
            address = tensors.address(array)
            if not array.flags.c_contiguous or address % self._io_align_bytes:
                dense = tensors.empty(shape, dtype, self._io_align_bytes)
                copies.append((array, dense))
                array, address = dense, tensors.address(dense)
            self._output_addresses[len(results)] = address
            results.append(array)
        return results

    def _out_array(self, row: TensorInfo, leaf: Any) -> np.ndarray[Any, Any]:
        if tensors.is_torch(leaf):
            leaf = tensors.torch_memory(leaf)
        if not isinstance(leaf, np.ndarray) or not leaf.flags.writeable:
            raise MlcError(BAD_ARGUMENT, f"out '{row.name}' is not a writable numpy array or torch tensor")
        return leaf
