"""Pooling over sliding windows and over an output grid of fixed size."""

from __future__ import annotations

import numpy as np

from . import dims
from .matmul import accumulator
from .op import op
from .types import TensorType
from .val import Val, lowest
from .window import (
    channels_back,
    channels_first,
    check_counts,
    in_bounds,
    input_position,
    join_shape,
    loop_nest,
    padded,
    split_shape,
    taps,
    window_counts,
)


def _lowest_of(x: np.ndarray) -> float | int:
    return -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min


def _pooled_type(x, kernel, strides, pads_low, pads_high, dilations, layout):
    batch, channels, spatial = split_shape(x.shape, layout)
    counts = window_counts(spatial, kernel, strides, pads_low, pads_high, dilations)
    return TensorType(x.dtype, join_shape(batch, channels, counts, layout))


def _reader(k, index, x, strides, pads_low, pads_high, dilations, layout):
    """What a window sees: `read(tap) -> (Val, bool Val or None, positions)`, unspecified where the bool is false."""
    batch, channel, position = split_shape(tuple(index), layout)
    _, _, sizes = split_shape(tuple(k.shape(x)), layout)

    def read(tap):
        where = [
            input_position(p, t, s, low, d)
            for p, t, s, low, d in zip(position, tap, strides, pads_low, dilations, strict=True)
        ]
        inside = in_bounds(where, sizes, pads_low, pads_high)
        source = list(join_shape(batch, channel, where, layout))
        if inside is None:
            return k.read(x, source), None, where
        with k.masked(inside):
            return k.read(x, source), inside, where

    return read


@op("contract")
def max_pool(
    x: N[N, C, *S], *, kernel: list[int], strides: list[int], pads_low: list[int], pads_high: list[int],
    dilations: list[int], layout: str = "nchw",
) -> N[N, C, *P]:
    """The largest element of each window; padding never wins, NaN always does.

    Ceil mode is more `pads_high`. Source: ONNX MaxPool-22; ATen max_pool2d.
    """
    first = channels_first(x, layout)
    counts = window_counts(first.shape[2:], kernel, strides, pads_low, pads_high, dilations)
    wide = padded(first, pads_low, pads_high, _lowest_of(first))
    result = np.full((*first.shape[:2], *counts), _lowest_of(first), x.dtype)
    for _, seen in taps(wide, counts, kernel, strides, dilations):
        result = np.maximum(result, seen)
    return channels_back(result, layout)


@max_pool.rule("infer")
def _(x, *, kernel, strides, pads_low, pads_high, dilations, layout):
    return _pooled_type(x, kernel, strides, pads_low, pads_high, dilations, layout)


@max_pool.rule("at")
def _(k, index, x, *, kernel, strides, pads_low, pads_high, dilations, layout):
    read = _reader(k, index, x, strides, pads_low, pads_high, dilations, layout)
    least = k.constant(lowest(k.dtype(x)), k.dtype(x))

    def step(tap, acc):
        seen, inside, _ = read(tap)
        return [acc[0].maximum(seen if inside is None else inside.select(seen, least))]

    return loop_nest(k, kernel, [k.splat(least)], step)[0]


@op("contract")
def max_pool_indices(
    x: N[N, C, *S], *, kernel: list[int], strides: list[int], pads_low: list[int], pads_high: list[int],
    dilations: list[int], layout: str = "nchw",
) -> i64[N, C, *P]:
    """Where `max_pool` found its element: row-major position in the unpadded spatial dimensions; the first of equals.

    Source: ATen max_pool2d_with_indices.
    """
    first = channels_first(x, layout)
    sizes = first.shape[2:]
    counts = window_counts(sizes, kernel, strides, pads_low, pads_high, dilations)
    places = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(1, 1, *sizes)
    wide, places = padded(first, pads_low, pads_high, 0), padded(places, pads_low, pads_high, -1)
    best = np.zeros((*first.shape[:2], *counts), x.dtype)
    found = np.full(best.shape, -1, np.int64)
    pairs = zip(
        taps(wide, counts, kernel, strides, dilations), taps(places, counts, kernel, strides, dilations), strict=True
    )
    for (_, seen), (_, place) in pairs:
        wins = (place >= 0) & ((found < 0) | (seen > best) | (seen != seen))
        best, found = np.where(wins, seen, best), np.where(wins, place, found)
    return channels_back(found, layout)


@max_pool_indices.rule("infer")
def _(x, *, kernel, strides, pads_low, pads_high, dilations, layout):
    pooled = _pooled_type(x, kernel, strides, pads_low, pads_high, dilations, layout)
    return TensorType("i64", pooled.shape)


