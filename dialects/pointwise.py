"""Elementwise arithmetic: signs, rounding, the four operations, quotients and remainders, extremes."""

from __future__ import annotations

import numpy as np

from . import pointwise_division as division
from .op import op
from .pointwise_numpy import exactly, integer_power, narrowed, truncating_divide, widened
from .val import Val

# --- one operand ---


@op(torch="aten.neg.default", onnx="Neg")
def neg(x: N[*S]) -> N[*S]:
    """-x; integers wrap. Source: ONNX Neg-13; ATen neg."""
    return np.negative(x)


@neg.rule("emit")
def _(x: Val) -> Val:
    return -x


@op(torch="aten.abs.default", onnx="Abs")
def abs_(x: N[*S]) -> N[*S]:
    """|x|; the lowest integer wraps to itself. Source: ONNX Abs-13; ATen abs."""
    return np.abs(x)


@abs_.rule("emit")
def _(x: Val) -> Val:
    return x.abs()


@op(torch="aten.sign.default")
def sign(x: N[*S]) -> N[*S]:
    """-1, 0 or 1; 0 for NaN. Source: ATen sign (ONNX Sign-13 leaves NaN open)."""
    x = np.asarray(x)
    return np.sign(x) if x.dtype.kind in "iu" else np.where(np.isnan(x), np.zeros_like(x), np.sign(x))


@sign.rule("emit")
def _(x: Val) -> Val:
    positive = x.gt(0).select(x.like(1), x.like(0))
    return x.lt(0).select(x.like(-1), positive) if x.is_float or x.is_signed else positive


@op(torch="aten.floor.default", onnx="Floor")
def floor(x: N[*S]) -> N[*S]:
    """The largest whole number not above x; integers unchanged. Source: ONNX Floor-13; ATen floor."""
    return _whole(np.floor, x)


@op(torch="aten.ceil.default", onnx="Ceil")
def ceil(x: N[*S]) -> N[*S]:
    """The smallest whole number not below x; integers unchanged. Source: ONNX Ceil-13; ATen ceil."""
    return _whole(np.ceil, x)


@op(torch="aten.trunc.default")
def trunc(x: N[*S]) -> N[*S]:
    """x without its fraction; integers unchanged. Source: ATen trunc."""
    return _whole(np.trunc, x)


@op(torch="aten.round.default", onnx="Round")
def round_(x: N[*S]) -> N[*S]:
    """The nearest whole number, halves to even; integers unchanged. Source: ONNX Round-22; ATen round."""
    return _whole(np.rint, x)


def _whole(function: np.ufunc, x: np.ndarray) -> np.ndarray:
    """`function` on floats. An integer is whole already, and numpy would make a float of it."""
    x = np.asarray(x)
    return x.copy() if x.dtype.kind in "iu" else narrowed(function(widened(x)), x.dtype)


@floor.rule("emit")
def _(x: Val) -> Val:
    return x.floor() if x.is_float else x


@ceil.rule("emit")
def _(x: Val) -> Val:
    return x.ceil() if x.is_float else x


@trunc.rule("emit")
def _(x: Val) -> Val:
    return x.trunc() if x.is_float else x


@round_.rule("emit")
def _(x: Val) -> Val:
    return x.round_even() if x.is_float else x


@op(torch="aten.relu.default", onnx="Relu")
def relu(x: N[*S]) -> N[*S]:
    """max(x, 0); NaN stays NaN. Source: ONNX Relu-14; ATen relu."""
    return np.maximum(x, np.zeros_like(x))


@relu.rule("emit")
def _(x: Val) -> Val:
    # Not `maximum`: this order of compare and select keeps NaN and is one instruction where there is a float max.
    return x.lt(0).select(x.like(0), x)


# --- two operands ---


@op(onnx="Add")
def add(a: C[*S], b: C[*S]) -> C[*S]:
    """a + b; integers wrap; bool: or. Source: ONNX Add-14; ATen add with alpha 1."""
    return np.add(a, b)


@add.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a + b


add.rule("neutral")(lambda: ((0, -0.0), (1, -0.0)))  # -0.0 + 0.0 is 0.0


@op(onnx="Sub")
def sub(a: N[*S], b: N[*S]) -> N[*S]:
    """a - b; integers wrap. Source: ONNX Sub-14; ATen sub with alpha 1."""
    return np.subtract(a, b)


@sub.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a - b


sub.rule("neutral")(lambda: ((1, 0.0),))


