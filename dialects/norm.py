"""Normalisations: softmax, layer, RMS and group norm, each with its meaning in simpler ops."""

from __future__ import annotations

import numpy as np

from . import dims
from .matmul import accumulator
from .op import op
from .shape import check_axis
from .types import DTYPES
from .window import channels_back, channels_first, split_shape


def widened(g, x):
    """`x` in f32 if it is a narrow float, so that parts that land in different kernels do not round between."""
    return g.cast(x, dtype="f32") if DTYPES[x.dtype].is_narrow_float else x


def narrowed(g, x, dtype: str):
    """The inverse of `widened`."""
    return x if x.dtype == dtype else g.cast(x, dtype=dtype)


def _shifted(x: np.ndarray, axis: int) -> np.ndarray:
    wide = x.astype(accumulator(x.dtype), copy=False)
    return wide - wide.max(axis=axis, keepdims=True)


@op("composite")
def softmax(x: F[*S], *, axis: int) -> F[*S]:
    """exp(x) over its sum along `axis`, computed in f32 for f16 and bf16. A row of -inf only gives NaN.

    Source: ONNX Softmax-13; ATen softmax.
    """
    powers = np.exp(_shifted(x, axis))
    return (powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype)


@softmax.rule("infer")
def _(x, *, axis):
    check_axis(axis, x.rank)
    return x


@softmax.rule("lower")
def _(g, x, *, axis):
    wide = widened(g, x)
    powers = g.exp_nonpositive(g.sub(wide, g.max(wide, axes=[axis], keepdims=True)))
    # One division a row: an element's would take longer than its exponential.
    return narrowed(g, g.mul(powers, g.reciprocal(g.sum(powers, axes=[axis], keepdims=True))), x.dtype)


@op("composite")
def log_softmax(x: F[*S], *, axis: int) -> F[*S]:
    """log(softmax(x)) along `axis` without leaving the range of exp. Source: ONNX LogSoftmax-13; ATen log_softmax."""
    shifted = _shifted(x, axis)
    return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))).astype(x.dtype)


@log_softmax.rule("infer")
def _(x, *, axis):
    check_axis(axis, x.rank)
    return x


@log_softmax.rule("lower")
def _(g, x, *, axis):
    wide = widened(g, x)
    shifted = g.sub(wide, g.max(wide, axes=[axis], keepdims=True))
    return narrowed(g, g.sub(shifted, g.log(g.sum(g.exp_nonpositive(shifted), axes=[axis], keepdims=True))), x.dtype)


def _check_scale(x, axis: int, **scales) -> None:
    check_axis(axis, x.rank)
    for name, scale in scales.items():
        if scale is not None and scale.shape != x.shape[axis:]:
            raise ValueError(f"{name} is {scale}, expected the sizes {list(x.shape[axis:])} of x from axis {axis}")


@op("composite")
def layer_norm(x: F[*S], weight: F = None, bias: F = None, *, axis: int, epsilon: float) -> F[*S]:
    """(x - mean) / sqrt(variance + epsilon) over the dimensions axis.., times `weight`, plus `bias`.

    `weight` and `bias` have the sizes of those dimensions. Computed in f32 for f16 and bf16.
    Source: ONNX LayerNormalization-17; ATen layer_norm.
    """
    axes = tuple(range(axis, x.ndim))
    wide = x.astype(accumulator(x.dtype), copy=False)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + wide.dtype.type(epsilon))
    result = result if weight is None else result * weight.astype(wide.dtype)
    return (result if bias is None else result + bias.astype(wide.dtype)).astype(x.dtype)


@layer_norm.rule("infer")
def _(x, weight, bias, *, axis, epsilon):
    _check_scale(x, axis, weight=weight, bias=bias)
    return x


def _mean(g, wide, stages: list[list[int]]):
    """The mean over the axes of one stage after another."""
    for axes in stages:
        wide = g.mean(wide, axes=axes, keepdims=True)
    return wide


def _normalised(g, wide, stages: list[list[int]], epsilon: float):
    centred = g.sub(wide, _mean(g, wide, stages))
    variance = _mean(g, g.mul(centred, centred), stages)
    return g.mul(centred, g.rsqrt(g.add(variance, g.scalar(epsilon, wide.dtype))))


