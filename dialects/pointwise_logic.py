"""Elementwise comparison, logic, bits, choice, and conversion between element types."""

from __future__ import annotations

import numpy as np

from .op import OpError, op
from .pointwise_numpy import narrowed, widened
from .types import DTYPES, TensorType
from .val import Val

# --- comparison: NaN is unequal to everything and in no order ---


@op(torch="aten.eq.Tensor", onnx="Equal")
def eq(a: T[*S], b: T[*S]) -> bool[*S]:
    """a == b. Source: ONNX Equal-19; ATen eq."""
    return np.equal(a, b)


@op(torch="aten.ne.Tensor")
def ne(a: T[*S], b: T[*S]) -> bool[*S]:
    """a != b, true for NaN. Source: ATen ne."""
    return np.not_equal(a, b)


@op(torch="aten.lt.Tensor", onnx="Less")
def lt(a: T[*S], b: T[*S]) -> bool[*S]:
    """a < b. Source: ONNX Less-13; ATen lt."""
    return np.less(a, b)


@op(torch="aten.le.Tensor", onnx="LessOrEqual")
def le(a: T[*S], b: T[*S]) -> bool[*S]:
    """a <= b. Source: ONNX LessOrEqual-16; ATen le."""
    return np.less_equal(a, b)


@op(torch="aten.gt.Tensor", onnx="Greater")
def gt(a: T[*S], b: T[*S]) -> bool[*S]:
    """a > b. Source: ONNX Greater-13; ATen gt."""
    return np.greater(a, b)


@op(torch="aten.ge.Tensor", onnx="GreaterOrEqual")
def ge(a: T[*S], b: T[*S]) -> bool[*S]:
    """a >= b. Source: ONNX GreaterOrEqual-16; ATen ge."""
    return np.greater_equal(a, b)


@eq.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.eq(b)


@ne.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.ne(b)


@lt.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.lt(b)


@le.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.le(b)


@gt.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.gt(b)


@ge.rule("emit")
def _(a: Val, b: Val) -> Val:
    return a.ge(b)


@op(torch="aten.isnan.default", onnx="IsNaN")
def isnan(x: F[*S]) -> bool[*S]:
    """Whether x is NaN. Source: ONNX IsNaN-20; ATen isnan."""
    return np.isnan(x)


@isnan.rule("emit")
def _(x: Val) -> Val:
    return x.is_nan()


@op(torch="aten.isinf.default")
def isinf(x: F[*S]) -> bool[*S]:
    """Whether x is an infinity. Source: ATen isinf."""
    return np.isinf(x)


@isinf.rule("emit")
def _(x: Val) -> Val:
    return x.abs().eq(np.inf)


# --- logic ---


@op(onnx="Not")
def logical_not(x: bool[*S]) -> bool[*S]:
    """True where x is false. Source: ONNX Not-1."""
    return np.logical_not(x)


@op(onnx="And")
def logical_and(a: bool[*S], b: bool[*S]) -> bool[*S]:
    """True where both are. Source: ONNX And-7."""
    return np.logical_and(a, b)


@op(onnx="Or")
def logical_or(a: bool[*S], b: bool[*S]) -> bool[*S]:
    """True where either is. Source: ONNX Or-7."""
    return np.logical_or(a, b)


@op(onnx="Xor")
def logical_xor(a: bool[*S], b: bool[*S]) -> bool[*S]:
    """True where they differ. Source: ONNX Xor-7."""
    return np.logical_xor(a, b)


# --- bits ---


@op(torch="aten.bitwise_not.default", onnx="BitwiseNot")
def bitwise_not(x: B[*S]) -> B[*S]:
    """Every bit inverted; bool: not. Source: ONNX BitwiseNot-18; ATen bitwise_not."""
    return np.invert(x)


@op(torch="aten.bitwise_and.Tensor", onnx="BitwiseAnd")
def bitwise_and(a: B[*S], b: B[*S]) -> B[*S]:
    """a & b, bit by bit. Source: ONNX BitwiseAnd-18; ATen bitwise_and."""
    return np.bitwise_and(a, b)


@op(torch="aten.bitwise_or.Tensor", onnx="BitwiseOr")
def bitwise_or(a: B[*S], b: B[*S]) -> B[*S]:
    """a | b, bit by bit. Source: ONNX BitwiseOr-18; ATen bitwise_or."""
    return np.bitwise_or(a, b)


