"""Depthwise convolution: lanes along channels, register tiles of output pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.dialects.val import compute_type, constant_of
from mlir import ir
from mlir.dialects import arith

from .conv_geometry import ConvSizes, first_taps, is_inside
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_vector,
    multiply_add,
    offset_ptr,
    stack_array,
    store_scalar,
    sum_dtype,
    zero_vector,
)
from .matmul import Epilogue, PackedPanels, each_row_tile


def emit_depthwise(
    isa: Isa, tile_pixels: int, tile_channels: int, sizes: ConvSizes, x: StridedBuffer, weights: PackedPanels,
    epilogue: Epilogue, grid: Sequence[Size], begin: Size, end: Size,
) -> None:  # fmt: skip
    """Tiles are [n, 1, pixel block, channel block]; weights are [taps][channels], x's channels are consecutive."""
    zeros = stack_array(x.dtype, isa.tile[1] * isa.lanes(sum_dtype(x.dtype)))
    zero = constant_of(compute_type(x.dtype), 0)
    count = isa.tile[1] * isa.lanes(sum_dtype(x.dtype))
    index.each(0, count, 1, lambda i: store_scalar(zero, offset_ptr(zeros, i, x.dtype), x.dtype))
    tiles = _Tiles(isa, tile_pixels, tile_channels, sizes, x, weights, epilogue, zeros)
    index.each(begin, end, 1, lambda tile: tiles.emit(index.delinearize(tile, grid)))


@dataclass(frozen=True)
class _Tiles:
    isa: Isa
    tile_pixels: int
    tile_channels: int
    sizes: ConvSizes
    x: StridedBuffer
    weights: PackedPanels
    epilogue: Epilogue
    zeros: ir.Value

    @property
    def total(self) -> str:
        return sum_dtype(self.x.dtype)

    def emit(self, place: Sequence[Size]) -> None:
        batch, _, pixel_block, channel_block = place
        pixels = index.product(self.sizes.output)
        first = index.mul(pixel_block, self.tile_pixels)
        count = index.minimum(self.tile_pixels, index.sub(pixels, first))
        known_tail = pixels % self.isa.tile[0] if isinstance(pixels, int) else None
        start = index.mul(channel_block, self.tile_channels)
        stop = index.minimum(self.sizes.groups, index.add(start, self.tile_channels))
        width = self.isa.tile[1] * self.isa.lanes(self.total)

        def channels(channel: ir.Value) -> None:
            left = index.sub(self.sizes.groups, channel)

            def pixels_of(masks: list[ir.Value | None]) -> None:
                def body(row: Size, height: int) -> None:
                    self._register_tile(batch, index.add(first, row), height, channel, masks)

                each_row_tile(count, self.isa.tile[0], body, known_tail)

            whole = [None] * self.isa.tile[1]
            if self.sizes.groups % width == 0:
                pixels_of(whole)
                return
            lanes = self.isa.lanes(self.total)
            index.when(
                index.less(left, width),
                lambda: pixels_of(
                    [lane_mask(self.isa, self.total, index.sub(left, v * lanes)) for v in range(self.isa.tile[1])]
                ),
                lambda: pixels_of(whole),
            )

        index.each(start, stop, width, channels)

    def _register_tile(
        self, batch: Size, pixel: Size, height: int, channel: Size, masks: list[ir.Value | None]
    ) -> None:
        lanes, vecs, dtype = self.isa.lanes(self.total), self.isa.tile[1], self.x.dtype
        corners = first_taps(self.sizes, pixel, height)
        starts = [self.x.at([batch, *corner, channel]) for corner in corners]

        def load(ptr: ir.Value, v: int, dtype: str) -> ir.Value:
            return load_vector(self.isa, offset_ptr(ptr, v * lanes, dtype), dtype, masks[v], like=self.total)

        def tap(number: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            taps = index.delinearize(number, self.sizes.kernel)
            moved: Size = 0
            for d, at in enumerate(taps):
                moved = index.add(moved, index.mul(at, index.mul(self.sizes.dilations[d], self.x.strides[1 + d])))
            weights = offset_ptr(
                self.weights.ptr, index.add(index.mul(number, self.sizes.groups), channel), self.weights.dtype
            )
            factors = [load(weights, v, self.weights.dtype) for v in range(vecs)]
            result = []
            for r, (start, corner) in enumerate(zip(starts, corners, strict=True)):
                pointer = self._pointer(offset_ptr(start, moved, dtype), corner, taps)
                for v, factor in enumerate(factors):
                    result.append(multiply_add(load(pointer, v, dtype), factor, state[r * vecs + v], self.total))
            return result

        init = [zero_vector(self.isa, self.total)] * (height * vecs)
        sums = index.loop(0, index.product(self.sizes.kernel), 1, init, tap)
        for r in range(height):
            place = index.delinearize(index.add(pixel, r), self.sizes.output)
            for v in range(vecs):
                at = [batch, *place, index.add(channel, v * lanes)]
                self.epilogue(at, sums[r * vecs + v], masks[v])

    def _pointer(self, pointer: ir.Value, corner: Sequence[Size], taps: Sequence[Size]) -> ir.Value:
        inside: ir.Value | None = None
        for d, at in enumerate(taps):
            if self.sizes.is_padded(d):
                position = index.add(corner[d], index.mul(at, self.sizes.dilations[d]))
                here = is_inside(position, self.sizes.input[d])
                inside = here if inside is None else arith.andi(inside, here)
        return pointer if inside is None else arith.select(inside, pointer, self.zeros)