@layer_norm.rule("lower")
def _(g, x, weight, bias, *, axis, epsilon):
    result = _normalised(g, widened(g, x), [list(range(axis, len(x.shape)))], epsilon)
    result = result if weight is None else g.mul(result, widened(g, weight))
    return narrowed(g, result if bias is None else g.add(result, widened(g, bias)), x.dtype)


@op("composite")
def rms_norm(x: F[*S], weight: F = None, *, axis: int, epsilon: float) -> F[*S]:
    """x / sqrt(mean(x^2) + epsilon) over the dimensions axis.., times `weight`; computed in f32 for f16 and bf16.

    Source: Zhang & Sennrich 2019, eq. 4; ONNX RMSNormalization-23.
    """
    wide = x.astype(accumulator(x.dtype), copy=False)
    square = np.square(wide).mean(axis=tuple(range(axis, x.ndim)), keepdims=True)
    result = wide / np.sqrt(square + wide.dtype.type(epsilon))
    return (result if weight is None else result * weight.astype(wide.dtype)).astype(x.dtype)


@rms_norm.rule("infer")
def _(x, weight, *, axis, epsilon):
    _check_scale(x, axis, weight=weight)
    return x


@rms_norm.rule("lower")
def _(g, x, weight, *, axis, epsilon):
    wide = widened(g, x)
    square = g.mean(g.mul(wide, wide), axes=list(range(axis, len(x.shape))), keepdims=True)
    result = g.mul(wide, g.rsqrt(g.add(square, g.scalar(epsilon, wide.dtype))))
    return narrowed(g, result if weight is None else g.mul(result, widened(g, weight)), x.dtype)


@op("composite")
def group_norm(
    x: F[*S], weight: F[C] = None, bias: F[C] = None, *, groups: int, epsilon: float, layout: str = "nchw"
) -> F[*S]:
    """Normalises each of `groups` runs of channels of `x` [N, C, *S] together with all their positions.

    `weight` and `bias` are per channel; groups = C is instance norm. Source: ONNX GroupNormalization-21; ATen
    group_norm.
    """
    first = channels_first(x, layout)
    wide = first.astype(accumulator(x.dtype), copy=False).reshape(first.shape[0], groups, -1)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + wide.dtype.type(epsilon))
    result = result.reshape(first.shape)
    spread = (-1, *[1] * (x.ndim - 2))
    result = result if weight is None else result * weight.astype(wide.dtype).reshape(spread)
    result = result if bias is None else result + bias.astype(wide.dtype).reshape(spread)
    return channels_back(result, layout).astype(x.dtype)


@group_norm.rule("infer")
def _(x, weight, bias, *, groups, epsilon, layout):
    channels = x.shape[1] if layout == "nchw" or x.rank < 3 else split_shape(x.shape, layout)[1]
    for name, scale in (("weight", weight), ("bias", bias)):
        if scale is not None and scale.shape != (channels,):
            raise ValueError(f"{name} is {scale}, expected the {channels} channels of x")
    if not isinstance(channels, int) or channels % groups:
        raise ValueError(f"{channels} channels do not divide into {groups} groups")
    return x


@group_norm.rule("lower")
def _(g, x, weight, bias, *, groups, epsilon, layout):
    wide, shape = widened(g, x), list(x.shape)
    # Scales are applied in the shape of the groups, where they broadcast: the kernels then divide no index.
    if layout == "nchw":
        each, stages = shape[1] // groups, [[2, 3]]
        grouped, spread = [shape[0], groups, each, dims.product(shape[2:])], [groups, each, 1]
    else:  # positions first: sums of whole rows of channels
        each, stages = shape[-1] // groups, [[1], [3]]
        grouped, spread = [shape[0], dims.product(shape[1:-1]), groups, each], [groups, each]
    result = _normalised(g, g.reshape(wide, shape=grouped), stages, epsilon)
    if weight is not None:
        result = g.mul(result, g.reshape(widened(g, weight), shape=spread))
    if bias is not None:
        result = g.add(result, g.reshape(widened(g, bias), shape=spread))
    return narrowed(g, g.reshape(result, shape=shape), x.dtype)
