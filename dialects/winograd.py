"""Convolution of 3x3 by Winograd's F(2x2, 3x3), and the memory that its kernels work in.

A tile is four outputs, two by two, of one channel, made from four by four inputs. Inputs, weights and sums of a tile
are 16 numbers each in the transformed domain, where the convolution is 16 products of [tiles, inputs] and
[inputs, outputs]: 16 multiplications a tile instead of 36. All factors of the transforms are 1 and 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conv import conv
from .op import op
from .types import DTYPES, TensorType

POINTS = 16  # numbers of a tile in the transformed domain
_LINE_ELEMENTS = 16  # f32 in a cache line


@dataclass(frozen=True)
class Slot:
    """The scratch memory of a range of kernel tiles, in elements: `POINTS` planes each of inputs, weights and sums.

    `block` tiles and `columns` outputs make a kernel tile; sums are kept for `group` tiles at a time. A plane is an odd
    number of cache lines, so that elements at the same place of all planes lie in different sets of a cache.
    """

    channels: int
    block: int
    group: int
    panel: int

    @property
    def inputs_plane(self) -> int:
        return _odd_lines(self.block * self.channels)

    @property
    def weights_plane(self) -> int:
        return _odd_lines(self.channels * self.panel)

    @property
    def sums_plane(self) -> int:
        return _odd_lines(self.group * self.panel)

    @property
    def elements(self) -> int:
        return POINTS * (self.inputs_plane + self.weights_plane + self.sums_plane)


def _odd_lines(elements: int) -> int:
    return (-(-elements // _LINE_ELEMENTS) | 1) * _LINE_ELEMENTS


@op("special", is_internal=True)
def scratch(*, shape: Dims, dtype: DType) -> T:
    """Memory that a kernel may write while it runs: holds nothing before and after. Source: mlc."""
    return np.zeros(shape, DTYPES[dtype].numpy)


@scratch.rule("infer")
def _(*, shape, dtype):
    return TensorType(dtype, tuple(shape))


@scratch.rule("tiles")
def _(*, shape, dtype):
    return 0


@scratch.rule("kernel")
def _(k, tile, ins, outs, *, shape, dtype):
    """Nothing to compute."""


@op("contract", is_internal=True)
def conv_winograd(
    x: F[N, *S, C],
    w: F[O, C, H, W],
    scratch: F[Q, R],
    bias: F[O] = None,
    *,
    pads_low: list[int],
    pads_high: list[int],
    block: int,
    columns: int,
    group: int,
) -> F[N, *P, O]:
    """`conv` of 3x3 with steps of one, channels last, by F(2x2, 3x3); see `Slot` for `scratch` and the numbers.

    Source: Lavin and Gray 2015, Fast Algorithms for Convolutional Neural Networks.
    """
    one = [1, 1]
    return conv.reference(
        x, w, bias, strides=one, pads_low=pads_low, pads_high=pads_high, dilations=one, groups=1, layout="nhwc"
    )


@conv_winograd.rule("infer")
def _(x, w, scratch, bias, *, pads_low, pads_high, block, columns, group):
    if x.rank != 4 or w.shape[2:] != (3, 3):
        raise ValueError(f"x is {x}, w is {w}: only 3x3 over two dimensions is done so")
    one = [1, 1]
    attrs = {"strides": one, "pads_low": pads_low, "pads_high": pads_high, "dilations": one, "layout": "nhwc"}
    return conv.infer([x, w, bias], conv.attribute_values(attrs))[0]
