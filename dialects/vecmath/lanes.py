"""Arithmetic on `ir.Value` with Python operators, and the error-free sums and products that the functions are built of.

A `Lane` wraps a scalar or a 1-D vector (fixed or scalable) of f32, f64, i1 or a signless integer. Plain numbers mixed
with it become splat constants of its type. No operation carries fast-math flags: the rounding tricks below depend on
order.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from mlir import ir
from mlir.dialects import arith, math, vector

Number = int | float


@dataclass(frozen=True)
class Format:
    """Constants of an IEEE binary format."""

    bits: int
    mantissa_bits: int
    bias: int

    @property
    def smallest_normal(self) -> float:
        """The least positive number with a full mantissa."""
        return pymath.ldexp(1.0, 1 - self.bias)

    @property
    def rounder(self) -> float:
        """Added to |x| < 2**(mantissa_bits - 2) it leaves round(x) in the low bits; subtracted again, round(x)."""
        return pymath.ldexp(1.5, self.mantissa_bits)


FORMATS = {32: Format(32, 23, 127), 64: Format(64, 52, 1023)}


class Lane:
    """A value with operators; `value` is the `ir.Value`."""

    __slots__ = ("value",)

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    @property
    def element(self) -> ir.Type:
        """The type of one lane."""
        kind = self.value.type
        return ir.VectorType(kind).element_type if isinstance(kind, ir.VectorType) else kind

    @property
    def is_float(self) -> bool:
        """True for f32 and f64, false for integers and i1."""
        return not isinstance(self.element, ir.IntegerType)

    @property
    def format(self) -> Format:
        """The float format, or that of the floats with as many bits as this integer."""
        return FORMATS[self.element.width]

    def shaped(self, element: ir.Type) -> ir.Type:
        """The type of as many lanes of `element`."""
        kind = self.value.type
        if not isinstance(kind, ir.VectorType):
            return element
        shape = ir.VectorType(kind)
        return ir.VectorType.get(shape.shape, element, scalable=list(shape.scalable_dims))

    def splat(self, number: Number) -> Lane:
        """A constant of this type."""
        kind, element = self.value.type, self.element
        if self.is_float:
            attr: ir.Attribute = ir.FloatAttr.get(element, float(number))
        else:
            bits = element.width
            number = int(number) & ((1 << bits) - 1)
            attr = ir.IntegerAttr.get(element, number - (1 << bits) if number >> (bits - 1) and bits > 1 else number)
        if isinstance(kind, ir.VectorType):
            attr = ir.DenseElementsAttr.get_splat(kind, attr)
        return Lane(arith.constant(kind, attr))

    def _with(self, other: Lane | Number) -> Lane:
        return other if isinstance(other, Lane) else self.splat(other)

    def _binary(self, other: Lane | Number, on_float: Callable, on_int: Callable, swapped: bool = False) -> Lane:
        left, right = self, self._with(other)
        if swapped:
            left, right = right, left
        return Lane((on_float if self.is_float else on_int)(left.value, right.value))

    def __add__(self, other: Lane | Number) -> Lane:
        return self._binary(other, arith.addf, arith.addi)

    def __sub__(self, other: Lane | Number) -> Lane:
        return self._binary(other, arith.subf, arith.subi)

    def __mul__(self, other: Lane | Number) -> Lane:
        return self._binary(other, arith.mulf, arith.muli)

    def __truediv__(self, other: Lane | Number) -> Lane:
        return self._binary(other, arith.divf, arith.divsi)

    def __radd__(self, other: Number) -> Lane:
        return self + other

    def __rmul__(self, other: Number) -> Lane:
        return self * other

    def __rsub__(self, other: Number) -> Lane:
        return self._binary(other, arith.subf, arith.subi, swapped=True)

    def __rtruediv__(self, other: Number) -> Lane:
        return self._binary(other, arith.divf, arith.divsi, swapped=True)

    def __neg__(self) -> Lane:
        return Lane(arith.negf(self.value)) if self.is_float else 0 - self

    def __and__(self, other: Lane | Number) -> Lane:
        return Lane(arith.andi(self.value, self._with(other).value))

    def __or__(self, other: Lane | Number) -> Lane:
        return Lane(arith.ori(self.value, self._with(other).value))

    def __xor__(self, other: Lane | Number) -> Lane:
        return Lane(arith.xori(self.value, self._with(other).value))

    def __lshift__(self, other: Lane | Number) -> Lane:
        return Lane(arith.shli(self.value, self._with(other).value))

    def __rshift__(self, other: Lane | Number) -> Lane:
        """Keeps the sign; `shift_right_zero` does not."""
        return Lane(arith.shrsi(self.value, self._with(other).value))

    def shift_right_zero(self, other: Lane | Number) -> Lane:
        """Shifts zeros in from the left."""
        return Lane(arith.shrui(self.value, self._with(other).value))

    def _compare(self, other: Lane | Number, on_float: arith.CmpFPredicate, on_int: arith.CmpIPredicate) -> Lane:
        right = self._with(other).value
        return Lane(arith.cmpf(on_float, self.value, right) if self.is_float else arith.cmpi(on_int, self.value, right))

    def __lt__(self, other: Lane | Number) -> Lane:
        return self._compare(other, arith.CmpFPredicate.OLT, arith.CmpIPredicate.slt)

    def __gt__(self, other: Lane | Number) -> Lane:
        return self._compare(other, arith.CmpFPredicate.OGT, arith.CmpIPredicate.sgt)

    def __le__(self, other: Lane | Number) -> Lane:
        return self._compare(other, arith.CmpFPredicate.OLE, arith.CmpIPredicate.sle)

    def __ge__(self, other: Lane | Number) -> Lane:
        return self._compare(other, arith.CmpFPredicate.OGE, arith.CmpIPredicate.sge)

    def equals(self, other: Lane | Number) -> Lane:
        """Equality a lane; false where either is NaN."""
        return self._compare(other, arith.CmpFPredicate.OEQ, arith.CmpIPredicate.eq)

    def differs(self, other: Lane | Number) -> Lane:
        """Inequality a lane; true where either is NaN."""
        return self._compare(other, arith.CmpFPredicate.UNE, arith.CmpIPredicate.ne)

    def is_nan(self) -> Lane:
        """True in NaN lanes."""
        return Lane(arith.cmpf(arith.CmpFPredicate.UNO, self.value, self.value))

    def bits(self) -> Lane:
        """The float's bits as an integer of its width."""
        return Lane(arith.bitcast(self.shaped(ir.IntegerType.get_signless(self.format.bits)), self.value))

    def as_float(self) -> Lane:
        """The integer's bits as a float of its width."""
        return Lane(arith.bitcast(self.shaped({32: ir.F32Type, 64: ir.F64Type}[self.format.bits].get()), self.value))

    def to_float(self, like: Lane) -> Lane:
        """The signed integer's value, rounded, in the format of `like`."""
        return Lane(arith.sitofp(like.value.type, self.value))

    def widened(self) -> Lane:
        """f32 as f64, exactly."""
        return Lane(arith.extf(self.shaped(ir.F64Type.get()), self.value))

    def narrowed(self) -> Lane:
        """f64 rounded to f32."""
        return Lane(arith.truncf(self.shaped(ir.F32Type.get()), self.value))

    def int_cast(self, bits: int) -> Lane:
        """The integer in `bits` bits: zero-extended, or its low bits."""
        element = ir.IntegerType.get_signless(bits)
        width = self.element.width
        if bits == width:
            return self
        return Lane((arith.extui if bits > width else arith.trunci)(self.shaped(element), self.value))

    def abs(self) -> Lane:
        """|x|; clears the sign of NaN too."""
        return Lane(math.absf(self.value))

    def with_sign_of(self, other: Lane) -> Lane:
        """The magnitude of this with the sign bit of `other`."""
        return Lane(math.copysign(self.value, other.value))

    def sqrt(self) -> Lane:
        """The correctly rounded root; NaN below zero."""
        return Lane(math.sqrt(self.value))

    def floor(self) -> Lane:
        """The largest integer not above x."""
        return Lane(math.floor(self.value))

    def at_most(self, bound: Number) -> Lane:
        """min(x, bound); NaN stays NaN. One machine instruction on x86: the order of the select is its rule."""
        limit = self.splat(bound)
        return select(limit < self, limit, self)

    def at_least(self, bound: Number) -> Lane:
        """max(x, bound); NaN stays NaN."""
        limit = self.splat(bound)
        return select(limit > self, limit, self)

    def any(self) -> ir.Value:
        """One i1: whether any lane of this i1 value is true."""
        if not isinstance(self.value.type, ir.VectorType):
            return self.value
        return vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, self.value)


