"""Runs compiled artifacts: `load` takes one, a `Model` is called like the function it was made from.

The C library allocates nothing; sessions, arenas, thread pools and outputs are numpy arrays owned here. Calls release
the GIL while the model runs; calls from several threads each take a session of their own.
May import numpy, never the compiler.
"""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlc import native, structure, tensors
from mlc.session import BAD_ARGUMENT, BAD_MODEL, BAD_STATE, MlcError, Session
from mlc.signature import DTYPES, Symbol, TensorInfo, dim_word

if TYPE_CHECKING:
    from mlc.state import States

__all__ = ["BoundCall", "KernelTime", "MlcError", "Model", "load"]
_VERIFY = {"all": 0, "header": 1}
_BLOB_ALIGN_BYTES = 64
_LARGE_FILE_BYTES = 1 << 27  # below, the weights mostly stay in caches or are few, and a fast start counts more


class KernelTime(NamedTuple):
    """A row of a profile: time summed over `launch_count` launches."""

    kernel_index: int
    name: str
    time_ns: int
    launch_count: int


def load(
    path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview,
    threads: int | None = None,
    verify: str = "all",
    large_pages: bool = True,
) -> Any:
    """Loads a compiled artifact: reads a path, or takes the file's bytes.

    Gives a `Model`, or of a file of several methods `Methods`, which has a model of each by name.

    `threads`: how many compute, None: all cores this process may use; results do not depend on it.
    `verify`: "all" checks every byte against its checksum, "header" all but the weights.
    `large_pages`: reads files of 128 MiB and more into memory of this process, on large pages where the system has
    them: weights stream up to a fifth faster. False maps the file: processes share one copy, and loading reads
    nothing that is not checked.
    Raises: MlcError for what is no artifact, is damaged or is for another CPU; OSError where the path cannot be read.
    """
    if verify not in _VERIFY:
        raise ValueError(f"verify is {verify!r}; choose 'all' or 'header'")
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model = Model(_bytes_of(path_or_bytes, large_pages), threads, _VERIFY[verify])
    names = model._method_names()
    if len(names) == 1:
        return model
    from mlc.methods import Methods

    first = Model(model._blob, threads, _VERIFY["header"], names[0], model)
    return Methods({names[0]: first, **{n: Model(model._blob, threads, 1, n, model) for n in names[1:]}}, model)


