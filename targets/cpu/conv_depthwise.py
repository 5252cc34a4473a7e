"""Depthwise convolution, and its kin of few channels a group: lanes along channels, tiles of neighbouring pixels.

With more than one channel a group, each of its inputs in turn is spread over the group's lanes by a shuffle.

A line of known length is register tiles of equal heights; the ones at its ends leave out, when compiled, what lies in
the padding. Other lines are cut where padding begins: inner pixels have every tap of the last dimension inside the
input, so that their addresses are constants apart and nothing is checked; border pixels go one at a time, over the taps
that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mlir import ir
from mlir.dialects import vector

from .conv_geometry import ConvSizes
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_vector,
    multiply_add,
    offset_ptr,
    sum_dtype,
    zero_vector,
)
from .matmul import Epilogue, PackedPanels, each_row_tile

_UNROLLED_TAPS_MAX = 7
_END_TILES_MAX = 4  # that are emitted one by one
_PIXELS = 8  # of a register tile: with three weights and an input in flight they fill 16 registers without spills

Masks = list[ir.Value | None]


def emit_depthwise(
    isa: Isa, blocks: tuple[int, int, int], sizes: ConvSizes, x: StridedBuffer, weights: PackedPanels,
    epilogue: Epilogue, grid: Sequence[Size], begin: Size, end: Size,
) -> None:  # fmt: skip
    """Tiles are [n, line block, pixel block, channel block], `blocks` the sizes of the last three.

    Weights are [taps][inputs of a group][channels], x's channels are consecutive.
    """
    tiles = _Tiles(isa, blocks, sizes, x, weights, epilogue)
    index.each(begin, end, 1, lambda tile: tiles.emit(index.delinearize(tile, grid)))


def depthwise_vecs(isa: Isa, sizes: ConvSizes, total: str) -> int:
    """Registers of channels in a register tile: what leaves room for its inputs and a line's weights, and has no
    register without channels."""
    is_odd = sizes.groups * sizes.channels % (2 * isa.lanes(total)) != 0
    return 1 if isa.register_count < 32 or is_odd else 2


def valid_taps(sizes: ConvSizes, dim: int, corner: Size) -> tuple[Size, Size]:
    """The range of taps along `dim` that lie in the input, given where the first tap lies; may be empty, end first."""
    if not sizes.is_padded(dim):
        return 0, sizes.kernel[dim]
    dilation = sizes.dilations[dim]
    low = index.ceil_div(index.maximum(index.sub(0, corner), 0), dilation)
    room = index.maximum(index.sub(sizes.input[dim], corner), 0)
    return low, index.minimum(index.ceil_div(room, dilation), sizes.kernel[dim])


@dataclass(frozen=True)
class _Line:
    """One line of output: where it is and which taps of the outer dimensions reach it."""

    batch: Size
    place: list[Size]
    corner: list[Size]
    ranges: list[tuple[Size, Size]]


@dataclass(frozen=True)
class _RowTaps:
    """Taps of the last dimension that a register tile takes, and which input pixels, counted from its first, exist."""

    first: Size
    stop: Size
    inside: range | None = None  # None: all


@dataclass(frozen=True)
class _Tiles:
    isa: Isa
    blocks: tuple[int, int, int]
    sizes: ConvSizes
    x: StridedBuffer
    weights: PackedPanels
    epilogue: Epilogue

    @property
    def total(self) -> str:
        return sum_dtype(self.x.dtype)

    @property
    def channels(self) -> int:
        return self.sizes.groups * self.sizes.channels

    @property
    def last(self) -> int:
        return len(self.sizes.kernel) - 1

    def emit(self, place: Sequence[Size]) -> None:
        batch, line_block, pixel_block, channel_block = place
        line_count, pixel_count, channel_count = self.blocks
        first = index.mul(pixel_block, pixel_count)
        stop = index.minimum(self.sizes.output[-1], index.add(first, pixel_count))
        start = index.mul(channel_block, channel_count)
        end = index.minimum(self.channels, index.add(start, channel_count))

        def one(number: Size) -> None:
            outer = index.delinearize(number, self.sizes.output[:-1])
            corner = [self._corner(d, at) for d, at in enumerate(outer)]
            line = _Line(batch, outer, corner, [valid_taps(self.sizes, d, at) for d, at in enumerate(corner)])
            self._pixels(line, first, stop, lambda body: self._each_channels(start, end, body))

        if line_count == 1:
            one(line_block)
            return
        low = index.mul(line_block, line_count)
        lines = index.product(self.sizes.output[:-1])
        index.each(low, index.minimum(lines, index.add(low, line_count)), 1, one)

    @property
    def vecs(self) -> int:
        return depthwise_vecs(self.isa, self.sizes, self.total)

    def _each_channels(self, start: Size, end: Size, body: Callable[[Size, Masks], None]) -> None:
        """`body(channel, masks)` for each group of channels that a register tile takes."""
        lanes, vecs = self.isa.lanes(self.total), self.vecs
        width = vecs * lanes
        whole: Masks = [None] * vecs

        def one(channel: ir.Value) -> None:
            left = index.sub(self.channels, channel)
            if self.channels % width == 0:
                body(channel, whole)
                return

            def cut() -> None:
                body(channel, [lane_mask(self.isa, self.total, index.sub(left, v * lanes)) for v in range(vecs)])

            index.when(index.less(left, width), cut, lambda: body(channel, whole))

        index.each(start, end, width, one)

    def _corner(self, dim: int, at: Size) -> Size:
        return index.sub(index.mul(at, self.sizes.strides[dim]), self.sizes.pads_low[dim])

    def _pixels(self, line: _Line, first: Size, stop: Size, channels: Callable[..., None]) -> None:
        """Pixels outside, channels inside: the pixels around a register tile stay in the first-level cache."""

        def tile(pixel: Size, height: int, taps: _RowTaps) -> None:
            channels(lambda channel, masks: self._register_tile(line, pixel, height, channel, masks, taps))

        known = self._known_tiles()
        if known is not None:
            self._each_known_tile(*known, tile)
            return
        low, high = self._inner_pixels()
        inner_first = index.minimum(index.maximum(low, first), stop)
        inner_stop = index.minimum(index.maximum(high, inner_first), stop)

        def border(pixel: ir.Value) -> None:
            tile(pixel, 1, _RowTaps(*valid_taps(self.sizes, self.last, self._corner(self.last, pixel))))

        def inner(row: Size, height: int) -> None:
            tile(index.add(inner_first, row), height, _RowTaps(0, self.sizes.kernel[self.last]))

        if self.sizes.is_padded(self.last):
            index.each(first, inner_first, 1, border)
        each_row_tile(index.sub(inner_stop, inner_first), _PIXELS, inner)
        if self.sizes.is_padded(self.last):
            index.each(inner_stop, stop, 1, border)

    def _known_tiles(self) -> tuple[list[tuple[int, int]], range] | None:
        """First pixels and heights of a line's register tiles, and the numbers of those that see no padding.

        None where sizes are not known, a tile holds a part of a line, or too many tiles are at the ends.
        """
        sizes, d = self.sizes, self.last
        width, seen = sizes.output[d], sizes.input[d]
        if not isinstance(width, int) or not isinstance(seen, int) or sizes.kernel[d] > _UNROLLED_TAPS_MAX:
            return None
        if width > self.blocks[1] or not width:
            return None
        height = index.ceil_div(width, index.ceil_div(width, _PIXELS))
        tiles = [(first, min(height, width - first)) for first in range(0, width, height)]
        inner = []
        for number, (first, count) in enumerate(tiles):
            corner = first * sizes.strides[d] - sizes.pads_low[d]
            if count == height and corner >= 0 and corner + self._reach(count) <= seen:
                inner.append(number)
        span = range(inner[0], inner[-1] + 1) if inner else range(0)
        return None if len(tiles) - len(span) > _END_TILES_MAX else (tiles, span)

    def _reach(self, count: int) -> int:
        """Input pixels that `count` output pixels look at, from the first to the last."""
        sizes, d = self.sizes, self.last
        return (count - 1) * sizes.strides[d] + (sizes.kernel[d] - 1) * sizes.dilations[d] + 1

    def _each_known_tile(self, tiles: list[tuple[int, int]], inner: range, tile: Callable[..., None]) -> None:
        """`tile` for all tiles of a line, in a loop over those that see no padding."""
        sizes, d = self.sizes, self.last
        seen, kernel = sizes.input[d], sizes.kernel[d]
        assert isinstance(seen, int)
        for number, (first, height) in enumerate(tiles):
            if number not in inner:
                corner = first * sizes.strides[d] - sizes.pads_low[d]
                tile(first, height, _RowTaps(0, kernel, range(-corner, seen - corner)))
            elif number == inner.start:
                end = tiles[inner.stop - 1][0] + 1
                index.each(first, end, height, partial(tile, height=height, taps=_RowTaps(0, kernel)))

    def _inner_pixels(self) -> tuple[Size, Size]:
        """The range of output pixels of a line whose taps all lie inside the input."""
        d, sizes = self.last, self.sizes
        if not sizes.is_padded(d):
            return 0, sizes.output[d]
        low = index.ceil_div(sizes.pads_low[d], sizes.strides[d])
        reach = (sizes.kernel[d] - 1) * sizes.dilations[d] - sizes.pads_low[d]
        room = index.maximum(index.sub(sizes.input[d], reach), 0)
        return low, index.minimum(index.ceil_div(room, sizes.strides[d]), sizes.output[d])

    def _register_tile(
        self, line: _Line, pixel: Size, height: int, channel: Size, masks: Masks, taps: _RowTaps
    ) -> None:  # fmt: skip
        vecs = self.vecs
        corner = [*line.corner, self._corner(self.last, pixel)]
        start = self.x.at([line.batch, *corner, channel])
        init = [zero_vector(self.isa, self.total)] * (height * vecs)
        sums = self._outer_taps(line, 0, start, 0, taps, masks, channel, init)
        lanes = self.isa.lanes(self.total)
        for r in range(height):
            for v in range(vecs):
                at = [line.batch, *line.place, index.add(pixel, r), index.add(channel, v * lanes)]
                self.epilogue(at, sums[r * vecs + v], masks[v])

    def _outer_taps(
        self, line: _Line, dim: int, start: ir.Value, number: Size, taps: _RowTaps, masks: Masks,
        channel: Size, state: list[ir.Value],
    ) -> list[ir.Value]:  # fmt: skip
        """Loops over the taps of `dim` and those inside it; `number` counts the taps passed so far."""
        kernel = self.sizes.kernel[dim]
        step = index.mul(self.sizes.dilations[dim], self.x.strides[1 + dim])

        def one(tap: Size, state: list[ir.Value]) -> list[ir.Value]:
            there = offset_ptr(start, index.mul(tap, step), self.x.dtype)
            here = index.add(index.mul(number, kernel), tap)
            if dim == self.last:
                return self._tap(there, here, masks, channel, state)
            return self._outer_taps(line, dim + 1, there, here, taps, masks, channel, state)

        low, high = (taps.first, taps.stop) if dim == self.last else line.ranges[dim]
        if dim == self.last and isinstance(high, int) and low == 0 and high <= _UNROLLED_TAPS_MAX:
            return self._known_taps(high, start, index.mul(number, kernel), masks, channel, state, taps.inside)
        return index.loop(low, high, 1, state, one)

    def _tap(self, start: ir.Value, number: Size, masks: Masks, channel: Size, state: list[ir.Value]) -> list[ir.Value]:
        """One tap of the last dimension, for all pixels of the tile."""
        return self._known_taps(1, start, number, masks, channel, state)

    def _known_taps(
        self, count: int, start: ir.Value, number: Size, masks: Masks, channel: Size, state: list[ir.Value],
        inside: range | None = None,
    ) -> list[ir.Value]:  # fmt: skip
        """`count` taps of the last dimension from tap `number` on.

        Each input pixel is read once and meets all taps that see it before the next one is: a few registers hold
        inputs, whatever the width of the kernel.
        """
        lanes, vecs = self.isa.lanes(self.total), self.vecs
        stride, dilation = self.sizes.strides[self.last], self.sizes.dilations[self.last]
        members = self.sizes.channels
        pixels = len(state) // vecs
        readers: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(pixels):
            for tap in range(count):
                offset = pixel * stride + tap * dilation
                if inside is None or offset in inside:
                    readers.setdefault(offset, []).append((pixel, tap))

        def load(ptr: ir.Value, v: int, dtype: str) -> ir.Value:
            return load_vector(self.isa, offset_ptr(ptr, v * lanes, dtype), dtype, masks[v], like=self.total)

        def factor(tap: int, member: int, v: int) -> ir.Value:
            row = index.add(index.mul(index.add(number, tap), members), member)
            place = index.add(index.mul(row, self.channels), channel)
            return load(offset_ptr(self.weights.ptr, place, self.weights.dtype), v, self.weights.dtype)

        factors = {(t, m, v): factor(t, m, v) for t in range(count) for m in range(members) for v in range(vecs)}
        state = list(state)
        for offset in sorted(readers):
            there = offset_ptr(start, index.mul(offset, self.x.strides[1 + self.last]), self.x.dtype)
            for v in range(vecs):
                value = load(there, v, self.x.dtype)
                for member in range(members):
                    spread = self._spread(value, member)
                    for pixel, tap in readers[offset]:
                        at = pixel * vecs + v
                        state[at] = multiply_add(spread, factors[tap, member, v], state[at], self.total)
        return state

    def _spread(self, value: ir.Value, member: int) -> ir.Value:
        """Input `member` of each lane's group."""
        count = self.sizes.channels
        if count == 1:
            return value
        return vector.shuffle(
            value, value, [lane // count * count + member for lane in range(self.isa.lanes(self.total))]
        )
