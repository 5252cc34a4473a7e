"""Exact float remainders, rounded quotients and integer powers as `Val` arithmetic.

A remainder must be exact however large the quotient, and no library function may be called for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import arith, scf

from . import vecmath
from .types import DTYPES
from .val import Val

# Each step takes 52 bits off the quotient, and the last step takes what remains. Two f32 numbers have a ratio of 2**277
# at most, two f64 numbers of 2**2098 (largest over least denormal): 298 + 900 + 900 bits in steps of scaled divisors.
_STEPS = {"f16": 0, "bf16": 5, "f32": 5, "f64": 42}
_SCALE_BITS = 900  # a power of two by which a quotient that overflows f64 is brought down, twice if need be


def repeated(count: int, start: Sequence[Val], body: Callable[[list[Val]], list[Val]]) -> list[Val]:
    """`count` rounds of `body` in a loop; straight-line code of that many rounds would be too long."""
    index = ir.IndexType.get()
    low, high, step = (arith.constant(index, number) for number in (0, count, 1))
    loop = scf.ForOp(low, high, step, [v.value for v in start])
    with ir.InsertionPoint(loop.body):
        carried = [Val(value, v.dtype) for value, v in zip(loop.inner_iter_args, start, strict=True)]
        scf.YieldOp([v.value for v in body(carried)])
    return [Val(value, v.dtype) for value, v in zip(loop.results, start, strict=True)]


def fmod(a: Val, b: Val) -> Val:
    """Exact float remainder with the sign of `a`; NaN for an infinite `a` or a zero `b`."""
    a, b = a.splat(b.value.type), b.splat(a.value.type)
    wide_a, wide_b = a.cast("f64").abs(), b.cast("f64").abs()
    rest = wide_a
    if a.dtype == "f64":
        (rest,) = repeated(_STEPS["f64"], [rest], lambda carried: [_reduce(carried[0], _scaled(wide_b, carried[0]))])
    else:
        for _ in range(_STEPS[a.dtype]):
            rest = _reduce(rest, wide_b)
    rest = _reduce(rest, wide_b)
    rest = rest.lt(0).select(rest + wide_b, rest)  # a rounded quotient can be one too large, not more
    rest = rest.ge(wide_b).select(rest - wide_b, rest)
    # inf divides anything finite zero times, which the multiplication above turned into NaN
    rest = (wide_b.eq(float("inf")) & wide_a.lt(float("inf"))).select(wide_a, rest)
    return rest.copysign(a.cast("f64")).cast(a.dtype)


def _reduce(rest: Val, b: Val) -> Val:
    """rest - b * trunc(rest / b) with the quotient rounded to 53 bits: exact, and 2**-52 of `rest` or less than `b`."""
    return (-(rest / b).trunc()).fma(b, rest)


def _scaled(b: Val, rest: Val) -> Val:
    """`b` times a power of two, so that rest / b does not overflow."""
    for _ in range(2):
        b = b.lt(rest.abs() * 2.0**-_SCALE_BITS).select(b * 2.0**_SCALE_BITS, b)
    return b


def remainder(a: Val, b: Val) -> Val:
    """Remainder with the sign of `b`."""
    if not a.is_float and not a.is_signed:
        return a.trunc_remainder(b)
    b = b.splat(a.value.type)
    rest = fmod(a, b) if a.is_float else a.trunc_remainder(b)
    is_other_sign = rest.ne(0) & (rest.lt(0) ^ b.lt(0))
    if a.is_float:  # NaN compares unequal to 0, and stays NaN in the sum
        return is_other_sign.select(rest + b, rest)
    return (is_other_sign & b.ne(0)).select(rest + b, rest)


def floor_divide(a: Val, b: Val) -> Val:
    """Quotient rounded down."""
    if not a.is_float:
        return _floor_divide_integer(a, b)
    a, b = a.splat(b.value.type), b.splat(a.value.type)
    rest = fmod(a, b)
    quotient = (a - rest) / b
    quotient = (rest.ne(0) & (rest.lt(0) ^ b.lt(0))).select(quotient - 1.0, quotient)
    whole = quotient.floor()
    whole = (quotient - whole).gt(0.5).select(whole + 1.0, whole)
    plain = a / b
    whole = quotient.eq(0).select(whole.like(0).copysign(plain), whole)
    return b.eq(0).select(plain, whole)


def _floor_divide_integer(a: Val, b: Val) -> Val:
    quotient = a / b
    if not a.is_signed:
        return quotient
    a, b = a.splat(b.value.type), b.splat(a.value.type)
    is_negative_inexact = (quotient * b).ne(a) & (a.lt(0) ^ b.lt(0)) & b.ne(0)
    return is_negative_inexact.select(quotient - 1, quotient)


def power(a: Val, b: Val) -> Val:
    """a ** b."""
    a, b = a.splat(b.value.type), b.splat(a.value.type)
    if a.is_float:
        return Val(vecmath.pow(a.value, b.value), a.dtype)

    def square_and_multiply(carried: list[Val]) -> list[Val]:
        result, base, rest = carried
        return [(rest & 1).ne(0).select(result * base, result), base * base, rest.shift_right(1)]

    (result, _, _) = repeated(DTYPES[a.dtype].bits - a.is_signed, [a.like(1), a, b], square_and_multiply)
    if not a.is_signed:
        return result
    of_minus_one = (b & 1).ne(0).select(a.like(-1), a.like(1))
    inverse = a.eq(1).select(a.like(1), a.eq(-1).select(of_minus_one, a.like(0)))
    return b.lt(0).select(inverse, result)
