"""Sampling between the elements: resize to other spatial sizes, and grid_sample at given positions.

Positions are computed in f32, in reference and compiled code alike, as PyTorch and ONNX Runtime do: where a position
falls on a tie between two elements, exact arithmetic would pick another neighbour than they do.
"""

from __future__ import annotations

import itertools

import numpy as np

from . import dims
from .matmul import accumulator
from .op import op
from .types import DTYPES, TensorType
from .val import Val
from .window import check_counts, join_shape, loop_nest, split_shape

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
_REACH = {"linear": 1, "cubic": 2}  # elements on either side of a position that have weight in it


def _cubic(distance, a: float, where):
    """Keys' kernel at |distance|; `where(condition, yes, no)` and `<=` come from the caller's arithmetic."""
    near = ((distance * (a + 2) - (a + 3)) * distance) * distance + 1
    far = ((distance * a - 5 * a) * distance + 8 * a) * distance - 4 * a
    return where(distance, 1, near, where(distance, 2, far, far * 0))


def _triangle(distance, a: float, where):
    return where(distance, 1, 1 - distance, distance * 0)


_FILTERS = {"linear": _triangle, "cubic": _cubic}


def _numpy_where(distance, bound, yes, no):
    return np.where(distance <= bound, yes, no)


def _numpy_source(size: int, count: int, scale: float | None, coordinate: str) -> np.ndarray:
    target = np.arange(count, dtype=np.float32)
    if (coordinate == "align_corners" or coordinate == "pytorch_half_pixel") and count == 1:
        return np.zeros(1, np.float32)
    if coordinate == "align_corners":
        return target * np.float32((size - 1) / (count - 1))
    offset = np.float32(0.5 if "half_pixel" in coordinate else 0)
    moved = target + offset
    # ONNX divides by the scale and PyTorch multiplies by the sizes' ratio; at ties the two round differently.
    return (moved / np.float32(scale) if scale else moved * np.float32(size / count)) - offset


def _numpy_nearest(source: np.ndarray, nearest: str) -> np.ndarray:
    half = np.float32(0.5)
    rounded = {
        "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda s: np.ceil(s - half),
        "round_prefer_ceil": lambda s: np.floor(s + half),
    }[nearest](source)
    return rounded.astype(np.int64)


def _numpy_taps(source, size, stretch, mode, cubic_coeff_a, exclude_outside, clamps):
    """Element indices and weights [count, taps] of each source position; `stretch` >= 1 widens the filter."""
    reach = _REACH[mode] * stretch
    if clamps:
        source = np.clip(source, 0, size - 1)
    first = np.ceil(source - np.float32(reach)) if stretch > 1 else np.floor(source) - (_REACH[mode] - 1)
    indices = first[:, None].astype(np.int64) + np.arange(int(np.ceil(2 * reach)) + (stretch > 1))
    distance = np.abs(indices.astype(np.float32) - source[:, None]) * np.float32(1 / stretch)
    weights = _FILTERS[mode](distance, np.float32(cubic_coeff_a), _numpy_where).astype(np.float32)
    if exclude_outside:
        weights = np.where((indices >= 0) & (indices < size), weights, 0)
    if exclude_outside or stretch > 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(indices, 0, size - 1), weights


def _scale_of(scales, d: int) -> float | None:
    return scales[d] if scales else None


