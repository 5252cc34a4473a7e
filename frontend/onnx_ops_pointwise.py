"""ONNX elementwise ops that are not one mlc op: activations with parameters, variadic arithmetic, casts, logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


# --- arithmetic ---


@row("Mod")
def _mod(c: Call, a: Value, b: Value) -> Value:
    return c.fmod(a, b) if c.attr("fmod", 0) else c.remainder(a, b)


@row("Pow")
def _pow(c: Call, x: Value, exponent: Value) -> Value:
    if exponent.dtype == x.dtype:
        return c.pow(x, exponent)
    if DTYPES[exponent.dtype].is_float and not DTYPES[x.dtype].is_float:
        return c.to(c.pow(c.to(x, exponent.dtype), exponent), x.dtype)
    return c.pow(x, c.to(exponent, x.dtype))


@row("Max")
def _max(c: Call, *xs: Value) -> Value:
    return _chain(c, "maximum", xs)


@row("Min")
def _min(c: Call, *xs: Value) -> Value:
    return _chain(c, "minimum", xs)


@row("Sum")
def _sum(c: Call, *xs: Value) -> Value:
    return _chain(c, "add", xs)


@row("Mean")
def _mean(c: Call, *xs: Value) -> Value:
    total = _chain(c, "add", xs)
    return c.div(total, c.scalar(len(xs), total))


def _chain(c: Call, op: str, xs: tuple[Value, ...]) -> Value:
    out = xs[0]
    for x in xs[1:]:
        out = c.importer.emit(op, out, x)
    return out


@row("Clip")
def _clip_attributes(c: Call, x: Value) -> Value:
    if (low := c.attr("min")) is not None and low > -3.4e38:
        x = c.maximum(x, c.scalar(low, x))
    if (high := c.attr("max")) is not None and high < 3.4e38:
        x = c.minimum(x, c.scalar(high, x))
    return x


@row("Clip", since=11)
def _clip(c: Call, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    x = x if low is None else c.maximum(x, low)
    return x if high is None else c.minimum(x, high)


@row("BitShift")
def _bit_shift(c: Call, x: Value, count: Value) -> Value:
    return c.shift_left(x, count) if c.attr("direction") == "LEFT" else c.shift_right(x, count)


@row("Det")
def _det(c: Call, x: Value) -> Value:
    """By Gaussian elimination without a graph of pivots: exact cofactors for the small static sizes that occur."""
    size = x.shape[-1]
    if not isinstance(size, int) or size > 4:
        raise c.unsupported(f"a determinant of size {size}")
    parts = [[_entry(c, x, i, j) for j in range(size)] for i in range(size)]
    return _cofactors(c, parts)


def _entry(c: Call, x: Value, i: int, j: int) -> Value:
    rank = len(x.shape)
    out = c.sliced(c.sliced(x, rank - 2, i, i + 1), rank - 1, j, j + 1)
    return c.shaped(out, x.shape[:-2])


def _cofactors(c: Call, m: list[list[Value]]) -> Value:
    if len(m) == 1:
        return m[0][0]
    total = None
    for j, head in enumerate(m[0]):
        term = c.mul(head, _cofactors(c, [[v for k, v in enumerate(line) if k != j] for line in m[1:]]))
        total = term if total is None else c.sub(total, term) if j % 2 else c.add(total, term)
    return total


# --- activations ---


@row("LeakyRelu")
def _leaky_relu(c: Call, x: Value) -> Value:
    return c.where(c.lt(x, c.scalar(0, x)), c.mul(x, c.scalar(c.attr("alpha", 0.01), x)), x)


@row("PRelu")
def _prelu_by_channel(c: Call, x: Value, slope: Value) -> Value:
    """Before operator set 7 a vector of slopes runs along the channels."""
    if len(slope.shape) == 1 and len(x.shape) > 2:
        slope = c.shaped(slope, [slope.shape[0]] + [1] * (len(x.shape) - 2))
    return _prelu(c, x, slope)


@row("PRelu", since=7)
def _prelu(c: Call, x: Value, slope: Value) -> Value:
    return c.where(c.lt(x, c.scalar(0, x)), c.mul(x, slope), x)


@row("Elu")
def _elu(c: Call, x: Value) -> Value:
    return _exponential_unit(c, x, c.attr("alpha", 1.0), 1.0, 1.0)


@row("Selu")
def _selu(c: Call, x: Value) -> Value:
    gamma = c.attr("gamma", 1.0507009873554805)
    return _exponential_unit(c, x, c.attr("alpha", 1.6732632423543772) * gamma, 1.0, gamma)


@row("Celu")
def _celu(c: Call, x: Value) -> Value:
    alpha = c.attr("alpha", 1.0)
    return _exponential_unit(c, x, alpha, 1 / alpha, 1.0)


def _exponential_unit(c: Call, x: Value, scale: float, inner: float, positive: float) -> Value:
    """positive * x for x > 0, else scale * (exp(inner * x) - 1)."""
    below = x if inner == 1.0 else c.mul(x, c.scalar(inner, x))
    below = c.expm1(below) if scale == 1.0 else c.mul(c.expm1(below), c.scalar(scale, x))
    above = x if positive == 1.0 else c.mul(x, c.scalar(positive, x))
    return c.where(c.gt(x, c.scalar(0, x)), above, below)


@row("HardSigmoid")
def _hard_sigmoid(c: Call, x: Value) -> Value:
    return c.hard_sigmoid(x, c.attr("alpha", 0.2), c.attr("beta", 0.5))


@row("HardSwish")
def _hard_swish(c: Call, x: Value) -> Value:
    return c.mul(x, c.hard_sigmoid(x, 1 / 6, 0.5))


@row("Softplus")
def _softplus(c: Call, x: Value) -> Value:
    return c.softplus(x)


@row("Softsign")
def _softsign(c: Call, x: Value) -> Value:
    return c.div(x, c.add(c.abs(x), c.scalar(1, x)))


@row("Mish")
def _mish(c: Call, x: Value) -> Value:
    return c.mul(x, c.tanh(c.softplus(x)))


@row("Swish")
def _swish(c: Call, x: Value) -> Value:
    alpha = c.attr("alpha", 1.0)
    return c.silu(x) if alpha == 1.0 else c.mul(x, c.sigmoid(c.mul(x, c.scalar(alpha, x))))


@row("Gelu")
@row("Gelu", domain="com.microsoft")
def _gelu(c: Call, x: Value) -> Value:
    return c.gelu(x, approximate=c.attr("approximate", "none") == "tanh")


@row("FastGelu", domain="com.microsoft")
def _fast_gelu(c: Call, x: Value, bias: Value | None = None) -> Value:
    return c.gelu(x if bias is None else c.add(x, bias), approximate=True)


@row("QuickGelu", domain="com.microsoft")
def _quick_gelu(c: Call, x: Value) -> Value:
    return c.mul(x, c.sigmoid(c.mul(x, c.scalar(c.attr("alpha", 1.702), x))))


@row("BiasGelu", domain="com.microsoft")
def _bias_gelu(c: Call, x: Value, bias: Value) -> Value:
    return c.gelu(c.add(x, bias), approximate=False)


@row("ThresholdedRelu")
def _thresholded_relu(c: Call, x: Value) -> Value:
    return c.where(c.gt(x, c.scalar(c.attr("alpha", 1.0), x)), x, c.scalar(0, x))


@row("Shrink")
def _shrink(c: Call, x: Value) -> Value:
    bias, limit = c.scalar(c.attr("bias", 0.0), x), c.attr("lambd", 0.5)
    zero = c.scalar(0, x)
    high = c.where(c.gt(x, c.scalar(limit, x)), c.sub(x, bias), zero)
    return c.where(c.lt(x, c.scalar(-limit, x)), c.add(x, bias), high)


# --- types ---


@row("Sign")
def _sign(c: Call, x: Value) -> Value:
    return c.sign(x)


@row("Identity")
def _identity(c: Call, x: Any) -> Any:
    return x


@row("Dropout")
def _dropout(c: Call, x: Value, ratio: Known | None = None, training: Known | None = None) -> Any:
    if training is not None and training.item() and (ratio is None or ratio.item() != 0):
        raise c.unsupported("dropout in training mode")
    if not c.has_output(1):
        return x
    return x, c.full(shape=list(x.shape), value=1, dtype="bool" if c.version >= 10 else x.dtype)


# --- logic ---


@row("IsInf")
def _is_inf(c: Call, x: Value) -> Value:
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)
    if positive and negative:
        return c.isinf(x)
    if not positive and not negative:
        return c.full(shape=list(x.shape), value=0, dtype="bool")
    return c.eq(x, c.scalar(np.inf if positive else -np.inf, x))


@row("EyeLike")
def _eye_like(c: Call, x: Value) -> Value:
    rows, cols = x.shape
    dtype = c.mlc_dtype(c.attr("dtype")) if c.attr("dtype") else x.dtype
    diagonal = c.shaped(c.iota(size=rows, start=c.attr("k", 0), dtype="i64"), [rows, 1])
    return c.to(c.eq(diagonal, c.iota(size=cols, dtype="i64")), dtype)


@row("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Multinomial", "Bernoulli")
def _random(c: Call, x: Any = None) -> Any:
    raise c.unsupported("random numbers")