def _bytes_of(path_or_bytes: Any, large_pages: bool) -> np.ndarray[Any, Any]:
    """The file's bytes at an aligned address; bytes are copied only if they lie badly."""
    if isinstance(path_or_bytes, str | os.PathLike):
        with open(path_or_bytes, "rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes == 0:
                raise MlcError(BAD_MODEL, "not an mlc artifact: the file is empty")
            if large_pages and size_bytes >= _LARGE_FILE_BYTES:
                return _read(file, size_bytes)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    blob = np.frombuffer(path_or_bytes, dtype=np.uint8)
    if tensors.address(blob) % _BLOB_ALIGN_BYTES:
        aligned = tensors.empty(blob.shape, blob.dtype, _BLOB_ALIGN_BYTES)
        aligned[...] = blob
        return aligned
    return blob


def _read(file: Any, size_bytes: int) -> np.ndarray[Any, Any]:
    """The file in memory; a file that shrinks meanwhile is given as far as it goes, which the library refuses."""
    block = tensors.large(size_bytes)
    read_bytes = 0
    with memoryview(block) as view:  # type: ignore[arg-type]
        while read_bytes < size_bytes and (more := file.readinto(view[read_bytes:])):
            read_bytes += more
    return block[:read_bytes]


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
    states: tuple[TensorInfo, ...]
    symbols: tuple[Symbol, ...]
    threads: int
    target: str

    def __init__(
        self, blob: np.ndarray[Any, Any], threads: int, verify: int, method: str | None = None,
        shared: Model | None = None,
    ) -> None:  # fmt: skip
        """`method` of the file in `blob`, which has the threads and the states of `shared`, its first one."""
        self._library = native.library()
        self._method = method
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
        self._pool: int | None = None if shared is None else shared._pool
        if self.threads > 1 and shared is None:
            self._pool = self._start_pool(keep_alive)
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, _release, self._library, self._pool, self._handle, keep_alive)
        self._idle_sessions: list[Session] = []
        # Runs of a model with states follow one another, on the states' one memory.
        self._turn = _thread.allocate_lock() if self.states else None
        self._state_memory = tensors.empty((self._need.state_bytes,), np.dtype(np.uint8), _BLOB_ALIGN_BYTES)
        if shared is not None:
            self._turn, self._state_memory = shared._turn, shared._state_memory
        elif self.states:
            self.reset()

    def _method_names(self) -> list[str]:
        library, handle = self._library, self._handle
        count = library.mlc_model_method_count(handle)
        return [library.mlc_model_method_name(handle, index).decode() for index in range(count)]

    def reset(self) -> None:
        """Makes the states what they were before the first run. A model without states has none to reset."""
        if not self.states:
            return
        session = self._idle_sessions[-1] if self._idle_sessions else Session(self)
        session.check(self._library.mlc_session_reset(session.handle))
        self._idle_sessions = self._idle_sessions or [session]

    @cached_property
    def state(self) -> States:
        """The states by name, as arrays to read and to write between runs."""
        from mlc.state import States

        return States(self, self._idle_sessions[-1] if self._idle_sessions else Session(self))

    def _view(self, verify: int) -> int:
        detail = ctypes.create_string_buffer(512)
        options = native.sized(native.ViewOptions)
        options.verify = verify
        options.method = None if self._method is None else self._method.encode()
        options.detail = ctypes.cast(detail, ctypes.POINTER(ctypes.c_char))
        options.detail_bytes = len(detail)
        handle = c_void_p()
        address, size_bytes = tensors.address(self._blob), self._blob.nbytes
        status = self._library.mlc_model_view(address, size_bytes, byref(options), byref(self._storage), byref(handle))
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
            dims = tuple(dim_word(dim, symbols) for dim in row.dims[: row.rank])
            return TensorInfo(row.name.decode(), DTYPES[row.dtype], dims)

        self.symbols = tuple(symbols)
        input_count, output_count = library.mlc_model_input_count(handle), library.mlc_model_output_count(handle)
        self.inputs = tuple(tensor(library.mlc_model_input, index) for index in range(input_count))
        self.outputs = tuple(tensor(library.mlc_model_output, index) for index in range(output_count))
        state_count = library.mlc_model_state_count(handle)
        self.states = tuple(tensor(library.mlc_model_state, index) for index in range(state_count))
        self.target = library.mlc_model_target_name(handle).decode()

    @cached_property
    def info(self) -> dict[str, Any]:
        """The artifact's INFO section: kernels, trees, report. Parsed on first use."""
        from mlc.info import unpack_info

        section = self._info_section()
        info = unpack_info(section) if section else {}
        own: dict[str, Any] = info["methods"].get(self._method, {}) if "methods" in info else info
        return own

    def _info_section(self) -> bytes:
        size = c_uint64()
        address = self._library.mlc_model_info(self._handle, byref(size))
        return ctypes.string_at(address, size.value) if address else b""

    @cached_property
    def _trees(self) -> dict[str, Any]:
        from mlc.info import plain_info  # imports json, which a process that only loads need not pay for

        if self._method is not None:
            return self.info
        section = self._info_section()
        return plain_info(section) if section else {}

    @cached_property
    def _input_tree(self) -> structure.Tree:
        tree: structure.Tree = self._trees.get("input_tree") or structure.flat_tree([row.name for row in self.inputs])
        if structure.leaf_count(tree) != len(self.inputs):
            raise MlcError(BAD_MODEL, "the artifact's input_tree has another number of tensors than the model")
        return tree

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the arguments are the tensors, one by one."""
        return all(item["kind"] == "leaf" for item in self._input_tree["items"])

    @cached_property
    def _pack(self) -> Callable[[list[Any]], Any]:
        """From results to the model's structure of them."""
        tree = self._output_tree
        if tree == {"kind": "leaf"}:
            return itemgetter(0)
        if tree["kind"] == "tuple" and all(item == {"kind": "leaf"} for item in tree["items"]):
            return tuple
        return partial(structure.unflatten, tree)

    @cached_property
    def _output_tree(self) -> structure.Tree:
        tree: structure.Tree | None = self._trees.get("output_tree")
        if tree is None:
            leaves = [{"kind": "leaf"} for _ in self.outputs]
            tree = leaves[0] if len(leaves) == 1 else {"kind": "tuple", "items": leaves}
        return tree

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Runs the model on numpy arrays, torch tensors or anything with `__dlpack__`, by position or by name.

        `out`: arrays to write into, in the model's output structure or as a flat sequence; they are what is returned.
        Where data decide a size ("*" in `outputs`), they have room for the most, and the parts that came are returned.
        Gives numpy arrays, or torch tensors where an argument is one. Raises: MlcError.
        """
        if out is None and not kwargs and self._is_plain and len(args) == len(self.inputs):
            results = self._run_arrays(args)
            if results is not None:
                return self._pack(results)
        leaves = self._bind(args, kwargs)
        results = self.run_flat(leaves, None if out is None else self._flatten_out(out))
        if out is not None and not any("*" in row.dims for row in self.outputs):
            return out
        if any(tensors.is_torch(leaf) for leaf in leaves):
            results = [tensors.to_torch(array) for array in results]
        return self._pack(results)

    def bind(self, *args: Any, out: Any = None, **kwargs: Any) -> BoundCall:
        """A call with its arguments and results fixed: `call()` reads the arguments' memory as it then is.

        `out` as in a call; without it results are allocated now, once. For models that run many times on arrays whose
        contents change in place: such a call costs half a microsecond. Raises: MlcError, also for an argument whose
        memory cannot be used as it is.
        """
        leaves = self._bind(args, kwargs)
        session = Session(self)
        results = session.bind(leaves, None if out is None else self._flatten_out(out))
        if out is None and any(tensors.is_torch(leaf) for leaf in leaves):
            results = [tensors.to_torch(array) for array in results]
        return BoundCall(self, session, leaves, self._pack(results) if out is None else out)

    def _run_arrays(self, args: Sequence[Any]) -> list[Any] | None:
        """Results of numpy arrays that are as the last call's were; None: take the long way."""
        if self._turn is None:
            return self._run_arrays_now(args)
        with self._turn:
            return self._run_arrays_now(args)

    def _run_arrays_now(self, args: Sequence[Any]) -> list[Any] | None:
        try:
            session = self._idle_sessions.pop()
        except IndexError:
            return None
        try:
            return session.run_arrays(args)
        finally:
            self._idle_sessions.append(session)

    def run_flat(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Runs on one array an input, in the order of `inputs`; gives numpy arrays in the order of `outputs`."""
        if self._turn is None:
            return self._run_now(leaves, out)
        with self._turn:
            return self._run_now(leaves, out)

    def _run_now(self, leaves: Sequence[Any], out: Sequence[Any] | None) -> list[Any]:
        session = self._idle_sessions.pop() if self._idle_sessions else Session(self)
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
        session = Session(self)
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

        kept = f"; states {words(self.states)}" if self.states else ""
        signature = f"{words(self.inputs)} -> {words(self.outputs)}{kept}"
        return f"mlc.Model({signature}; {self.target}, threads={self.threads})"

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


class BoundCall:
    """What `Model.bind` gives: call it to compute into `result` from the arguments' memory. One call at a time."""

    def __init__(self, model: Model, session: Session, leaves: Sequence[Any], result: Any) -> None:
        self.result = result
        self._model, self._session, self._leaves = model, session, leaves

    def __call__(self) -> Any:
        """Runs, and gives `result`, the same object each time. Raises: MlcError."""
        if not self._model._handle:
            raise MlcError(BAD_STATE, "the model is closed")
        self._session.run_bound()
        return self.result