@op("gather")
def resize(
    x: N[N, C, *S], *, sizes: Dims, mode: str, coordinate: str = "half_pixel", nearest: str = "floor",
    scales: list[float] = (), cubic_coeff_a: float = -0.75, antialias: bool = False, exclude_outside: bool = False,
    layout: str = "nchw",
) -> N[N, C, *P]:
    """`x` sampled at `sizes` evenly spread positions of each spatial dimension.

    coordinate: where target i lies in the source, with r = 1/scale, or source size / target size without `scales`:
    "half_pixel" (i + 1/2) r - 1/2; "asymmetric" i r; "align_corners" i (source - 1)/(target - 1);
    "pytorch_half_pixel" as half_pixel, 0 for a target of one. nearest: how a position is rounded to an element.
    Elements outside are the nearest edge, or with `exclude_outside` have no weight. `antialias` widens the filter when
    shrinking (linear, cubic), and has no weight outside. Weights are f32. Source: ONNX Resize-19; ATen upsample_*.
    """
    first = x if layout == "nchw" else np.moveaxis(x, -1, 1)
    result = first if mode == "nearest" else first.astype(accumulator(x.dtype), copy=False)
    for d, count in enumerate(sizes):
        axis, size, scale = d + 2, first.shape[d + 2], _scale_of(scales, d)
        if size == count and (scale is None or scale == 1):
            continue
        source = _numpy_source(size, count, scale, coordinate)
        if mode == "nearest":
            result = np.take(result, np.clip(_numpy_nearest(source, nearest), 0, size - 1), axis=axis)
            continue
        shrink = 1 / scale if scale else size / count
        stretch = max(shrink, 1.0) if antialias else 1.0
        indices, weights = _numpy_taps(
            source, size, stretch, mode, cubic_coeff_a, exclude_outside or antialias,
            mode == "linear" and not (exclude_outside or antialias),
        )
        spread = (-1, *[1] * (result.ndim - axis - 1))
        result = sum(
            np.take(result, indices[:, t], axis=axis) * weights[:, t].reshape(spread).astype(result.dtype)
            for t in range(indices.shape[1])
        )
    return (result if layout == "nchw" else np.moveaxis(result, 1, -1)).astype(x.dtype, copy=False)


@resize.rule("infer")
def _(x, *, sizes, mode, coordinate, nearest, scales, cubic_coeff_a, antialias, exclude_outside, layout):
    batch, channels, spatial = split_shape(x.shape, layout)
    check_counts(len(spatial), sizes=sizes, scales=scales or spatial)
    for name, value, known in (
        ("mode", mode, MODES), ("coordinate", coordinate, COORDINATES), ("nearest", nearest, NEAREST)
    ):
        if value not in known:
            raise ValueError(f"{name} '{value}' is none of {', '.join(known)}")
    if mode != "nearest" and not DTYPES[x.dtype].is_float:
        raise ValueError(f"x is {x}: mode '{mode}' needs a float")
    return TensorType(x.dtype, join_shape(batch, channels, sizes, layout))


def _where(distance: Val, bound, yes: Val, no: Val) -> Val:
    return distance.le(bound).select(yes, no)


def _whole_upscale(size, count) -> int | None:
    """count / size where that is a whole number whatever the symbols are."""
    ratio = dims.floordiv(count, size) if size != 0 else 0
    return ratio if isinstance(ratio, int) and ratio > 0 and size * ratio == count else None


def _ratio(k, size, count) -> Val | float:
    """size / count in f32: a number where it is known."""
    whole = _whole_upscale(size, count)
    if whole is not None:
        return 1 / whole
    if isinstance(size, int) and isinstance(count, int):
        return size / count
    return Val((k.size_val(size, "i64").cast("f32") / k.size_val(count, "i64").cast("f32")).value, "f32")


def _source(k, target, size, count, scale, coordinate) -> Val:
    """The source position of target index `target` (an Ix), f32."""
    position = target.val("i64").cast("f32")
    if coordinate == "align_corners":
        if count == 1:
            return position * 0.0
        most = count - 1 if isinstance(count, int) else dims.maximum(count - 1, 1)
        return position * _ratio(k, size - 1, most)
    offset = 0.5 if "half_pixel" in coordinate else 0.0
    moved = position + offset if offset else position
    result = moved / scale if scale else moved * _ratio(k, size, count)
    result = result - offset if offset else result
    if coordinate == "pytorch_half_pixel" and count == 1:
        return result * 0.0
    if coordinate == "pytorch_half_pixel" and not isinstance(count, int):
        return k.size_val(count, "i64").eq(1).select(result * 0.0, result)
    return result


def _rounded(source: Val, nearest: str) -> Val:
    return {
        "floor": lambda: source.floor(), "ceil": lambda: source.ceil(),
        "round_prefer_floor": lambda: (source - 0.5).ceil(), "round_prefer_ceil": lambda: (source + 0.5).floor(),
    }[nearest]().cast("i64")


