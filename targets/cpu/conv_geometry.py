"""Where a convolution's output pixels lie in its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from .isa import index
from .isa.index import Size


@dataclass(frozen=True)
class ConvSizes:
    """Numbers of one convolution; `channels` and `outputs` are a group's."""

    batch: Size
    groups: int
    channels: int
    outputs: int
    input: tuple[Size, ...]
    output: tuple[Size, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads_low: tuple[int, ...]
    dilations: tuple[int, ...]

    def is_padded(self, dim: int) -> bool:
        """True unless every tap along `dim` is known to lie inside the input."""
        size, count = self.input[dim], self.output[dim]
        if self.pads_low[dim] > 0 or not isinstance(size, int) or not isinstance(count, int):
            return True
        reach = (count - 1) * self.strides[dim] + (self.kernel[dim] - 1) * self.dilations[dim]
        return reach >= size + self.pads_low[dim]


Coordinates = list[Size]  # of the first tap, one a spatial dimension; outside the input in the padding


def first_taps(sizes: ConvSizes, pixel: Size, count: int) -> list[Coordinates]:
    """Input coordinates of the first tap of `count` consecutive output pixels."""
    places = [index.delinearize(pixel, sizes.output)]
    while len(places) < count:
        places.append(_next_place(places[-1], sizes.output))
    return [
        [index.sub(index.mul(at, sizes.strides[d]), sizes.pads_low[d]) for d, at in enumerate(place)]
        for place in places
    ]


def _next_place(place: Sequence[Size], sizes: Sequence[Size]) -> list[Size]:
    """The pixel after `place`: a division less than asking for it by number."""
    result: list[Size] = []
    carry: ir.Value | None = None
    for d in range(len(sizes) - 1, -1, -1):
        here = place[d]
        step = 1 if carry is None else arith.extui(index.i64(), carry)
        moved = index.to_value(index.add(here, step))
        if d == 0:
            result.insert(0, moved)
            break
        carry = arith.cmpi(arith.CmpIPredicate.eq, moved, index.to_value(sizes[d]))
        result.insert(0, arith.select(carry, index.to_value(0), moved))
    return result


def is_inside(position: Size, size: Size) -> ir.Value:
    """0 <= position < size: one unsigned comparison."""
    return arith.cmpi(arith.CmpIPredicate.ult, index.to_value(position), index.to_value(size))
