"""Ops that move elements by position alone: views, concat, pad, flip. The views' compile rules are in views.py."""

from __future__ import annotations

import numpy as np

from . import dims
from .op import op
from .types import TensorType


def check_axis(axis: int, rank: int) -> None:
    """Raises ValueError unless `axis` is in [0, rank): axes are never negative in the IR."""
    if not 0 <= axis < rank:
        raise ValueError(f"axis {axis} is not in [0, {rank})")


@op("view")
def reshape(x: T, *, shape: Dims) -> T:
    """The elements of `x` in row-major order, in another shape of as many elements. Source: ONNX Reshape-21."""
    return np.reshape(x, shape)


@reshape.rule("infer")
def _(x, *, shape):
    # Two symbolic products may be equal without looking it, (n//4)*4 and n; only a constant difference proves an error.
    difference = dims.product(shape) - dims.product(x.shape)
    if isinstance(difference, int) and difference != 0:
        raise ValueError(f"{x} has {dims.product(x.shape)} elements, shape {list(shape)} has {dims.product(shape)}")
    return TensorType(x.dtype, tuple(shape))


@op("view")
def transpose(x: T, *, perm: list[int]) -> T:
    """Dimension d of the result is dimension perm[d] of `x`. Source: ONNX Transpose-21."""
    return np.transpose(x, perm)


@transpose.rule("infer")
def _(x, *, perm):
    if sorted(perm) != list(range(x.rank)):
        raise ValueError(f"perm {list(perm)} is no permutation of {x.rank} dimensions")
    return TensorType(x.dtype, tuple(x.shape[p] for p in perm))


@op("view")
def broadcast_to(x: T, *, shape: Dims) -> T:
    """`x` repeated along its dimensions of static size 1 and along new leading ones. Source: ONNX Expand-13."""
    return np.broadcast_to(x, shape)


@broadcast_to.rule("infer")
def _(x, *, shape):
    if len(shape) < x.rank:
        raise ValueError(f"{x} has more dimensions than {list(shape)}")
    for size, wanted in zip(x.shape, shape[len(shape) - x.rank :], strict=True):
        if size not in (1, wanted):
            raise ValueError(f"{x} does not broadcast to {list(shape)}: size {size} is neither 1 nor {wanted}")
    return TensorType(x.dtype, tuple(shape))


@op("view")
def slice_(x: T, *, starts: Dims, limits: Dims, steps: list[int]) -> T:
    """Elements start, start + step, ... before `limit` of every dimension.

    0 <= start <= limit <= size where step > 0; where step < 0 it runs down from start < size and limit may be -1.
    The frontends clamp. Source: ONNX Slice-13; ATen slice.
    """
    ends = [None if step < 0 and limit < 0 else limit for limit, step in zip(limits, steps, strict=True)]
    return x[tuple(slice(*bounds) for bounds in zip(starts, ends, steps, strict=True))]


@slice_.rule("infer")
def _(x, *, starts, limits, steps):
    if not len(starts) == len(limits) == len(steps) == x.rank:
        raise ValueError(f"starts, limits and steps need {x.rank} entries each")
    if 0 in steps:
        raise ValueError("a step is 0")
    counts = []
    for start, limit, step in zip(starts, limits, steps, strict=True):
        count = dims.ceildiv(limit - start, step) if step > 0 else dims.ceildiv(start - limit, -step)
        counts.append(max(count, 0) if isinstance(count, int) else count)
    for start, limit, step, size in zip(starts, limits, steps, x.shape, strict=True):
        high = limit if step > 0 else start + 1
        low = start if step > 0 else limit + 1
        if (isinstance(high - size, int) and high - size > 0) or (isinstance(low, int) and low < 0):
            raise ValueError(f"[{start}:{limit}:{step}] leaves a dimension of size {size}")
    return TensorType(x.dtype, tuple(counts))


@op("gather")
def concat(*xs: T, axis: int) -> T:
    """The operands one after the other along `axis`. Source: ONNX Concat-13."""
    return np.concatenate(xs, axis=axis)