def _clamped(k, position: Val, size):
    return k.ix(position.maximum(0).minimum(k.size_val(size - 1, "i64")))


def _nearest_index(k, target, size, count, scale, coordinate, nearest):
    """The source index of `target`, by integer arithmetic where an upscale by a whole number makes that the same."""
    whole = _whole_upscale(size, count)
    # (i + 1/2) / whole is never halfway, so both roundings to nearest agree.
    is_plain = (coordinate, nearest) == ("asymmetric", "floor") or (coordinate == "half_pixel" and "round" in nearest)
    if is_plain and whole is not None and scale in (None, whole):
        return target // whole
    return _clamped(k, _rounded(_source(k, target, size, count, scale, coordinate), nearest), size)


def _is_kept(size, count, scale) -> bool:
    return size == count and (scale is None or scale == 1)


def _axis_taps(k, target, size, count, scale, coordinate, mode, cubic_coeff_a, exclude_outside):
    """[(source index, f32 weight)] along one axis; the weight None where the axis keeps its size."""
    if _is_kept(size, count, scale):
        return [(target, None)]
    source = _source(k, target, size, count, scale, coordinate)
    last = k.size_val(size - 1, "i64")
    if mode == "linear" and not exclude_outside:
        source = source.maximum(0.0).minimum(last.cast("f32"))
    base = source.floor()
    fraction, first = source - base, base.cast("i64")
    reach = _REACH[mode]
    pairs = []
    for t in range(1 - reach, reach + 1):
        distance = (fraction - float(t)).abs()
        weight = _FILTERS[mode](distance, cubic_coeff_a, _where)
        place = first + t
        if exclude_outside:
            weight = (place.ge(0) & place.le(last)).select(weight, weight * 0.0)
        pairs.append((_clamped(k, place, size), weight))
    if exclude_outside:
        total = pairs[0][1]
        for _, weight in pairs[1:]:
            total = total + weight
        pairs = [(place, weight / total) for place, weight in pairs]
    return pairs


@resize.rule("at")
def _(k, index, x, *, sizes, mode, coordinate, nearest, scales, cubic_coeff_a, antialias, exclude_outside, layout):
    batch, channel, target = split_shape(tuple(index), layout)
    _, _, spatial = split_shape(tuple(k.shape(x)), layout)
    axes = [(t, s, c, _scale_of(scales, d)) for d, (t, s, c) in enumerate(zip(target, spatial, sizes, strict=True))]
    if mode == "nearest":
        where = [
            t if _is_kept(s, c, r) else _nearest_index(k, t, s, c, r, coordinate, nearest) for t, s, c, r in axes
        ]
        return k.read(x, list(join_shape(batch, channel, where, layout)))
    dtype = k.dtype(x)
    wide = "f64" if dtype == "f64" else "f32"
    if antialias:
        total = _antialiased(k, (batch, channel), x, axes, coordinate, mode, cubic_coeff_a, layout, wide)
        return total.cast(dtype)
    per_axis = [_axis_taps(k, *axis, coordinate, mode, cubic_coeff_a, exclude_outside) for axis in axes]
    total = None
    for taps in itertools.product(*per_axis):
        term = k.read(x, list(join_shape(batch, channel, [place for place, _ in taps], layout))).cast(wide)
        for _, weight in taps:
            term = term if weight is None else term * weight.cast(wide)
        total = term if total is None else total + term
    return total.cast(dtype)