@op(torch="aten.bitwise_xor.Tensor", onnx="BitwiseXor")
def bitwise_xor(a: B[*S], b: B[*S]) -> B[*S]:
    """a ^ b, bit by bit. Source: ONNX BitwiseXor-18; ATen bitwise_xor."""
    return np.bitwise_xor(a, b)


for _definition in (logical_not, bitwise_not):
    _definition.rule("emit")(lambda x: x.invert())
for _definition in (logical_and, bitwise_and):
    _definition.rule("emit")(lambda a, b: a & b)
    _definition.rule("neutral")(lambda: ((0, True), (1, True)))
for _definition in (logical_or, bitwise_or):
    _definition.rule("emit")(lambda a, b: a | b)
    _definition.rule("neutral")(lambda: ((0, False), (1, False)))
for _definition in (logical_xor, bitwise_xor):
    _definition.rule("emit")(lambda a, b: a ^ b)


@op(torch="aten.bitwise_left_shift.Tensor")
def shift_left(a: I[*S], b: I[*S]) -> I[*S]:
    """a * 2**b, wrapping; 0 for a count that is negative or no less than the width. Source: ATen bitwise_left_shift."""
    return np.left_shift(a, b)


@shift_left.rule("emit")
def _(a: Val, b: Val) -> Val:
    is_legal, count = _shift_count(a, b)
    return is_legal.select(a.shift_left(count), a.like(0))


@op(torch="aten.bitwise_right_shift.Tensor")
def shift_right(a: I[*S], b: I[*S]) -> I[*S]:
    """a / 2**b rounded down; a count that is negative or no less than the width shifts every bit out.

    Source: ATen bitwise_right_shift.
    """
    return np.right_shift(a, b)


@shift_right.rule("emit")
def _(a: Val, b: Val) -> Val:
    is_legal, count = _shift_count(a, b)
    shifted = a.shift_right(count)
    return is_legal.select(shifted, a.shift_right(DTYPES[a.dtype].bits - 1) if a.is_signed else a.like(0))


def _shift_count(a: Val, b: Val) -> tuple[Val, Val]:
    """Whether `b` is a count that the machine may shift by, and such a count in any case."""
    is_legal = b.lt(DTYPES[a.dtype].bits)
    if b.is_signed:
        is_legal = is_legal & b.ge(0)
    return is_legal, is_legal.select(b, b.like(0))


# --- choice and conversion ---


@op(torch="aten.where.self", onnx="Where")
def where(condition: bool[*S], a: T[*S], b: T[*S]) -> T[*S]:
    """a where the condition holds, else b. Source: ONNX Where-16; ATen where."""
    return np.where(condition, a, b)


@where.rule("emit")
def _(condition: Val, a: Val, b: Val) -> Val:
    return condition.select(a, b)


@op()
def cast(x: T[*S], *, dtype: DType) -> U[*S]:
    """x as another element type.

    Floats to integers round toward zero (out of range: unspecified); to bool: x != 0; to narrow floats to nearest even,
    and beyond their range to infinity, NaN where they have none, in 4 bits to the largest; to integers of less than a
    byte: the low bits. Source: ONNX Cast-21 with saturate=0; ATen _to_copy.
    """
    target = DTYPES[dtype].numpy
    return np.not_equal(widened(x), 0) if dtype == "bool" else narrowed(widened(x), target)


@cast.rule("infer")
def _(x: TensorType, *, dtype: str) -> TensorType:
    return TensorType(dtype, x.shape)


@cast.rule("emit")
def _(x: Val, *, dtype: str) -> Val:
    return x.cast(dtype)


@op()
def bitcast(x: T[*S], *, dtype: DType) -> U[*S]:
    """The same bits as another element type of the same width. Source: ATen view.dtype; ONNX BitCast-26."""
    return np.asarray(x).view(DTYPES[dtype].numpy)


@bitcast.rule("infer")
def _(x: TensorType, *, dtype: str) -> TensorType:
    if DTYPES[x.dtype].bits != DTYPES[dtype].bits or "bool" in (x.dtype, dtype):
        raise OpError(f"mlc.bitcast: {x.dtype} and {dtype} have not the same width")
    return TensorType(dtype, x.shape)


@bitcast.rule("emit")
def _(x: Val, *, dtype: str) -> Val:
    return x.bitcast(dtype)