@concat.rule("infer")
def _(*xs, axis):
    if not xs:
        raise ValueError("there is nothing to concatenate")
    check_axis(axis, xs[0].rank)
    for x in xs[1:]:
        if (x.rank, x.shape[:axis], x.shape[axis + 1 :]) != (xs[0].rank, xs[0].shape[:axis], xs[0].shape[axis + 1 :]):
            raise ValueError(f"{x} and {xs[0]} differ outside axis {axis}")
    total = sum((x.shape[axis] for x in xs[1:]), xs[0].shape[axis])
    return TensorType(xs[0].dtype, (*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]))


@concat.rule("at")
def _(k, index, *xs, axis):
    offset: dims.Size = 0
    result = None
    for x in xs:
        size = k.shape(x)[axis]
        inside = index[axis].lt(offset + size)
        if result is not None:
            inside = inside & index[axis].ge(offset)
        with k.masked(inside):
            value = k.read(x, [*index[:axis], index[axis] - offset, *index[axis + 1 :]])
        result = value if result is None else inside.select(value, result)
        offset = offset + size
    return result


_NUMPY_PAD = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@op("gather")
def pad(x: T, *, low: Dims, high: Dims, mode: str = "constant", value: float = 0.0) -> T:
    """`x` with low[d] elements before and high[d] after it in dimension d; never negative.

    mode: "constant" (`value`), "reflect" (the edge not repeated), "replicate" (the edge repeated), "circular".
    Source: ONNX Pad-19; ATen constant_pad_nd, reflection_pad, replication_pad.
    """
    widths = list(zip(low, high, strict=True))
    if mode == "constant":
        return np.pad(x, widths, constant_values=np.asarray(value).astype(x.dtype))
    return np.pad(x, widths, mode=_NUMPY_PAD[mode])


@pad.rule("infer")
def _(x, *, low, high, mode, value):
    if mode not in _NUMPY_PAD:
        raise ValueError(f"mode '{mode}' is none of {', '.join(_NUMPY_PAD)}")
    if not len(low) == len(high) == x.rank:
        raise ValueError(f"low and high need {x.rank} entries each")
    for before, after, size in zip(low, high, x.shape, strict=True):
        for count in (before, after):
            if isinstance(count, int) and count < 0:
                raise ValueError(f"padding {count} is negative: use slice to crop")
            most = {"reflect": size - 1, "circular": size}.get(mode, count)
            if isinstance(count - most, int) and count - most > 0:
                raise ValueError(f"padding {count} is more than {mode} can take from a dimension of size {size}")
    return TensorType(x.dtype, tuple(a + s + b for a, s, b in zip(low, x.shape, high, strict=True)))


@pad.rule("at")
def _(k, index, x, *, low, high, mode, value):
    shape = k.shape(x)
    source = [i - a if a != 0 else i for i, a in zip(index, low, strict=True)]
    padded = [d for d in range(len(shape)) if low[d] != 0 or high[d] != 0]
    if mode != "constant":
        for d in padded:
            source[d] = k.ix(_folded(k, source[d].val("i64"), shape[d], mode))
        return k.read(x, source)
    inside = None
    for d in padded:
        if low[d] != 0:
            inside = source[d].ge(0) if inside is None else inside & source[d].ge(0)
        if high[d] != 0:
            inside = source[d].lt(shape[d]) if inside is None else inside & source[d].lt(shape[d])
    if inside is None:
        return k.read(x, source)
    with k.masked(inside):
        found = k.read(x, source)
    return inside.select(found, k.constant(value, k.dtype(x)))


def _folded(k, position, size, mode):
    """An in-range position for one that may lie outside [0, size), by pad mode."""
    last = k.size_val(size - 1, "i64")
    count = k.size_val(size, "i64")
    if mode == "reflect":
        position = last - (last - position.abs()).abs()
    elif mode == "circular":
        position = position.lt(0).select(position + count, position)
        position = position.ge(count).select(position - count, position)
    return position.maximum(0).minimum(last)  # replicate; for the others memory safety where the sizes are symbolic


@op("gather")
def flip(x: T, *, axes: list[int]) -> T:
    """`x` with the order along each of `axes` reversed. Source: ATen flip; ONNX Slice-13 with step -1."""
    return np.flip(x, axes)


@flip.rule("infer")
def _(x, *, axes):
    for axis in axes:
        check_axis(axis, x.rank)
    return x


@flip.rule("at")
def _(k, index, x, *, axes):
    shape = k.shape(x)
    return k.read(x, [k.ix(shape[d] - 1) - i if d in axes else i for d, i in enumerate(index)])