def _antialiased(k, outer, x, axes, coordinate, mode, cubic_coeff_a, layout, wide):
    """Sums every element in reach of the widened filter, one loop an axis, and divides by the weights' sum."""
    sources, stretches, counts = [], [], []
    for target, size, count, scale in axes:
        stretch = 1 / scale if scale else _ratio(k, size, count)
        stretch = max(stretch, 1.0) if isinstance(stretch, float) else stretch.maximum(1.0)
        if isinstance(stretch, float):
            counts.append(int(np.ceil(2 * _REACH[mode] * stretch)) + 1)
        else:
            counts.append(dims.ceildiv(dims.maximum(size, count) * (2 * _REACH[mode]), count) + 1)
        sources.append(_source(k, target, size, count, scale, coordinate))
        stretches.append(stretch)
    firsts = [(s - stretch * float(_REACH[mode])).ceil().cast("i64") if isinstance(stretch, Val)
              else (s - float(_REACH[mode] * stretch)).ceil().cast("i64")
              for s, stretch in zip(sources, stretches, strict=True)]

    def step(at, acc):
        weight, where, inside = None, [], None
        for i, first, source, stretch, (_, size, _, _) in zip(at, firsts, sources, stretches, axes, strict=True):
            place = first + i.val("i64")
            inverse = 1.0 / stretch if isinstance(stretch, float) else stretch.like(1.0) / stretch
            one = _FILTERS[mode]((place.cast("f32") - source).abs() * inverse, cubic_coeff_a, _where)
            weight = one if weight is None else weight * one
            test = place.ge(0) & place.lt(k.size_val(size, "i64"))
            inside = test if inside is None else inside & test
            where.append(k.ix(place))
        with k.masked(inside):
            seen = k.read(x, list(join_shape(*outer, where, layout))).cast(wide)
        weight = inside.select(weight, weight * 0.0).cast(wide)
        seen = inside.select(seen, seen.like(0.0))
        return [seen.fma(weight, acc[0]), acc[1] + weight]

    zero = k.splat(k.constant(0, wide))
    total, weights = loop_nest(k, counts, [zero, zero], step)
    return total / weights


GRID_PADDING = ("zeros", "border", "reflection")


def _unnormalised(position, size, align_corners: bool):
    """A grid coordinate in [-1, 1] as an element position; numpy or Val arithmetic."""
    if align_corners:
        return (position + 1.0) * ((size - 1) * 0.5)
    return ((position + 1.0) * size - 1.0) * 0.5


