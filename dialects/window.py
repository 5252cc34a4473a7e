"""Sliding windows over the spatial dimensions, shared by convolution and pooling: sizes, numpy views, index arithmetic.

Layout "nchw" is [N, C, *S], "nhwc" is [N, *S, C]; either for any spatial rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from .dims import Size

LAYOUTS = ("nchw", "nhwc")


def split_shape(shape: Sequence[Size], layout: str) -> tuple[Size, Size, tuple[Size, ...]]:
    """(N, C, spatial sizes) of a shape in `layout`. Raises ValueError for no layout or no spatial dimension."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout '{layout}' is none of {', '.join(LAYOUTS)}")
    if len(shape) < 3:
        raise ValueError(f"{list(shape)} has no spatial dimension")
    if layout == "nchw":
        return shape[0], shape[1], tuple(shape[2:])
    return shape[0], shape[-1], tuple(shape[1:-1])


def join_shape(batch, channels, spatial, layout: str) -> tuple:
    """The inverse of `split_shape`, for sizes and for indices."""
    return (batch, channels, *spatial) if layout == "nchw" else (batch, *spatial, channels)


def channels_first(x: np.ndarray, layout: str) -> np.ndarray:
    return x if layout == "nchw" else np.moveaxis(x, -1, 1)


def channels_back(x: np.ndarray, layout: str) -> np.ndarray:
    """The inverse of `channels_first`."""
    return x if layout == "nchw" else np.moveaxis(x, 1, -1)


def check_counts(rank: int, **lists: Sequence) -> None:
    """Raises ValueError unless each list has one entry a spatial dimension."""
    for name, values in lists.items():
        if len(values) != rank:
            raise ValueError(f"{name} {list(values)} needs {rank} entries, one a spatial dimension")


def window_counts(
    sizes: Sequence[Size], kernel: Sequence[int], strides: Sequence[int], pads_low: Sequence[int],
    pads_high: Sequence[int], dilations: Sequence[int],
) -> tuple[Size, ...]:
    """How many windows fit each spatial dimension. Raises ValueError when none does, or a parameter makes no sense."""
    check_counts(len(sizes), kernel=kernel, strides=strides, dilations=dilations)
    check_counts(len(sizes), pads_low=pads_low, pads_high=pads_high)
    counts = []
    for size, extent, stride, low, high, dilation in zip(
        sizes, kernel, strides, pads_low, pads_high, dilations, strict=True
    ):
        if extent < 1 or stride < 1 or dilation < 1 or low < 0 or high < 0:
            raise ValueError("kernel, strides and dilations must be positive, pads not negative")
        count = (size + (low + high - dilation * (extent - 1) - 1)) // stride + 1
        if isinstance(count, int) and count < 0:
            reach = dilation * (extent - 1) + 1
            raise ValueError(f"a window of {reach} does not fit a dimension of {size} padded by {low} and {high}")
        counts.append(count)
    return tuple(counts)


def padded(x: np.ndarray, low: Sequence[int], high: Sequence[int], value: float) -> np.ndarray:
    """`x` [N, C, *S] with its spatial dimensions padded by `value`."""
    if not any(low) and not any(high):
        return x
    return np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)], constant_values=value)


def taps(
    x: np.ndarray, counts: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Each kernel position with the view [N, C, *counts] of what it sees in padded `x`."""
    for tap in itertools.product(*map(range, kernel)):
        cut = tuple(
            slice(t * d, t * d + (n - 1) * s + 1 if n else t * d, s)
            for t, d, n, s in zip(tap, dilations, counts, strides, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *cut)]


def input_position(position, tap, stride: int, low: int, dilation: int):
    """The input index (an Ix) that kernel position `tap` sees in window `position`; may lie in the padding."""
    at = position * stride + tap * dilation
    return at - low if low else at


def in_bounds(positions, sizes, pads_low, pads_high):
    """A bool Val: every position lies in the unpadded input. None when there is no padding to fall into."""
    inside = None
    for position, size, low, high in zip(positions, sizes, pads_low, pads_high, strict=True):
        for is_padded, test in ((low, lambda p=position: p.ge(0)), (high, lambda p=position, s=size: p.lt(s))):
            if is_padded:
                inside = test() if inside is None else inside & test()
    return inside


def loop_nest(k, counts, init, body):
    """`body(indices, acc) -> acc` for every index in the box `counts`, the last index fastest."""

    def level(done, acc):
        if len(done) == len(counts):
            return body(done, acc)
        if counts[len(done)] == 1:
            return level([*done, k.ix(0)], acc)
        return k.loop(counts[len(done)], acc, lambda i, inner: level([*done, i], inner))

    return level([], init)