@max_pool_indices.rule("at")
def _(k, index, x, *, kernel, strides, pads_low, pads_high, dilations, layout):
    read = _reader(k, index, x, strides, pads_low, pads_high, dilations, layout)
    _, _, sizes = split_shape(tuple(k.shape(x)), layout)

    def step(tap, acc):
        best, found = acc
        seen, inside, where = read(tap)
        wins = seen.gt(best) | found.lt(0)
        wins = wins | seen.is_nan() if seen.is_float else wins
        wins = wins if inside is None else wins & inside
        place = where[0]
        for position, size in zip(where[1:], sizes[1:], strict=True):
            place = place * size + position
        return [wins.select(seen, best), wins.select(place.val("i64"), found)]

    init = [k.splat(k.constant(0, k.dtype(x))), k.splat(k.constant(-1, "i64"))]
    return loop_nest(k, kernel, init, step)[1]


@op("composite")
def max_pool_with_indices(
    x: N[N, C, *S], *, kernel: list[int], strides: list[int], pads_low: list[int], pads_high: list[int],
    dilations: list[int], layout: str = "nchw",
) -> tuple[N[N, C, *P], i64[N, C, *P]]:
    """`max_pool` and `max_pool_indices` of the same windows. Source: ATen max_pool2d_with_indices."""
    given = dict(
        kernel=kernel, strides=strides, pads_low=pads_low, pads_high=pads_high, dilations=dilations, layout=layout
    )
    return max_pool.reference(x, **given), max_pool_indices.reference(x, **given)


@max_pool_with_indices.rule("infer")
def _(x, *, kernel, strides, pads_low, pads_high, dilations, layout):
    pooled = _pooled_type(x, kernel, strides, pads_low, pads_high, dilations, layout)
    return [pooled, TensorType("i64", pooled.shape)]


@max_pool_with_indices.rule("lower")
def _(g, x, **attrs):
    return g.max_pool(x, **attrs), g.max_pool_indices(x, **attrs)


@op("contract")
def avg_pool(
    x: F[N, C, *S], *, kernel: list[int], strides: list[int], pads_low: list[int], pads_high: list[int],
    dilations: list[int] = (), ceil_high: list[int] = (), count_include_pad: bool = False, layout: str = "nchw",
) -> F[N, C, *P]:
    """The mean of each window, over its elements in `x` or, with `count_include_pad`, in `x` and its padding.

    Ceil mode is `ceil_high`: padding past `pads_high` that makes room for windows but is never counted. No dilations
    are ones. Accumulates in f32 for f16 and bf16. Source: ONNX AveragePool-22; ATen avg_pool2d.
    """
    first = channels_first(x, layout)
    dilations, highs = _filled(kernel, pads_high, dilations, ceil_high)
    counts = window_counts(first.shape[2:], kernel, strides, pads_low, highs, dilations)
    wide = padded(first.astype(accumulator(x.dtype), copy=False), pads_low, highs, 0)
    inner = [(0, 0)] * len(kernel) if count_include_pad else list(zip(pads_low, pads_high, strict=True))
    both = zip(first.shape[2:], pads_low, pads_high, inner, strict=True)
    sizes = [size + low + high - a - b for size, low, high, (a, b) in both]
    edges = [(a, high - (pad - b)) for (a, b), high, pad in zip(inner, highs, pads_high, strict=True)]
    counted = np.pad(np.ones((1, 1, *sizes), wide.dtype), [(0, 0), (0, 0), *edges])
    total = sum(seen for _, seen in taps(wide, counts, kernel, strides, dilations))
    divisor = sum(seen for _, seen in taps(counted, counts, kernel, strides, dilations))
    return channels_back((total / divisor).astype(x.dtype), layout)


def _filled(kernel, pads_high, dilations, ceil_high):
    """Dilations and high padding with the empty defaults spelled out."""
    check_counts(len(kernel), pads_high=pads_high, dilations=dilations or kernel, ceil_high=ceil_high or kernel)
    extra = ceil_high or [0] * len(kernel)
    return list(dilations or [1] * len(kernel)), [a + b for a, b in zip(pads_high, extra, strict=True)]


@avg_pool.rule("infer")
def _(x, *, kernel, strides, pads_low, pads_high, dilations, ceil_high, count_include_pad, layout):
    dilations, highs = _filled(kernel, pads_high, dilations, ceil_high)
    return _pooled_type(x, kernel, strides, pads_low, highs, dilations, layout)


