"""Logarithms and pow.

x = 2**e (1 + f) with 1 + f from 1/sqrt(2) to sqrt(2); with s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2 s + s**3 p(s**2).
For f32 all of it is done in f64 with few terms; for f64 the leading terms are kept as sums of two.
"""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import (
    Lane,
    fast_two_sum,
    fma,
    horner,
    lanewise,
    select,
    two_product,
    two_sum,
)

SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
MANTISSA_MASK = (1 << 52) - 1
LN2_HIGH = float.fromhex("0x1.62e42fefa4p-1")  # 41 bits: e * LN2_HIGH is exact
LN2_LOW = float.fromhex("-0x1.8432a1b0e2634p-43")


def split_exponent(x: Lane) -> tuple[Lane, Lane]:
    """(e, f) of a positive normal f64: x = 2**e (1 + f), both as f64."""
    above = x.bits() - SQRT_HALF_BITS
    f = ((above & MANTISSA_MASK) + SQRT_HALF_BITS).as_float() - 1.0
    biased = (above + (1023 << 52)).shift_right_zero(52)
    # An integer in the low bits of 2**52 is its float without a conversion, which AVX2 lacks.
    return (biased | 0x4330000000000000).as_float() - (2.0**52 + 1023), f


def log1p_wide(f: Lane, precision: str = "wide") -> Lane:
    """log(1 + f) in f64, good to f32, for 1 + f from 1/sqrt(2) to sqrt(2)."""
    s = f / (f + 2.0)
    z = s * s
    return fma(s * z, horner(z, COEFFICIENTS["log", precision]), s + s)


def log1p_pair(f: Lane) -> tuple[Lane, Lane]:
    """(high, low): log(1 + f) in f64 as a sum, its error under 2**-5 of `high`'s ulp; same range."""
    s = f / (f + 2.0)
    z = s * s
    square, lost = two_product(f, 0.5 * f)
    high, carried = fast_two_sum(f, -square)
    return high, (carried - lost) + s * fma(z, horner(z, COEFFICIENTS["log", "f64"]), square)


def _finish(x: Lane, value: Lane) -> Lane:
    """The value, or what a logarithm is at 0, below it, at inf and at NaN."""
    outside = select(x.equals(0.0), -pymath.inf, x.splat(pymath.nan))
    value = select(x < pymath.inf, value, x)
    return select(x > 0.0, value, outside)


def scaled_up(x: Lane) -> tuple[Lane, Lane]:
    """(y, e0): f64 x = 2**e0 y with y normal where x is a denormal."""
    is_small = x < x.format.smallest_normal
    return select(is_small, x * 2.0**54, x), select(is_small, -54.0, x.splat(0.0))


def _log_f64(x: Lane, per_e: tuple[float, float], per_log: tuple[float, float]) -> Lane:
    """e * per_e + log(1 + f) * per_log, each factor a sum of two numbers; per_e[0] is short."""
    y, e0 = scaled_up(x)
    e, f = split_exponent(y)
    e = e + e0
    high, low = log1p_pair(f)
    if per_log != (1.0, 0.0):
        scaled, lost = two_product(high, per_log[0])
        low = fma(high, per_log[1], fma(low, per_log[0], lost))
        high = scaled
    total, lost = fast_two_sum(e * per_e[0], high)
    return _finish(x, total + fma(e, per_e[1], low + lost))


def _log_f32(x: Lane, per_e: float, per_log: float) -> Lane:
    e, f = split_exponent(x.widened())
    value = log1p_wide(f)
    if per_log != 1.0:
        value = value * per_log
    return _finish(x, fma(e, per_e, value).narrowed())


LOG2_E = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
LOG10_E = (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57"))
LOG10_2 = (float.fromhex("0x1.34413509f8p-2"), float.fromhex("-0x1.80433b83b532ap-44"))


@lanewise
def log(x: Lane) -> Lane:
    """The natural logarithm; -inf at 0, NaN below it."""
    return _log_f32(x, pymath.log(2), 1.0) if x.format.bits == 32 else _log_f64(x, (LN2_HIGH, LN2_LOW), (1.0, 0.0))


@lanewise
def log2(x: Lane) -> Lane:
    """The logarithm of base 2, exact at powers of two; -inf at 0, NaN below it."""
    return _log_f32(x, 1.0, LOG2_E[0]) if x.format.bits == 32 else _log_f64(x, (1.0, 0.0), LOG2_E)


@lanewise
def log10(x: Lane) -> Lane:
    """The logarithm of base 10; -inf at 0, NaN below it."""
    return _log_f32(x, pymath.log10(2), LOG10_E[0]) if x.format.bits == 32 else _log_f64(x, LOG10_2, LOG10_E)


def log1p_of(x: Lane) -> tuple[Lane, Lane, Lane]:
    """(e, f, c) of f64 x > -1: 1 + x = 2**e (1 + f) + c, |c| at most half an ulp of 1 + x."""
    whole = x + 1.0
    # Knuth's sum: x may be either side of 1.
    back = whole - x
    lost = (x - (whole - back)) + (1.0 - back)
    e, f = split_exponent(whole)
    return e, f, lost / whole


@lanewise
def log1p(x: Lane) -> Lane:
    """log(1 + x); -inf at -1, NaN below it; tiny x and -0.0 stay as they are."""
    wide = x.widened() if x.format.bits == 32 else x
    e, f, lost = log1p_of(wide)
    if x.format.bits == 32:
        value = (fma(e, pymath.log(2), log1p_wide(f)) + lost).narrowed()
    else:
        high, low = log1p_pair(f)
        total, carried = fast_two_sum(e * LN2_HIGH, high)
        value = total + (fma(e, LN2_LOW, low + carried) + lost)
    outside = select(x.equals(-1.0), -pymath.inf, x.splat(pymath.nan))
    value = select(x < pymath.inf, value, x)
    value = select(x > -1.0, value, outside)
    return select(x.abs() < pymath.ldexp(1.0, -x.format.mantissa_bits - 2), x, value)
