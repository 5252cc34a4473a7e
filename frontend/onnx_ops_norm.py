"""ONNX normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


def _per_channel(c: Call, v: Value, x: Value) -> Value:
    """A [C] vector so that it broadcasts over [N, C, *S]."""
    return c.shaped(v, [v.shape[0]] + [1] * (len(x.shape) - 2))


@row("BatchNormalization")
def _batch_norm(c: Call, x: Value, scale: Value, bias: Value, mean: Value, var: Value) -> Any:
    epsilon = c.attr("epsilon", 1e-5)
    if c.attr("training_mode", 0):
        return _batch_norm_training(c, x, scale, bias, mean, var)
    if c.attr("spatial", 1) == 0:
        raise c.unsupported("statistics for each pixel (spatial=0)")
    # Statistics may be wider than the data (f16 data with f32 statistics); they decide where the scale is computed.
    wide = var.dtype
    factor = c.div(c.to(scale, wide), c.sqrt(c.add(var, c.scalar(epsilon, var))))
    offset = c.sub(c.to(bias, wide), c.mul(c.to(mean, wide), factor))
    if wide == x.dtype:
        return c.add(c.mul(x, _per_channel(c, factor, x)), _per_channel(c, offset, x))
    y = c.add(c.mul(c.to(x, wide), _per_channel(c, factor, x)), _per_channel(c, offset, x))
    return c.to(y, x.dtype)


def _batch_norm_training(c: Call, x: Value, scale: Value, bias: Value, mean: Value, var: Value) -> Any:
    over = [i for i in range(len(x.shape)) if i != 1]
    now = c.mean(x, axes=over, keepdims=False)
    centred = c.sub(x, _per_channel(c, now, x))
    spread = c.mean(c.mul(centred, centred), axes=over, keepdims=False)
    factor = c.div(scale, c.sqrt(c.add(spread, c.scalar(c.attr("epsilon", 1e-5), spread))))
    y = c.add(c.mul(centred, _per_channel(c, factor, x)), _per_channel(c, bias, x))
    keep = c.attr("momentum", 0.9)

    def running(old: Value, new: Value) -> Value:
        return c.add(c.mul(old, c.scalar(keep, old)), c.mul(c.to(new, old.dtype), c.scalar(1 - keep, old)))

    return y, running(mean, now), running(var, spread)


@row("InstanceNormalization")
def _instance_norm(c: Call, x: Value, scale: Value, bias: Value) -> Value:
    groups = x.shape[1]
    if not isinstance(groups, int):
        raise c.unsupported(f"{groups} channels: their number must be known")
    return c.group_norm(x, scale, bias, groups=groups, epsilon=c.attr("epsilon", 1e-5))


@row("GroupNormalization", since=21)
def _group_norm(c: Call, x: Value, scale: Value, bias: Value) -> Value:
    return c.group_norm(x, scale, bias, groups=c.attr("num_groups"), epsilon=c.attr("epsilon", 1e-5))


@row("GroupNormalization", since=18)
def _group_norm_by_group(c: Call, x: Value, scale: Value, bias: Value) -> Value:
    """Operator set 18 has a scale for each group, not for each channel."""
    groups, channels = c.attr("num_groups"), x.shape[1]

    def spread(v: Value) -> Value:
        return c.shaped(c.expanded(c.shaped(v, [groups, 1]), [groups, channels // groups]), [channels])

    return c.group_norm(x, spread(scale), spread(bias), groups=groups, epsilon=c.attr("epsilon", 1e-5))


@row("LayerNormalization")
def _layer_norm(c: Call, x: Value, scale: Value, bias: Value | None = None) -> Any:
    axis, epsilon = c.axis(x, c.attr("axis", -1)), c.attr("epsilon", 1e-5)
    if not c.has_output(1) and not c.has_output(2):
        return c.layer_norm(x, _tail(c, scale, x, axis), _tail(c, bias, x, axis), axis=axis, epsilon=epsilon)
    wide = "f32" if DTYPES[x.dtype].is_narrow_float else x.dtype
    y, over = c.to(x, wide), list(range(axis, len(x.shape)))
    mean = c.mean(y, axes=over, keepdims=True)
    centred = c.sub(y, mean)
    variance = c.mean(c.mul(centred, centred), axes=over, keepdims=True)
    inverse = c.reciprocal(c.sqrt(c.add(variance, c.scalar(epsilon, variance))))
    out = c.mul(c.to(c.mul(centred, inverse), x.dtype), scale)
    return out if bias is None else c.add(out, bias), mean, inverse


def _tail(c: Call, v: Value | None, x: Value, axis: int) -> Value | None:
    """A scale or bias with the sizes of the normalised axes, as the op takes it; ONNX lets it broadcast."""
    if v is None:
        return None
    tail = x.shape[axis:]
    if len(v.shape) > len(tail):
        v = c.shaped(v, v.shape[len(v.shape) - len(tail) :])
    return c.expanded(v, tail)


@row("RMSNormalization")
@row("SimplifiedLayerNormalization")
@row("SimplifiedLayerNormalization", domain="com.microsoft")
def _rms_norm(c: Call, x: Value, scale: Value) -> Value:
    axis, epsilon = c.axis(x, c.attr("axis", -1)), c.attr("epsilon", 1e-5)
    if scale.dtype == x.dtype and not (len(scale.shape) > len(x.shape) - axis):
        return c.rms_norm(x, _tail(c, scale, x, axis), axis=axis, epsilon=epsilon)
    return c.to(c.mul(c.to(c.rms_norm(x, axis=axis, epsilon=epsilon), scale.dtype), scale), scale.dtype)


@row("SkipLayerNormalization", domain="com.microsoft")
def _skip_layer_norm(
    c: Call, x: Value, skip: Value, gamma: Value, beta: Value | None = None, bias: Value | None = None
) -> Any:
    total = c.add(x, skip) if bias is None else c.add(c.add(x, skip), bias)
    out = c.layer_norm(total, gamma, beta, axis=len(x.shape) - 1, epsilon=c.attr("epsilon", 1e-12))
    return out, None, None, total


@row("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def _skip_rms_norm(c: Call, x: Value, skip: Value, gamma: Value, bias: Value | None = None) -> Any:
    total = c.add(x, skip) if bias is None else c.add(c.add(x, skip), bias)
    return c.rms_norm(total, gamma, axis=len(x.shape) - 1, epsilon=c.attr("epsilon", 1e-12)), None, None, total


@row("LpNormalization")
def _lp_norm(c: Call, x: Value) -> Value:
    axis = c.axis(x, c.attr("axis", -1))
    if c.attr("p", 2) == 1:
        norm = c.sum(c.abs(x), axes=[axis], keepdims=True)
    else:
        norm = c.sqrt(c.sum(c.mul(x, x), axes=[axis], keepdims=True))
    # A row of zeros stays zeros.
    return c.where(c.eq(norm, c.scalar(0, norm)), c.scalar(0, x), c.div(x, norm))


@row("LRN")
def _lrn(c: Call, x: Value) -> Value:
    size = c.attr("size")
    before, after = (size - 1) // 2, size // 2
    rank = len(x.shape)
    channels = x.shape[1]
    square = c.mul(x, x)
    low, high = [0] * rank, [0] * rank
    low[1], high[1] = before, after
    padded = c.pad(square, low=low, high=high, mode="constant", value=0.0)
    total = c.sliced(padded, 1, 0, channels)
    for shift in range(1, size):
        total = c.add(total, c.sliced(padded, 1, shift, channels + shift))
    scale = c.add(c.mul(total, c.scalar(c.attr("alpha", 1e-4) / size, x)), c.scalar(c.attr("bias", 1.0), x))
    return c.div(x, c.pow(scale, c.scalar(c.attr("beta", 0.75), x)))


@row("MeanVarianceNormalization")
def _mean_variance_norm(c: Call, x: Value) -> Value:
    axes = c.axes(x, c.attr("axes", [0, 2, 3]))
    mean = c.mean(x, axes=axes, keepdims=True)
    square = c.mean(c.mul(x, x), axes=axes, keepdims=True)
    deviation = c.sqrt(c.sub(square, c.mul(mean, mean)))
    return c.div(c.sub(x, mean), c.add(deviation, c.scalar(1e-9, x)))


@row("GlobalLpPool")
def _global_lp_pool(c: Call, x: Value) -> Value:
    p, over = c.attr("p", 2), list(range(2, len(x.shape)))
    total = c.sum(c.pow(c.abs(x), c.scalar(p, x)), axes=over, keepdims=True)
    return c.pow(total, c.scalar(1 / p, x))


@row("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(c: Call, x: Value) -> Value:
    op = "mean" if c.node.op == "GlobalAveragePool" else "max"
    return c.importer.emit(op, x, axes=list(range(2, len(x.shape))), keepdims=True)