@avg_pool.rule("at")
def _(k, index, x, *, kernel, strides, pads_low, pads_high, dilations, ceil_high, count_include_pad, layout):
    dilations, highs = _filled(kernel, pads_high, dilations, ceil_high)
    read = _reader(k, index, x, strides, pads_low, highs, dilations, layout)
    _, _, position = split_shape(tuple(index), layout)
    _, _, sizes = split_shape(tuple(k.shape(x)), layout)
    dtype = k.dtype(x)
    zero = k.constant(0, dtype)

    def step(tap, acc):
        seen, inside, _ = read(tap)
        return [acc[0] + (seen if inside is None else inside.select(seen, zero))]

    total = loop_nest(k, kernel, [k.splat(zero)], step)[0]
    constant, counted = 1, None
    for d, extent in enumerate(kernel):
        low, high = (pads_low[d], highs[d] - pads_high[d]) if count_include_pad else (0, highs[d])
        if (count_include_pad or not pads_low[d]) and high == 0:
            constant *= extent
            continue
        start = position[d] * strides[d] - pads_low[d]
        limit = sizes[d] + (pads_high[d] if count_include_pad else 0)
        # Taps before `limit`, less taps before -low; a negative quotient clamps to 0 whichever way it rounds.
        before_limit = ((k.ix(limit) - start + (dilations[d] - 1)) // dilations[d]).val("i64").minimum(extent)
        before_low = ((k.ix(-low) - start + (dilations[d] - 1)) // dilations[d]).val("i64").maximum(0)
        count = before_limit - before_low
        counted = count if counted is None else counted * count
    if counted is None:
        return total / k.constant(constant, dtype)
    wide = "f64" if dtype == "f64" else "f32"
    return total / Val((counted * constant).cast(wide).value, dtype)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _adaptive(x: np.ndarray, output, layout: str, reduce) -> np.ndarray:
    result = channels_first(x, layout)
    for axis, count in enumerate(output, start=2):
        parts = [
            reduce(result[(slice(None),) * axis + (slice(*bounds),)], axis=axis, keepdims=True)
            for bounds in _bins(result.shape[axis], count)
        ]
        result = np.concatenate(parts, axis=axis)
    return channels_back(result, layout)


def _adaptive_type(x, output, layout):
    batch, channels, spatial = split_shape(x.shape, layout)
    check_counts(len(spatial), output=output)
    return TensorType(x.dtype, join_shape(batch, channels, output, layout))


def _adaptive_at(k, index, x, output, layout, init, combine):
    """Folds each bin with `combine(acc, seen)`; returns the fold and the number of elements in the bin (Val, i64)."""
    batch, channel, position = split_shape(tuple(index), layout)
    _, _, sizes = split_shape(tuple(k.shape(x)), layout)
    starts, limits, most = [], [], []
    for p, size, count in zip(position, sizes, output, strict=True):
        whole = isinstance(size, int) and isinstance(count, int) and size % count == 0
        starts.append(p * (size // count) if whole else p * size // count)
        limits.append(None if whole else ((p + 1) * size + (count - 1)) // count)
        # A bin starts up to one element early and ends up to one late.
        most.append(size // count if whole else dims.ceildiv(size, count) + 1)

    def step(at, acc):
        where = [start + i for start, i in zip(starts, at, strict=True)]
        inside = None
        for place, limit in zip(where, limits, strict=True):
            if limit is not None:
                inside = place.lt(limit) if inside is None else inside & place.lt(limit)
        source = list(join_shape(batch, channel, where, layout))
        if inside is None:
            return [combine(acc[0], k.read(x, source))]
        with k.masked(inside):
            seen = k.read(x, source)
        return [combine(acc[0], inside.select(seen, init))]

    total = loop_nest(k, most, [k.splat(init)], step)[0]
    elements = None
    for start, limit, extent in zip(starts, limits, most, strict=True):
        count = k.constant(extent, "i64") if limit is None else (limit - start).val("i64")
        elements = count if elements is None else elements * count
    return total, elements


@op("contract")
def adaptive_avg_pool(x: F[N, C, *S], *, output: Dims, layout: str = "nchw") -> F[N, C, *P]:
    """The mean of each of `output` bins of every spatial dimension; bin i is [floor(i S/P), ceil((i+1) S/P)).

    Accumulates in f32 for f16 and bf16. Source: ATen adaptive_avg_pool2d.
    """
    wide = x.astype(accumulator(x.dtype), copy=False)
    return _adaptive(wide, output, layout, np.mean).astype(x.dtype)


@adaptive_avg_pool.rule("infer")
def _(x, *, output, layout):
    return _adaptive_type(x, output, layout)


@adaptive_avg_pool.rule("at")
def _(k, index, x, *, output, layout):
    dtype = k.dtype(x)
    zero = k.constant(0, dtype)
    total, elements = _adaptive_at(k, index, x, output, layout, zero, lambda acc, seen: acc + seen)
    return total / Val(elements.cast("f64" if dtype == "f64" else "f32").value, dtype)


@op("contract")
def adaptive_max_pool(x: N[N, C, *S], *, output: Dims, layout: str = "nchw") -> N[N, C, *P]:
    """The largest element of each of `output` bins (see adaptive_avg_pool). Source: ATen adaptive_max_pool2d."""
    return _adaptive(x, output, layout, np.max)


@adaptive_max_pool.rule("infer")
def _(x, *, output, layout):
    return _adaptive_type(x, output, layout)


@adaptive_max_pool.rule("at")
def _(k, index, x, *, output, layout):
    least = k.constant(lowest(k.dtype(x)), k.dtype(x))
    return _adaptive_at(k, index, x, output, layout, least, lambda acc, seen: acc.maximum(seen))[0]
