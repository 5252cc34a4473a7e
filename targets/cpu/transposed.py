"""Copies whose last dimension is not the one that lies together in memory: transposes that have to be materialised.

Square blocks are transposed in registers. A step reads 16 bytes, `g` elements, from as many places as a line of the
result has elements, and writes `g` whole lines; steps go along the dimension read, so that lines read are still in L1
for the next. Tiles are chunks of both dimensions, small enough for the pages they touch to stay mapped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlc.dialects import dims
from mlc.dialects.dims import Size
from mlc.dialects.types import DTYPES
from mlc.dialects.val import memory_type
from mlc.dialects.views import Strided, contiguous
from mlir import ir
from mlir.dialects import llvm, vector

from .index import Number
from .kernel import LINE_BYTES, Buffer, Kernel
from .loops import KernelBody, before_reshapes, emit_pointwise, for_tiles
from .streaming import emit_streamed, streamed

# The part of a register that interleaving instructions work within.
_GRANULE_BYTES = 16
# Elements of each of the two dimensions that a tile takes.
_CHUNK = 128


@dataclass(frozen=True)
class Copy:
    """Merged dimensions of a copy: sizes, the source's strides, and which dimension lies together in the source."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    together: int


def emit_elements(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """A kernel of elementwise ops and views: transposed by blocks where it is such a copy, else one loop."""
    root, buffer = before_reshapes(body.results[0]), body.buffers[0]
    values = list(k.buffers)
    own = k.buffers.pop(body.results[0])
    source = k.buffer_beneath(root)
    copy = None
    if source is not None and not k.lanes_info.scalable_count:
        copy = plan_copy(k.shape(root), source.view, buffer.dtype)
    k.buffers[body.results[0]] = own
    if copy is None or source is None:
        return emit_pointwise(k, body, begin, end)
    return emit_copy(k, copy, source, buffer, values, (begin, end))


def plan_copy(shape: tuple[Size, ...], view: Strided, dtype: str) -> Copy | None:
    """The copy of `view` to contiguous memory as blocks to transpose, or None where it is not one."""
    merged: list[tuple[Size, Size]] = []  # size, stride
    for size, stride in zip(shape, view.strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    strides = tuple(stride for _, stride in merged)
    if len(merged) < 2 or strides[-1] in (0, 1) or 1 not in strides:
        return None
    copy = Copy(tuple(size for size, _ in merged), strides, view.offset, strides.index(1))
    across, along = copy.shape[-1], copy.shape[copy.together]
    if not isinstance(across, int) or not isinstance(along, int):
        return None
    granule = _GRANULE_BYTES // DTYPES[dtype].bytes
    return copy if granule > 1 and across >= LINE_BYTES // DTYPES[dtype].bytes and along >= granule else None


def emit_copy(
    k: Kernel, copy: Copy, source: Buffer, target: Buffer, values: list[ir.Value], span: tuple[ir.Value, ir.Value]
) -> Size:  # fmt: skip
    """Emits tiles [span) of `copy` from `source` to `target`; gives their count."""
    outer = [d for d in range(len(copy.shape) - 1) if d != copy.together]
    across, along = copy.shape[-1], copy.shape[copy.together]
    assert isinstance(across, int) and isinstance(along, int)
    sizes = [copy.shape[d] for d in outer]
    counts = [max(1, along // _CHUNK), max(1, across // _CHUNK)]
    places = contiguous(copy.shape).strides

    def emit(target: Buffer) -> None:
        step = _Step(k, copy, source, target, places[copy.together])

        def tile(number: ir.Value) -> None:
            *lead, chunk, column = k.delinearize(number, [*sizes, *counts])
            start, end = k.ix(copy.offset), k.ix(0)
            for d, i in zip(outer, lead, strict=True):
                start, end = start + i * k.ix(copy.strides[d]), end + i * k.ix(places[d])
            rows = _chunk(k, chunk.base, counts[0], along)
            columns = _chunk(k, column.base, counts[1], across)
            _blocks(k, columns, step.line, lambda j: _blocks(k, rows, step.granule, lambda i: step(start, end, i, j)))

        for_tiles(k, *span, tile)

    line = LINE_BYTES // DTYPES[target.dtype].bytes
    flat = replace(target, view=contiguous(copy.shape))
    emit_streamed(k, streamed(k, flat, values, copy.shape) if across % line == 0 else flat, emit)
    return dims.product([*sizes, *counts])


def _chunk(k: Kernel, number: Number, count: int, size: int) -> tuple[Number, Number]:
    """[first, last) of a chunk; the last one takes what is left."""
    if count == 1:
        return 0, size
    first = k.arith.mul(number, _CHUNK)
    is_last = k.ix(number).eq(count - 1)
    stop = is_last.select(k.ix(size).val("i64"), k.ix(k.arith.add(first, _CHUNK)).val("i64"))
    return first, stop.value


def _blocks(k: Kernel, span: tuple[Number, Number], step: int, body) -> None:
    """`body(start)` over [first, last) by whole steps, the last of which may overlap the one before."""
    first, last = span
    whole = k.arith.sub(last, k.arith.mod(k.arith.sub(last, first), step))
    k.for_(first, whole, step, [], lambda i, _: body(i))
    if isinstance(whole, int) and isinstance(last, int):
        if whole != last:
            body(last - step)
    else:
        k.when(k.ix(whole).lt(k.ix(last)), lambda: body(k.arith.sub(last, step)))


class _Step:
    """A line of the result by `granule` elements of the source."""

    def __init__(self, k: Kernel, copy: Copy, source: Buffer, target: Buffer, row_stride: Size) -> None:
        self.k, self.copy, self.source, self.target, self.row_stride = k, copy, source, target, row_stride
        element_bytes = DTYPES[target.dtype].bytes
        self.element = memory_type(target.dtype)
        self.granule = _GRANULE_BYTES // element_bytes
        self.line = LINE_BYTES // element_bytes
        # Bytes take as many registers as they have granules: one granule each leaves the others for the shuffles.
        self.width = self.granule if element_bytes == 1 else min(self.line, k.isa.vector_bits // 8 // element_bytes)

    def __call__(self, start, end, i: Number, j: Number) -> None:
        k = self.k
        stride = self.copy.strides[-1]
        places = [start + k.ix(i) + k.ix(k.arith.add(j, n)) * k.ix(stride) for n in range(self.line)]
        parts = [self._transposed(places[n : n + self.width]) for n in range(0, self.line, self.width)]
        alignment = self.width * DTYPES[self.target.dtype].bytes if self.target.is_streamed else None
        for row in range(self.granule):
            place = end + k.ix(k.arith.add(i, row)) * k.ix(self.row_stride) + k.ix(j)
            for n, part in enumerate(parts):
                at = k.element_pointer(self.target, k.arith.add(place.base, n * self.width))
                llvm.StoreOp(
                    part[row], at, alignment=alignment or DTYPES[self.target.dtype].bytes,
                    nontemporal=self.target.is_streamed or None,
                )  # fmt: skip

    def _transposed(self, places) -> list[ir.Value]:
        """`granule` registers of the elements at `places`, of those after them, and so on."""
        k, granule = self.k, self.granule
        type_ = ir.VectorType.get([granule], self.element)
        rows = []
        for m in range(granule):
            parts = [
                llvm.load(type_, k.element_pointer(self.source, place.base), alignment=DTYPES[self.source.dtype].bytes)
                for place in places[m::granule]
            ]
            while len(parts) > 1:
                width = ir.VectorType(parts[0].type).shape[0]
                order = list(range(2 * width))
                parts = [vector.shuffle(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            rows.append(parts[0])
        return self._interleaved(rows)

    def _interleaved(self, rows: list[ir.Value]) -> list[ir.Value]:
        """A transpose within each granule: the first half of the rows shuffled into the second, log2 times."""
        granule, width = self.granule, self.width
        masks = []
        for half in (0, granule // 2):
            lanes = [lane + half + e for lane in range(0, width, granule) for e in range(granule // 2)]
            masks.append([at for e in lanes for at in (e, width + e)])
        size = 1
        while size < granule:
            pairs = list(zip(rows[: granule // 2], rows[granule // 2 :], strict=True))
            rows = [vector.shuffle(a, b, mask) for a, b in pairs for mask in masks]
            size *= 2
        return rows
