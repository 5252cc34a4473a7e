"""The `taps` and `patches` forms of a convolution: register tiles over output pixels (see conv.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlc.dialects.types import DTYPES
from mlc.dialects.val import compute_type, constant_of, memory_type
from mlir import ir
from mlir.dialects import arith, llvm

from .conv_geometry import ConvSizes, Coordinates, first_taps, is_inside
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    offset_ptr,
    stack_array,
    store_scalar,
    sum_dtype,
)
from .matmul import Block, Epilogue, PackedPanels, Stage, each_row_tile, finish
from .microkernel import Panel, Rows, Sums, accumulate, is_one_slice, slice_of, sum_slices, zero_sums

if TYPE_CHECKING:
    from .conv import ConvPlan


@dataclass(frozen=True)
class Axis:
    """One loop over segments of k: `count` steps of `step` elements along spatial dimension `dim`, or channels."""

    count: int
    dim: int | None
    step: Size


@dataclass(frozen=True)
class Taps:
    """Rows read in place, segment by segment."""

    sizes: ConvSizes
    x: StridedBuffer
    axes: list[Axis]
    run: int
    run_stride: Size
    zeros: ir.Value | None

    @staticmethod
    def make(
        sizes: ConvSizes, x: StridedBuffer, axes: list[Axis], run: int, run_stride: Size, needs_zeros: bool
    ) -> Taps:
        zeros = None
        if needs_zeros:
            zeros = stack_array(x.dtype, run)
            zero = constant_of(compute_type(x.dtype), 0)
            index.each(0, run, 1, lambda i: store_scalar(zero, offset_ptr(zeros, i, x.dtype), x.dtype))
        return Taps(sizes, x, axes, run, run_stride, zeros)

    @property
    def segments(self) -> int:
        return index.product([axis.count for axis in self.axes])

    def begin_rows(self, batch: Size, group: Size, first: Size, count: Size) -> None:
        """Nothing to prepare for a block of rows."""

    def accumulate(
        self, isa: Isa, place: tuple[Size, Size], pixel: Size, height: int, panel: Panel, segments: tuple[Size, Size],
        sums: Sums,
    ) -> Sums:  # fmt: skip
        """`sums` plus the segments of `height` pixels; `panel` begins at the first segment."""
        batch, group = place
        corners = first_taps(self.sizes, pixel, height)
        channel = index.mul(group, self.sizes.channels)
        starts = [self.x.at([batch, *corner, channel]) for corner in corners]
        vecs = panel.vecs
        begin, end = segments

        def segment(number: Size, state: list[ir.Value]) -> list[ir.Value]:
            taps = index.delinearize(number, [axis.count for axis in self.axes])
            moved: Size = 0
            for tap, axis in zip(taps, self.axes, strict=True):
                moved = index.add(moved, index.mul(tap, axis.step))
            pointers = [
                self._pointer(start, moved, corner, taps) for start, corner in zip(starts, corners, strict=True)
            ]
            depth = index.mul(index.sub(number, begin), self.run * _columns(isa, panel))
            here = replace(panel, ptr=offset_ptr(panel.ptr, depth, panel.dtype))
            rows = Rows(pointers, self.x.dtype, self.run_stride)
            folded = [state[i : i + vecs] for i in range(0, len(state), vecs)]
            return [v for row in accumulate(isa, rows, here, self.run, folded) for v in row]

        state = [v for row in sums for v in row]
        steps, length = panel.steps(self.run), slice_of(isa, height)
        if self.segments == 1:
            state = segment(0, state)
        elif self._is_short(begin, end, steps, length) or not is_one_slice(isa, height, vecs, steps):
            state = index.loop(begin, end, 1, state, segment)
        else:
            count = max(1, round(length / steps))

            def some(first: ir.Value, zeros: list[ir.Value]) -> list[ir.Value]:
                if count == 1:
                    return segment(first, zeros)
                return index.loop(first, index.minimum(index.add(first, count), end), 1, zeros, segment)

            state = sum_slices(isa, sum_dtype(self.x.dtype), (begin, end, count), state, some)
        return [state[i : i + vecs] for i in range(0, len(state), vecs)]

    def _is_short(self, begin: Size, end: Size, steps: int, length: int) -> bool:
        """Whether these segments together are no longer than a slice of k."""
        return isinstance(begin, int) and isinstance(end, int) and (end - begin) * steps <= length + length // 2

    def _pointer(self, start: ir.Value, moved: Size, corner: Coordinates, taps: Sequence[Size]) -> ir.Value:
        pointer = offset_ptr(start, moved, self.x.dtype)
        inside: ir.Value | None = None
        for tap, axis in zip(taps, self.axes, strict=True):
            if axis.dim is None or not self.sizes.is_padded(axis.dim):
                continue
            position = index.add(corner[axis.dim], index.mul(tap, self.sizes.dilations[axis.dim]))
            here = is_inside(position, self.sizes.input[axis.dim])
            inside = here if inside is None else arith.andi(inside, here)
        return pointer if inside is None else arith.select(inside, pointer, self.zeros)


@dataclass(frozen=True)
class Patches:
    """Rows copied side by side on the stack, [row][k], k in the weights' order."""

    isa: Isa
    sizes: ConvSizes
    x: StridedBuffer
    is_channels_first: bool
    target: ir.Value
    row_stride: int

    segments = 1

    @staticmethod
    def row_elements(isa: Isa, k: int, dtype: str) -> int:
        """A row with the spill of its last vector."""
        return k + isa.lanes(dtype)

    @staticmethod
    def make(isa: Isa, sizes: ConvSizes, x: StridedBuffer, is_channels_first: bool, rows: int) -> Patches:
        k = sizes.channels * index.product(sizes.kernel)
        row_stride = Patches.row_elements(isa, k, x.dtype)
        return Patches(isa, sizes, x, is_channels_first, stack_array(x.dtype, rows * row_stride), row_stride)

    @property
    def run(self) -> int:
        return self.sizes.channels * index.product(self.sizes.kernel)

    def begin_rows(self, batch: Size, group: Size, first: Size, count: Size) -> None:
        """Copies a block of rows."""
        index.each(0, count, 1, lambda row: self._copy_row(batch, group, index.add(first, row), row))

    def accumulate(
        self, isa: Isa, place: tuple[Size, Size], pixel: Size, height: int, panel: Panel, segments: tuple[Size, Size],
        sums: Sums,
    ) -> Sums:  # fmt: skip
        first, _ = segments
        row = index.sub(pixel, first)
        pointers = [
            offset_ptr(self.target, index.mul(index.add(row, r), self.row_stride), self.x.dtype) for r in range(height)
        ]
        return accumulate(isa, Rows(pointers, self.x.dtype), panel, self.run, sums)

    def _copy_row(self, batch: Size, group: Size, pixel: Size, row: Size) -> None:
        """Kernel rows one after another: whole vectors, zero in lanes outside the input, each overlapping the next."""
        sizes, last = self.sizes, len(self.sizes.kernel) - 1
        (corner,) = first_taps(sizes, pixel, 1)
        channel = index.mul(group, sizes.channels)
        outer = [*sizes.kernel[:-1]]
        # A kernel row is `width` taps of `unit` consecutive elements.
        unit = 1 if self.is_channels_first else sizes.channels
        width = sizes.kernel[last]
        low, high = self._valid_taps(corner[last])
        axes = [sizes.channels, *outer] if self.is_channels_first else outer

        masks = self._masks(width * unit, index.mul(low, unit), index.mul(high, unit))

        def kernel_row(number: Size) -> None:
            taps = index.delinearize(number, axes)
            c = taps.pop(0) if self.is_channels_first else 0
            position = [index.add(corner[d], index.mul(tap, sizes.dilations[d])) for d, tap in enumerate(taps)]
            inside: ir.Value | bool = True
            for d, at in enumerate(position):
                if sizes.is_padded(d):
                    here = is_inside(at, sizes.input[d])
                    inside = here if inside is True else arith.andi(inside, here)
            source = self.x.at([batch, *position, corner[last], index.add(channel, c)])
            k = index.add(index.mul(row, self.row_stride), index.mul(number, width * unit))
            target = offset_ptr(self.target, k, self.x.dtype)
            index.when(
                inside,
                lambda: self._copy_run(source, target, width, unit, (low, high), masks),
                lambda: self._clear_run(target, width * unit),
            )

        index.each(0, index.product(axes), 1, kernel_row)

    def _masks(self, count: int, start: Size, stop: Size) -> list[ir.Value]:
        """Of a kernel row's vectors: the elements from `start` to `stop`."""
        places = range(0, count, self.isa.lanes(self.x.dtype))
        return [_range_mask(self.isa, self.x.dtype, index.sub(start, v), index.sub(stop, v)) for v in places]

    def _clear_run(self, target: ir.Value, count: int) -> None:
        type_ = self.isa.vector(memory_type(self.x.dtype), self.x.dtype)
        for v in range(0, count, self.isa.lanes(self.x.dtype)):
            place = offset_ptr(target, v, self.x.dtype)
            llvm.StoreOp(constant_of(type_, 0), place, alignment=DTYPES[self.x.dtype].bytes)

    def _valid_taps(self, corner: Size) -> tuple[Size, Size]:
        """The range of taps along the last dimension that lie in the input."""
        last = len(self.sizes.kernel) - 1
        dilation = self.sizes.dilations[last]
        low = index.floor_div(index.add(index.maximum(index.sub(0, corner), 0), dilation - 1), dilation)
        room = index.maximum(index.sub(self.sizes.input[last], corner), 0)
        return low, index.minimum(index.floor_div(index.add(room, dilation - 1), dilation), self.sizes.kernel[last])

    def _copy_run(
        self, source: ir.Value, target: ir.Value, width: int, unit: int, taps: tuple[Size, Size], masks: list[ir.Value]
    ) -> None:  # fmt: skip
        """width x unit elements; consecutive ones by vectors, others one at a time."""
        dtype, last = self.x.dtype, len(self.sizes.kernel) - 1
        tap_step = index.mul(self.sizes.dilations[last], self.x.strides[1 + last])
        if tap_step != unit or (unit > 1 and self.x.strides[-1] != 1):
            self._copy_elements(source, target, width, unit, *taps, tap_step)
            return
        type_ = self.isa.vector(memory_type(dtype), dtype)
        alignment = DTYPES[dtype].bytes
        for v, mask in enumerate(masks):
            at = v * self.isa.lanes(dtype)
            zero = constant_of(type_, 0)
            value = llvm.intr_masked_load(type_, offset_ptr(source, at, dtype), mask, alignment, pass_thru=zero)
            llvm.StoreOp(value, offset_ptr(target, at, dtype), alignment=alignment)

    def _copy_elements(
        self, source: ir.Value, target: ir.Value, width: int, unit: int, low: Size, high: Size, tap_step: Size
    ) -> None:
        dtype = self.x.dtype
        type_ = memory_type(dtype)
        alignment = DTYPES[dtype].bytes

        def put(value: ir.Value, at: Size) -> None:
            llvm.StoreOp(value, offset_ptr(target, at, dtype), alignment=alignment)

        def element(i: ir.Value) -> None:
            source_at = index.add(
                index.mul(index.floor_div(i, unit), tap_step), index.mul(index.remainder(i, unit), self.x.strides[-1])
            )
            put(llvm.LoadOp(type_, offset_ptr(source, source_at, dtype), alignment=alignment).result, i)

        index.each(0, width * unit, 1, lambda i: put(constant_of(type_, 0), i))
        index.each(index.mul(low, unit), index.mul(high, unit), 1, element)


