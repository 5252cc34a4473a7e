"""One C session with its arena: plans, takes arrays, runs. What `loader.Model` keeps for every call under way.

May import numpy, never the compiler.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc import native, tensors
from mlc.signature import DTYPES, TensorInfo

if TYPE_CHECKING:
    from mlc.loader import Model

BAD_ARGUMENT, BAD_TYPE, BAD_SHAPE, BAD_STATE, BAD_MODEL = 0x10, 0x11, 0x12, 0x13, 0x20
INDEX_BOUNDS = 0x51
_LINE_BYTES, _LARGE_BYTES = 64, 1 << 20
_LARGE_ARENA_BYTES = 1 << 22
_struct_of = attrgetter("__array_struct__")
_IN_PLACE = "bind takes dense arrays of the model's types, or torch tensors"


class MlcError(RuntimeError):
    """What the runtime refused: `status` (mlc_status), its `name` ("BAD_SHAPE") and one sentence, `message`."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.name = native.library().mlc_status_name(status).decode()
        self.message = message or native.library().mlc_status_text(status).decode()
        super().__init__(status, message)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class Session:
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
        assert handle.value is not None
        self.handle = handle.value
        if model.states:
            memory = model._state_memory
            self.check(self._library.mlc_session_bind_state(self.handle, tensors.address(memory), memory.nbytes))
        if model._pool:
            self.check(self._library.mlc_session_use_pool(self.handle, model._pool))
        self._of_data = [index for index, row in enumerate(self._outputs) if "*" in row.dims]
        self._shapes: list[tuple[int, ...]] | None = None
        self._output_shapes: list[tuple[int, ...]] = []
        self._output_dtypes = [tensors.numpy_dtype(row.dtype) for row in self._outputs]
        # What run_arrays allocates; None: no plan, or results that want more alignment than numpy gives.
        self._output_rows: list[tuple[tuple[int, ...], np.dtype[Any]]] | None = None
        self._arena = np.empty(0, dtype=np.uint8)
        self._input_addresses = (c_void_p * max(len(self._inputs), 1))()
        self._output_addresses = (c_void_p * max(len(self._outputs), 1))()
        self._run = self._library.mlc_session_run
        self._quick = _QuickCall(self.handle, self._library, len(self._inputs), len(self._outputs))

    @property
    def arena_bytes(self) -> int:
        return int(self._arena.nbytes)

    def check(self, status: int) -> None:
        """Raises the session's failure."""
        if not status:
            return
        detail = self._library.mlc_session_detail(self.handle).decode(errors="replace")
        import re

        found = re.match(r"kernel (\d+)", detail) if status == INDEX_BOUNDS else None
        name_of = self._kernel_words()
        if found and name_of:
            detail = f"{name_of(int(found[1]))}{detail[found.end() :]}"
        raise MlcError(status, detail)

    def run(self, leaves: Sequence[Any], out: Sequence[Any] | None) -> list[np.ndarray[Any, Any]]:
        """Runs on the leaves; into `out` where given."""
        views = [self._view(row, leaf) for row, leaf in zip(self._inputs, leaves, strict=True)]
        copies: list[tuple[Any, np.ndarray[Any, Any]]] = []
        results = self._point(views, out, copies)
        self.check(self._library.mlc_session_run(self.handle))
        self._cut(results)
        for target, array in copies:
            target[...] = array
        return results

    def _cut(self, results: list[np.ndarray[Any, Any]]) -> None:
        """Results whose sizes data decide, as they came out: their elements lie dense from the start."""
        for index in self._of_data:
            tensor = native.sized(native.Tensor)
            self.check(self._library.mlc_session_result_shape(c_void_p(self.handle), c_uint32(index), byref(tensor)))
            shape = tuple(tensor.shape[: tensor.rank])
            results[index] = results[index].reshape(-1)[: math.prod(shape)].reshape(shape)

    def _point(
        self,
        views: Sequence[tensors.DataView],
        out: Sequence[Any] | None,
        copies: list[tuple[Any, np.ndarray[Any, Any]]],
    ) -> list[np.ndarray[Any, Any]]:
        """Plans for the views' shapes where they are new, and points the session at inputs and results."""
        shapes = [view.shape for view in views]
        if shapes != self._shapes:
            self._plan(views)
            self._shapes = shapes
        for index, view in enumerate(views):
            self._input_addresses[index] = view.address
        results = self._allocate() if out is None else self._take_out(out, copies)
        self.check(
            self._library.mlc_session_rebind(
                self.handle, ctypes.addressof(self._input_addresses), ctypes.addressof(self._output_addresses)
            )
        )
        return results

    def run_arrays(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]] | None:
        """Runs on arrays that are as the last plan has them; None where one is not, and `run` has to see to it."""
        if self._output_rows is None:
            return None
        try:
            structs = list(map(_struct_of, arrays))
        except AttributeError:
            return None
        results = [np.empty(shape, dtype) for shape, dtype in self._output_rows]
        structs += map(_struct_of, results)
        status = self._quick(structs)
        if status == BAD_STATE:
            return None
        if status:
            self.check(status)
        return results

    def bind(self, leaves: Sequence[Any], out: Sequence[Any] | None) -> list[np.ndarray[Any, Any]]:
        """Points the session at the leaves' memory and at results, for any number of runs.

        Raises: MlcError where a leaf is no array that can be read in place, or `out` none that can be written so.
        """
        views = [self._view(row, leaf) for row, leaf in zip(self._inputs, leaves, strict=True)]
        for row, leaf, view in zip(self._inputs, leaves, views, strict=True):
            if not tensors.is_same_memory(leaf, view):
                raise MlcError(BAD_ARGUMENT, f"input '{row.name}' cannot be read in place: {_IN_PLACE}")
        copies: list[tuple[Any, np.ndarray[Any, Any]]] = []
        if self._of_data:
            name = self._outputs[self._of_data[0]].name
            raise MlcError(BAD_ARGUMENT, f"data decide the size of '{name}': call the model, bind fixes its results")
        results = self._point(views, out, copies)
        if copies:
            raise MlcError(BAD_ARGUMENT, f"out cannot be written in place: {_IN_PLACE}")
        return results

    def run_bound(self) -> None:
        """Runs on what `bind` pointed at."""
        status = self._run(self.handle)
        if status:
            self.check(status)

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
        self._shapes, self._output_rows = None, None
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
            if arena_bytes.value < _LARGE_ARENA_BYTES:
                self._arena = tensors.empty((arena_bytes.value,), np.dtype(np.uint8), self._arena_align_bytes)
            else:
                self._arena = tensors.large(arena_bytes.value)
            address, size_bytes = tensors.address(self._arena), self._arena.nbytes
            self.check(self._library.mlc_session_bind_arena(self.handle, address, size_bytes))
        self._output_shapes = []
        is_small = True
        for index in range(len(self._outputs)):
            tensor = native.sized(native.Tensor)
            self.check(self._library.mlc_session_output_shape(self.handle, index, byref(tensor)))
            self._output_shapes.append(tuple(tensor.shape[: tensor.rank]))
            is_small &= tensor.size_bytes < _LARGE_BYTES  # large ones want an alignment that numpy does not give
        if is_small and not self._of_data:
            self._output_rows = list(zip(self._output_shapes, self._output_dtypes, strict=True))

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
            if "*" in row.dims and not array.flags.c_contiguous:
                raise MlcError(BAD_ARGUMENT, f"out '{row.name}' is not dense, and data decide how much of it is filled")
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


class _QuickCall:
    """mlc_session_run_arrays of one session, with everything prepared that need not be made anew in each call.

    numpy hands out a C struct in a capsule, and the library takes all out and does all checks on them, so that the
    interpreter does next to nothing. `map` over C functions costs half of what a comprehension does, and arguments
    that are ctypes objects already need no conversion.
    """

    def __init__(self, handle: int, library: Any, input_count: int, output_count: int) -> None:
        count = input_count + output_count
        self._boxes, self._structs = (c_void_p * count)(), (c_void_p * count)()
        structs = ctypes.addressof(self._structs)
        opener = ctypes.cast(ctypes.pythonapi.PyCapsule_GetPointer, c_void_p)
        boxes = c_void_p(ctypes.addressof(self._boxes))
        self._open = partial(library.open_arrays, opener, boxes, ctypes.c_uint32(count), c_void_p(structs))
        outputs = c_void_p(structs + input_count * ctypes.sizeof(c_void_p))
        self._run = partial(library.run_arrays, c_void_p(handle), c_void_p(structs), outputs)

    def __call__(self, structs: list[Any]) -> int:
        """Status of a run on the capsules of inputs, then outputs."""
        self._boxes[:] = list(map(id, structs))
        self._open()
        status: int = self._run()
        return status
