"""Convolution of 3x3 by F(2x2, 3x3): 16 small products in a transformed domain (see dialects/winograd.py).

A kernel tile is a block of Winograd tiles by a few panels of outputs. Its inputs are transformed once, the weights of
each panel as they are needed: they are read as they lie for a direct convolution, 9 numbers a pair of channels instead
of 16, and 16 numbers are made of them in the second-level cache. Sums go back two by two pixels at a time, straight to
the epilogue.

Everything in between lies in the scratch memory of the first kernel tile of the range that a thread runs, which no
other thread touches, and which stays in its caches from one kernel tile to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from mlc.dialects.val import Val, compute_type, constant_of
from mlc.dialects.winograd import POINTS, Slot
from mlir import ir
from mlir.dialects import arith

from .conv_geometry import ConvSizes, is_inside
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import StridedBuffer, lane_mask, load_vector, offset_ptr, stack_array, store_scalar, store_vector
from .matmul import Epilogue, PackedPanels, each_row_tile
from .microkernel import Panel, Rows, accumulate, zero_sums

_SIDE = 4  # of a tile's inputs
_STEP = 2  # of its outputs
_DTYPE = "f32"


@dataclass(frozen=True)
class WinogradPlan:
    """Winograd tiles and outputs of a kernel tile, and Winograd tiles whose sums are kept at a time."""

    block: int
    columns: int
    group: int


def winograd_grid(sizes: ConvSizes, plan: WinogradPlan) -> list[Size]:
    """Kernel tiles a dimension: blocks of Winograd tiles, blocks of outputs."""
    return [index.ceil_div(_tile_count(sizes), plan.block), index.ceil_div(sizes.outputs, plan.columns)]


def emit_winograd(
    isa: Isa, plan: WinogradPlan, sizes: ConvSizes, x: StridedBuffer, weights: PackedPanels, scratch: ir.Value,
    epilogue: Epilogue, begin: Size, end: Size,
) -> None:  # fmt: skip
    """The loop over kernel tiles begin..end, last dimension of `winograd_grid` fastest.

    `weights` as `pack_conv` lays them out with the channels inside the taps; `scratch` has a `Slot` a kernel tile.
    """
    slot = Slot(sizes.channels, plan.block, plan.group, isa.panel_columns(_DTYPE))
    memory = offset_ptr(scratch, index.mul(begin, slot.elements), _DTYPE)
    zeros = stack_array(_DTYPE, sizes.channels)
    zero = constant_of(compute_type(_DTYPE), 0)
    index.each(0, sizes.channels, 1, lambda i: store_scalar(zero, offset_ptr(zeros, i, _DTYPE), _DTYPE))
    tiles = _Tiles(isa, plan, sizes, x, weights, epilogue, slot, memory, zeros)
    index.each(begin, end, 1, lambda tile: tiles.emit(tile, begin))


def _tiles_of(sizes: ConvSizes) -> list[Size]:
    return [sizes.batch, *(index.ceil_div(size, _STEP) for size in sizes.output)]


def _tile_count(sizes: ConvSizes) -> Size:
    return index.product(_tiles_of(sizes))


@dataclass(frozen=True)
class _Tiles:
    isa: Isa
    plan: WinogradPlan
    sizes: ConvSizes
    x: StridedBuffer
    weights: PackedPanels
    epilogue: Epilogue
    slot: Slot
    memory: ir.Value
    zeros: ir.Value

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(_DTYPE)

    def emit(self, tile: ir.Value, begin: Size) -> None:
        block, share = index.delinearize(tile, winograd_grid(self.sizes, self.plan))
        first = index.mul(block, self.plan.block)
        count = index.minimum(self.plan.block, index.sub(_tile_count(self.sizes), first))
        # Shares of the outputs follow one another: their inputs are the same.
        is_new = arith.ori(_equal(tile, begin), _equal(share, 0))
        index.when(is_new, lambda: index.each(0, count, 1, lambda t: self._inputs(first, t)))
        start = index.mul(share, self.plan.columns)
        stop = index.minimum(self.sizes.outputs, index.add(start, self.plan.columns))

        def panel(column: ir.Value) -> None:
            self._weights(column)
            index.each(0, count, self.plan.group, lambda group: self._group(first, count, group, column))

        index.each(start, stop, self.slot.panel, panel)

    # memory ----------------------------------------------------------------------------------------------------------
    def _at(self, kind: str, point: Size, row: Size, column: Size = 0) -> ir.Value:
        """An element of the plane of `point`: of inputs [tile][channel], weights [channel][output], sums
        [tile][output]."""
        slot = self.slot
        start, plane, width = {
            "inputs": (0, slot.inputs_plane, slot.channels),
            "weights": (POINTS * slot.inputs_plane, slot.weights_plane, slot.panel),
            "sums": (POINTS * (slot.inputs_plane + slot.weights_plane), slot.sums_plane, slot.panel),
        }[kind]
        place = index.add(index.mul(row, width), column)
        return offset_ptr(offset_ptr(self.memory, index.add(index.mul(point, plane), start), _DTYPE), place, _DTYPE)

    def _put(self, values: list[list[Val]], kind: str, row: Size, column: Size) -> None:
        """All 16 numbers to their planes."""
        base = self._at(kind, 0, row, column)
        plane = self.slot.inputs_plane if kind == "inputs" else self.slot.weights_plane
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                store_vector(value.value, offset_ptr(base, (i * _SIDE + j) * plane, _DTYPE), _DTYPE)

    # transforms ------------------------------------------------------------------------------------------------------
    def _inputs(self, first: Size, number: ir.Value) -> None:
        """Transforms the inputs of one tile, all channels."""
        batch, *place = index.delinearize(index.add(first, number), _tiles_of(self.sizes))
        corner = [index.sub(index.mul(at, _STEP), low) for at, low in zip(place, self.sizes.pads_low, strict=True)]
        ends = zip(corner, self.sizes.input, strict=True)
        whole = [_both(is_inside(at, size), is_inside(index.add(at, _SIDE - 1), size)) for at, size in ends]
        start = self.x.at([batch, *corner, 0])
        _, *steps, _ = self.x.strides
        moved = [
            [offset_ptr(start, index.add(index.mul(steps[0], i), index.mul(steps[1], j)), _DTYPE) for j in range(_SIDE)]
            for i in range(_SIDE)
        ]

        def transform(pointers: list[list[ir.Value]]) -> None:
            def channels(c: ir.Value) -> None:
                seen = [[self._load(offset_ptr(p, c, _DTYPE)) for p in line] for line in pointers]
                self._put(_both_ways(seen, _input_line), "inputs", number, c)

            index.each(0, self.sizes.channels, self.lanes, channels)

        def at_border() -> None:
            inside = [
                [is_inside(index.add(at, i), size) for i in range(_SIDE)]
                for at, size in zip(corner, self.sizes.input, strict=True)
            ]
            transform(
                [
                    [arith.select(_both(inside[0][i], inside[1][j]), moved[i][j], self.zeros) for j in range(_SIDE)]
                    for i in range(_SIDE)
                ]
            )

        index.when(_both(*whole), lambda: transform(moved), at_border)

    def _weights(self, column: Size) -> None:
        """Transforms the weights of one panel."""
        channels, panel = self.sizes.channels, self.slot.panel
        start = offset_ptr(self.weights.ptr, index.mul(column, 9 * channels), self.weights.dtype)

        def channel(c: ir.Value) -> None:
            for v in range(0, panel, self.lanes):
                here = offset_ptr(start, index.add(index.mul(c, panel), v), _DTYPE)
                taps = [
                    [
                        self._load(offset_ptr(here, (i * 3 + j) * channels * panel, _DTYPE), is_aligned=True)
                        for j in range(3)
                    ]
                    for i in range(3)
                ]
                self._put(_both_ways(taps, _weight_line), "weights", c, v)

        index.each(0, channels, 1, channel)

    def _load(self, ptr: ir.Value, is_aligned: bool = False) -> Val:
        alignment = self.lanes * 4 if is_aligned else 0
        return Val(load_vector(self.isa, ptr, _DTYPE, alignment=alignment), _DTYPE)

    # products --------------------------------------------------------------------------------------------------------
    def _group(self, first: Size, count: Size, group: ir.Value, column: Size) -> None:
        """The sums of a few tiles for all points, and their outputs."""
        here = index.minimum(self.plan.group, index.sub(count, group))
        total, rows = _tile_count(self.sizes), self.isa.tile[0]
        known_tail = total % rows if isinstance(total, int) and self.plan.block % rows == 0 else None
        index.each(0, POINTS, 1, lambda point: self._product(point, group, here, known_tail))
        index.each(0, here, 1, lambda t: self._outputs(index.add(first, index.add(group, t)), t, column))

    def _product(self, point: ir.Value, group: Size, count: Size, known_tail: int | None) -> None:
        channels, vecs = self.sizes.channels, self.isa.tile[1]
        panel = Panel(self._at("weights", point, 0), _DTYPE, self.slot.panel, vecs, is_aligned=True)
        sums_at = self._at("sums", point, 0)

        def body(start: Size, height: int) -> None:
            base = self._at("inputs", point, index.add(group, start))
            rows = Rows([offset_ptr(base, r * channels, _DTYPE) for r in range(height)], _DTYPE)
            sums = accumulate(self.isa, rows, panel, channels, zero_sums(self.isa, height, vecs, _DTYPE))
            for r, row in enumerate(sums):
                for v, value in enumerate(row):
                    at = index.add(index.mul(index.add(start, r), self.slot.panel), v * self.lanes)
                    store_vector(value, offset_ptr(sums_at, at, _DTYPE), _DTYPE, alignment=self.lanes * 4)

        each_row_tile(count, self.isa.tile[0], body, known_tail)

    def _outputs(self, tile: Size, number: ir.Value, column: Size) -> None:
        """Two by two pixels from the sums of one tile, to the epilogue."""
        batch, *place = index.delinearize(tile, _tiles_of(self.sizes))
        corner = [index.mul(at, _STEP) for at in place]
        left = index.sub(self.sizes.outputs, column)

        def registers(masked: bool) -> None:
            for v in range(0, self.slot.panel, self.lanes):
                mask = lane_mask(self.isa, _DTYPE, index.sub(left, v)) if masked else None
                base = self._at("sums", 0, number, v)
                sums = [
                    [
                        self._load(offset_ptr(base, (i * _SIDE + j) * self.slot.sums_plane, _DTYPE), is_aligned=True)
                        for j in range(_SIDE)
                    ]
                    for i in range(_SIDE)
                ]
                self._pixels(_both_ways(sums, _output_line), batch, corner, index.add(column, v), mask)

        if self.sizes.outputs % self.slot.panel == 0:
            registers(False)
        else:
            index.when(index.less(left, self.slot.panel), lambda: registers(True), lambda: registers(False))

    def _pixels(
        self, pixels: list[list[Val]], batch: Size, corner: list[Size], channel: Size, mask: ir.Value | None
    ) -> None:  # fmt: skip
        """The epilogue at those of the pixels that there are."""
        for i, line in enumerate(pixels):
            for j, value in enumerate(line):
                place = [index.add(corner[0], i), index.add(corner[1], j)]
                exists: list[ir.Value] = [
                    is_inside(at, size)
                    for at, size, moved in zip(place, self.sizes.output, (i, j), strict=True)
                    if moved and not (isinstance(size, int) and size % _STEP == 0)
                ]

                def store(place: list[Size] = place, value: Val = value) -> None:
                    self.epilogue([batch, *place, channel], value.value, mask)

                if exists:
                    index.when(_both(exists[0], exists[-1]), store)
                else:
                    store()


def _equal(left: Size, right: Size) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.eq, index.to_value(left), index.to_value(right))


def _both(left: ir.Value, right: ir.Value) -> ir.Value:
    return arith.andi(left, right)


def _both_ways(grid: list[list[Val]], line: Callable[[list[Val]], list[Val]]) -> list[list[Val]]:
    """`line` applied to the columns of the grid, then to its rows."""
    columns = [line([row[j] for row in grid]) for j in range(len(grid[0]))]
    return [line([column[i] for column in columns]) for i in range(len(columns[0]))]


def _input_line(d: list[Val]) -> list[Val]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _weight_line(g: list[Val]) -> list[Val]:
    outer, middle = (g[0] + g[2]) * 0.5, g[1] * 0.5
    return [g[0], outer + middle, outer - middle, g[2]]


def _output_line(m: list[Val]) -> list[Val]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