def select(condition: Lane, yes: Lane | Number, no: Lane | Number) -> Lane:
    """`yes` where `condition`, else `no`; at least one of the two is a Lane."""
    if not isinstance(yes, Lane):
        assert isinstance(no, Lane)
        yes = no.splat(yes)
    return Lane(arith.select(condition.value, yes.value, yes._with(no).value))


def fma(left: Lane, right: Lane | Number, addend: Lane | Number) -> Lane:
    """left * right + addend, rounded once."""
    return Lane(math.fma(left.value, left._with(right).value, left._with(addend).value))


def horner(x: Lane, coefficients: tuple[float, ...]) -> Lane:
    """The polynomial with these coefficients, lowest power first."""
    total = x.splat(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = fma(total, x, coefficient)
    return total


def halves(x: Lane, coefficients: tuple[float, ...]) -> Lane:
    """The polynomial as low(x) + x**n high(x), two chains side by side: half the latency for few multiplications.

    Where its terms fall off, the error is that of `horner`. `coefficients` are 2 n, n a power of two.
    """
    middle = len(coefficients) // 2
    power, degree = x, 1
    while degree < middle:
        power, degree = power * power, 2 * degree
    return fma(power, horner(x, coefficients[middle:]), horner(x, coefficients[:middle]))


def fast_two_sum(large: Lane, small: Lane) -> tuple[Lane, Lane]:
    """The rounded sum and its error, exactly; needs |large| >= |small| or large == 0."""
    total = large + small
    return total, small - (total - large)


def two_sum(left: Lane, right: Lane) -> tuple[Lane, Lane]:
    """The rounded sum and its error, exactly, whichever is larger."""
    total = left + right
    back = total - left
    return total, (left - (total - back)) + (right - back)


def two_product(left: Lane, right: Lane | Number) -> tuple[Lane, Lane]:
    """The rounded product and its error, exactly."""
    product = left * right
    return product, fma(left, right, -product)


def lanewise(rule: Callable[..., Lane]) -> Callable[..., ir.Value]:
    """Makes the rule over Lanes a function over `ir.Value`s of one type, f32 or f64 (scalar or vector)."""

    def function(*operands: ir.Value) -> ir.Value:
        return rule(*(Lane(operand) for operand in operands)).value

    function.__name__ = rule.__name__
    function.__qualname__ = rule.__name__
    function.__doc__ = rule.__doc__
    function.__module__ = rule.__module__
    return function


_HAS_F64 = ContextVar("has_f64", default=True)


@contextmanager
def without_f64() -> Iterator[None]:
    """Within it f32 functions are built of f32 alone, for a machine whose f64 is absent or slow.

    Most then err by up to 1 ulp; the bounds are in docs/vecmath.md.
    """
    token = _HAS_F64.set(False)
    try:
        yield
    finally:
        _HAS_F64.reset(token)


def goes_wide(x: Lane) -> bool:
    """True where f32 operands are to be computed in f64."""
    return x.format.bits == 32 and _HAS_F64.get()


def parts(high: float, low: float, x: Lane, short_bits: int = 0) -> tuple[float, float]:
    """The constant high + low as two numbers of x's format; the first cut to `short_bits` bits if that is not 0."""
    if short_bits:
        scale = pymath.ldexp(1.0, short_bits - pymath.frexp(high)[1])
        first = pymath.floor(high * scale) / scale
    else:
        first = float(np.float32(high)) if x.format.bits == 32 else high
    return first, (high - first) + low


def through_f64(rule: Callable[..., Lane], *operands: Lane) -> Lane:
    """Applies an f64 rule to f32 operands: one rounding at the end, so the error is that of the rounding.

    Twice the vector instructions of a plain f32 polynomial, and about as many as an f32 one with error-free sums.
    """
    return rule(*(operand.widened() for operand in operands)).narrowed()