@op(torch="aten.mul.Tensor", onnx="Mul")
def mul(a: C[*S], b: C[*S]) -> C[*S]:
    """a * b; integers wrap; bool: and. Source: ONNX Mul-14; ATen mul."""
    return np.multiply(a, b)


@mul.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a * b


mul.rule("neutral")(lambda: ((0, 1.0), (1, 1.0)))


@op(onnx="Div")
def div(a: N[*S], b: N[*S]) -> N[*S]:
    """a / b; integers round toward zero, give 0 for a zero divisor, and wrap for the lowest / -1.

    Source: ONNX Div-14.
    """
    return truncating_divide(np.asarray(a), np.asarray(b)) if np.asarray(a).dtype.kind in "iu" else np.divide(a, b)


@div.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a / b


div.rule("neutral")(lambda: ((1, 1.0),))


@op(torch="aten.floor_divide.default")
def floor_div(a: N[*S], b: N[*S]) -> N[*S]:
    """The quotient rounded down; integers give 0 for a zero divisor.

    Floats: consistent with `remainder`, so exact where a / b would round up to a whole number.
    Source: ATen floor_divide.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iu":
        return np.floor_divide(a, b)
    x, y = widened(a), widened(b)
    rest = np.fmod(x, y)
    quotient = (x - rest) / y - ((rest != 0) & ((y < 0) != (rest < 0))).astype(x.dtype)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    whole = np.where(quotient != 0, whole, np.copysign(np.zeros_like(x), x / y))
    return narrowed(np.where(y == 0, x / y, whole), a.dtype)


@floor_div.rule("emit")
def _(a: Val, b: Val) -> Val:
    return division.floor_divide(a, b)


@op(torch="aten.remainder.Tensor")
def remainder(a: N[*S], b: N[*S]) -> N[*S]:
    """a - b * floor(a / b), exact: the sign of the divisor, as Python's %. Integers give 0 for a zero divisor.

    Source: ATen remainder.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iu":
        return np.remainder(a, b)
    x, y = widened(a), widened(b)
    rest = np.fmod(x, y)
    return narrowed(np.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest), a.dtype)


@remainder.rule("emit")
def _(a: Val, b: Val) -> Val:
    return division.remainder(a, b)


@op(torch="aten.fmod.Tensor")
def fmod(a: N[*S], b: N[*S]) -> N[*S]:
    """a - b * trunc(a / b), exact: the sign of the dividend, as C. Integers give 0 for a zero divisor.

    Source: ATen fmod; ONNX Mod-13 with fmod=1.
    """
    return narrowed(np.fmod(widened(a), widened(b)), np.asarray(a).dtype)


@fmod.rule("emit")
def _(a: Val, b: Val) -> Val:
    return division.fmod(a, b) if a.is_float else a.trunc_remainder(b)


@op(torch="aten.pow.Tensor_Tensor")
def pow_(a: N[*S], b: N[*S]) -> N[*S]:
    """a ** b. Integers wrap; a negative integer exponent gives the inverse rounded toward zero. Source: ATen pow."""
    return integer_power(a, b) if np.asarray(a).dtype.kind in "iu" else exactly(np.power, a, b)


@pow_.rule("emit")
def _(a: Val, b: Val) -> Val:
    return division.power(a, b)


@op(torch="aten.maximum.default")
def maximum(a: T[*S], b: T[*S]) -> T[*S]:
    """The larger one; NaN if either is. Source: ATen maximum; ONNX Max-13."""
    return np.maximum(a, b)


@maximum.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.maximum(b)


@op(torch="aten.minimum.default")
def minimum(a: T[*S], b: T[*S]) -> T[*S]:
    """The smaller one; NaN if either is. Source: ATen minimum; ONNX Min-13."""
    return np.minimum(a, b)


@minimum.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.minimum(b)


@op(torch="aten.fmax.default")
def fmax(a: T[*S], b: T[*S]) -> T[*S]:
    """The larger one; a NaN gives way to a number. Source: ATen fmax; IEEE 754-2019 maximumNumber."""
    return np.fmax(a, b)


@fmax.rule("emit")
def _(a: Val, b: Val) -> Val:
    return b.is_nan().select(a, a.larger(b)) if a.is_float else a.maximum(b)


@op(torch="aten.fmin.default")
def fmin(a: T[*S], b: T[*S]) -> T[*S]:
    """The smaller one; a NaN gives way to a number. Source: ATen fmin; IEEE 754-2019 minimumNumber."""
    return np.fmin(a, b)


@fmin.rule("emit")
def _(a: Val, b: Val) -> Val:
    return b.is_nan().select(a, a.smaller(b)) if a.is_float else a.minimum(b)