def _reflected(position: np.ndarray, size: int, align_corners: bool) -> np.ndarray:
    """Folded back at the centres (align_corners) or the outer edges of the first and last element, into range."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return np.zeros_like(position)
    distance = np.abs(position - low)
    turns = np.floor(distance / span)
    rest = distance - turns * span
    return np.clip(np.where(turns % 2 == 0, rest + low, span - rest + low), 0, size - 1)


def _padded_position(position: np.ndarray, size: int, padding_mode: str, align_corners: bool) -> np.ndarray:
    if padding_mode == "border":
        return np.clip(position, 0, size - 1)
    return _reflected(position, size, align_corners) if padding_mode == "reflection" else position


@op("gather")
def grid_sample(
    x: F[N, C, *S], grid: F[N, *Q], *, mode: str = "linear", padding_mode: str = "zeros", align_corners: bool = False
) -> F[N, C, *P]:
    """`x` [N, C, *S] sampled at the positions `grid` [N, *P, rank of S], whose last dimension runs from the last of S.

    Coordinates -1 and 1 are the outer edges of `x`, or with `align_corners` the centres of its first and last elements.
    mode: "nearest" (half to even), "linear", "cubic" (two spatial dimensions, a = -0.75). padding_mode: "zeros",
    "border", "reflection". Source: ATen grid_sampler; ONNX GridSample-20.
    """
    wide = accumulator(x.dtype)
    sizes = x.shape[2:]
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * len(sizes))
    places = [
        _unnormalised(grid[..., len(sizes) - 1 - d].astype(wide), wide.type(size), align_corners)
        for d, size in enumerate(sizes)
    ]
    if mode != "cubic":
        places = [_padded_position(p, s, padding_mode, align_corners) for p, s in zip(places, sizes, strict=True)]
    if mode == "nearest":
        taps = [[(np.rint(p), 1.0)] for p in places]
    else:
        reach, taps = _REACH[mode], []
        for place in places:
            base = np.floor(place)
            shifts = range(1 - reach, reach + 1)
            taps.append([(base + t, _FILTERS[mode](np.abs(place - base - t), -0.75, _numpy_where)) for t in shifts])
    total = np.zeros((x.shape[0], *grid.shape[1:-1], x.shape[1]), wide)
    for corner in itertools.product(*taps):
        at = [p for p, _ in corner]
        if mode == "cubic":
            at = [_padded_position(p, s, padding_mode, align_corners) for p, s in zip(at, sizes, strict=True)]
        inside = np.logical_and.reduce([(p >= 0) & (p < s) for p, s in zip(at, sizes, strict=True)])
        index = tuple(np.where(inside, p, 0).astype(np.int64) for p in at)
        seen = x[(batch, slice(None), *index)].astype(wide)
        weight = np.where(inside, np.prod(np.broadcast_arrays(*[w for _, w in corner]), axis=0), 0)
        total += np.where(inside[..., None], seen, 0) * weight[..., None].astype(wide)
    return np.moveaxis(total, -1, 1).astype(x.dtype)


@grid_sample.rule("infer")
def _(x, grid, *, mode, padding_mode, align_corners):
    batch, channels, spatial = split_shape(x.shape, "nchw")
    if grid.rank != x.rank or grid.shape[-1] != len(spatial):
        raise ValueError(f"grid is {grid}, expected rank {x.rank} and a last size of {len(spatial)}")
    for name, value, known in (("mode", mode, MODES), ("padding_mode", padding_mode, GRID_PADDING)):
        if value not in known:
            raise ValueError(f"{name} '{value}' is none of {', '.join(known)}")
    if mode == "cubic" and len(spatial) != 2:
        raise ValueError("cubic needs two spatial dimensions")
    return TensorType(x.dtype, (batch, channels, *grid.shape[1:-1]))


def _padded_val(k, position: Val, size, padding_mode: str, align_corners: bool) -> Val:
    if padding_mode == "zeros":
        return position
    last = k.size_val(size - 1, "i64").cast(position.dtype)
    if padding_mode == "reflection":
        low = 0.0 if align_corners else -0.5
        # A span of 0 (one element, corners aligned) would divide by zero; any span then clamps to element 0.
        span = (last if align_corners else k.size_val(size, "i64").cast(position.dtype)).maximum(0.5)
        distance = (position - low).abs()
        turns = (distance / span).floor()
        rest = distance - turns * span
        is_even = (turns - (turns * 0.5).floor() * 2.0).eq(0.0)
        position = is_even.select(rest, span - rest) + low
    return position.maximum(0.0).minimum(last)


@grid_sample.rule("at")
def _(k, index, x, grid, *, mode, padding_mode, align_corners):
    batch, channel, target = split_shape(tuple(index), "nchw")
    _, _, sizes = split_shape(tuple(k.shape(x)), "nchw")
    wide = "f64" if k.dtype(x) == "f64" else "f32"

    def settled(position, size):
        return _padded_val(k, position, size, padding_mode, align_corners)

    taps = []
    for d, size in enumerate(sizes):
        raw = k.read(grid, [batch, *target, k.ix(len(sizes) - 1 - d)])
        place = _unnormalised(Val(raw.value, wide), k.size_val(size, "i64").cast(wide), align_corners)
        if mode == "nearest":
            taps.append([(settled(place, size).round_even(), None)])
            continue
        place = place if mode == "cubic" else settled(place, size)
        base = place.floor()
        one_axis = []
        for t in range(1 - _REACH[mode], _REACH[mode] + 1):
            weight = _FILTERS[mode]((place - base - float(t)).abs(), -0.75, _where)
            one_axis.append((settled(base + float(t), size) if mode == "cubic" else base + float(t), weight))
        taps.append(one_axis)
    total = None
    for corner in itertools.product(*taps):
        places = [place.cast("i64") for place, _ in corner]
        inside = None
        for place, size in zip(places, sizes, strict=True):
            test = place.ge(0) & place.lt(k.size_val(size, "i64"))
            inside = test if inside is None else inside & test
        with k.masked(inside):
            seen = Val(k.read(x, [batch, channel, *(k.ix(p) for p in places)]).value, wide)
        term = seen
        for _, weight in corner:
            term = term if weight is None else term * weight
        term = inside.select(term, term.like(0.0))
        total = term if total is None else total + term
    return Val(total.value, k.dtype(x))