def _range_mask(isa: Isa, dtype: str, start: Size, stop: Size) -> ir.Value:
    """True in lanes start..stop, clamped."""
    below, before = lane_mask(isa, dtype, stop), lane_mask(isa, dtype, start)
    return arith.andi(below, arith.xori(before, constant_of(before.type, 1)))


def _columns(isa: Isa, panel: Panel) -> int:
    return panel.row_stride if isinstance(panel.row_stride, int) else 0


def emit_implicit(
    isa: Isa, plan: ConvPlan, sizes: ConvSizes, rows: Taps | Patches, weights: PackedPanels, epilogue: Epilogue,
    grid: Sequence[Size], begin: Size, end: Size,
) -> None:  # fmt: skip
    """The loop over tiles of both forms."""
    tiles = _Tiles(isa, plan, sizes, rows, weights, epilogue)
    index.each(begin, end, 1, lambda tile: tiles.emit(index.delinearize(tile, grid)))


@dataclass(frozen=True)
class _Tiles:
    isa: Isa
    plan: ConvPlan
    sizes: ConvSizes
    rows: Taps | Patches
    weights: PackedPanels
    epilogue: Epilogue

    @property
    def total(self) -> str:
        return sum_dtype(self.rows.x.dtype)

    @property
    def columns(self) -> int:
        return self.isa.panel_columns(self.total)

    def emit(self, place: Sequence[Size]) -> None:
        batch, group, row_block, column_block = place
        group = group if self.sizes.groups > 1 else 0
        pixels = index.product(self.sizes.output)
        first_row = index.mul(row_block, self.plan.tile_rows)
        row_count = index.minimum(self.plan.tile_rows, index.sub(pixels, first_row))
        first = index.mul(column_block, self.plan.tile_columns)
        stop = index.minimum(self.sizes.outputs, index.add(first, self.plan.tile_columns))
        self.rows.begin_rows(batch, group, first_row, row_count)

        def block(column: Size) -> Block:
            whole = self.sizes.outputs % self.columns == 0
            left = self.columns if whole else index.sub(self.sizes.outputs, column)
            return Block([batch, group], first_row, column, left, self._stored)

        def each_panel(body: Callable[[Block], None]) -> None:
            index.each(first, stop, self.columns, lambda column: body(block(column)))

        known_tail = pixels % self.isa.tile[0] if isinstance(pixels, int) else None
        if self.plan.depth is not None and self.rows.segments > 1:
            self._cut(each_panel, first, row_count, known_tail, self.plan.depth)
        else:
            each_panel(lambda at: self._whole(at, row_count, known_tail))

    def _stored(self, place: list[Size], value: ir.Value, mask: ir.Value | None) -> None:
        """The caller's epilogue at [n, *spatial, o]."""
        batch, group, pixel, column = place
        channel = index.add(index.mul(group, self.sizes.outputs), column)
        self.epilogue([batch, *index.delinearize(pixel, self.sizes.output), channel], value, mask)

    def _panel(self, block: Block, segment: Size) -> Panel:
        k_count = self.weights.depth(self.rows.run * self.rows.segments)
        depth = index.mul(segment, self.rows.run)
        panel_count = index.ceil_div(self.sizes.outputs, self.columns)
        offset = index.add(index.mul(block.column, k_count), index.mul(depth, self.columns))
        offset = index.add(offset, index.mul(block.batch[1], index.mul(panel_count * self.columns, k_count)))
        ptr = offset_ptr(self.weights.ptr, offset, self.weights.dtype)
        return Panel(
            ptr, self.weights.dtype, self.columns, self.isa.tile[1], is_aligned=True, is_paired=self.weights.is_paired
        )

    def _sum(
        self, block: Block, first: Size, height: int, panel: Panel, segments: tuple[Size, Size], sums: Sums
    ) -> Sums:
        pixel = index.add(block.row, first)
        if isinstance(self.rows, Patches):
            segments = (block.row, block.row)
        return self.rows.accumulate(self.isa, (block.batch[0], block.batch[1]), pixel, height, panel, segments, sums)

    def _whole(self, block: Block, row_count: Size, known_tail: int | None) -> None:
        """All of k at once, sums straight to the epilogue or through a stage."""
        panel = self._panel(block, 0)
        stage = Stage.make(self.isa, self.total, self.plan.tile_rows, self.columns) if self.plan.is_staged else None

        def body(first: Size, height: int) -> None:
            sums = zero_sums(self.isa, height, panel.vecs, self.total)
            sums = self._sum(block, first, height, panel, (0, self.rows.segments), sums)
            if stage:
                stage.store(first, sums)
            else:
                finish(self.isa, block, first, sums, self.total)

        each_row_tile(row_count, self.isa.tile[0], body, known_tail)
        if stage:
            stage.finish(block, row_count)

    def _cut(
        self, each_panel: Callable, start: Size, row_count: Size, known_tail: int | None, depth: int
    ) -> None:  # fmt: skip
        """A few segments at a time over all panels, so that the panels' slices and the rows stay in the caches."""
        whole = Stage.make(self.isa, self.total, self.plan.tile_rows, self.plan.tile_columns)
        count, total = max(1, depth // self.rows.run), self.rows.segments

        def stage_of(block: Block) -> Stage:
            return whole.moved(index.mul(index.sub(block.column, start), self.plan.tile_rows))

        def piece(begin: Size, block: Block) -> None:
            end = index.minimum(index.add(begin, count), total)
            panel, stage = self._panel(block, begin), stage_of(block)

            def body(first: Size, height: int) -> None:
                sums = stage.load(first, height)
                stage.store(first, self._sum(block, first, height, panel, (begin, end), sums))

            each_row_tile(row_count, self.isa.tile[0], body, known_tail)

        each_panel(lambda block: stage_of(block).clear(row_count))
        index.each(0, total, count, lambda begin: each_panel(lambda block: piece(begin, block)))
        each_panel(lambda block: stage_of(block).finish(block, row_count))
