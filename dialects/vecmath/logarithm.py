"""Logarithms and pow.

x = 2**e (1 + f) with 1 + f from 1/sqrt(2) to sqrt(2); with s = f / (2 + f),
log(1 + f) = 2 atanh(s) = 2 s + s**3 p(s**2).
f32 goes through f64 with few terms; in f64, or without it, the leading terms are kept as sums of two.
"""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.lanes import (
    Lane,
    fast_two_sum,
    fma,
    goes_wide,
    lanewise,
    parts,
    select,
    two_product,
)
from mlc.dialects.vecmath.pair import Pair, fitted_pair
from mlc.dialects.vecmath.polynomial import fitted

SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}
LN2 = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))


def split_exponent(x: Lane) -> tuple[Lane, Lane]:
    """(e, f) of a positive normal x: x = 2**e (1 + f), both as floats."""
    bits, bias = x.format.mantissa_bits, x.format.bias
    start = SQRT_HALF_BITS[x.format.bits]
    above = x.bits() - start
    f = ((above & ((1 << bits) - 1)) + start).as_float() - 1.0
    biased = (above + (bias << bits)).shift_right_zero(bits)
    # An integer in the low bits of 2**52 is its float without a conversion, which AVX2 lacks.
    return (biased | ((bias + bits) << bits)).as_float() - (2.0**bits + bias), f


def log1p_plain(f: Lane, name: str = "log") -> Lane:
    """log(1 + f), in f64 good to f32, in f32 within 2 ulp, for 1 + f from 1/sqrt(2) to sqrt(2)."""
    s = f / (f + 2.0)
    z = s * s
    return fma(s * z, fitted(name, z, z.format.bits == 64), s + s)


def log1p_pair(f: Lane) -> tuple[Lane, Lane]:
    """(high, low): log(1 + f) as a sum, its error under 2**-3 of `high`'s ulp; same range."""
    s = f / (f + 2.0)
    z = s * s
    square, lost = two_product(f, 0.5 * f)
    high, carried = fast_two_sum(f, -square)
    return high, (carried - lost) + s * fma(z, fitted("log", z, False), square)


def _finish(x: Lane, value: Lane) -> Lane:
    """The value, or what a logarithm is at 0, below it, at inf and at NaN."""
    outside = select(x.equals(0.0), -pymath.inf, x.splat(pymath.nan))
    value = select(x < pymath.inf, value, x)
    return select(x > 0.0, value, outside)


def denormal_shift(x: Lane) -> int:
    """How far a denormal is scaled up: a multiple of 3, for the cube root's sake."""
    return {32: 24, 64: 54}[x.format.bits]


def scaled_up(x: Lane) -> tuple[Lane, Lane]:
    """(y, e0): x = 2**e0 y with y normal where x is a denormal."""
    is_small = x < x.format.smallest_normal
    shift = denormal_shift(x)
    return select(is_small, x * 2.0**shift, x), select(is_small, float(-shift), x.splat(0.0))


def short_parts(constant: tuple[float, float], x: Lane) -> tuple[float, float]:
    """The constant as a sum of two, the first so short that an exponent times it is exact."""
    return parts(*constant, x, short_bits=15 if x.format.bits == 32 else 41)


def _log_pair(x: Lane, per_e: tuple[float, float], per_log: tuple[float, float]) -> Lane:
    """e * per_e + log(1 + f) * per_log, each factor a sum of two numbers."""
    per_e, per_log = short_parts(per_e, x), parts(*per_log, x)
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


def log1p_fine(f: Lane) -> Pair:
    """log(1 + f) in f64, off by 2**-74 of it, for 1 + f from 1/sqrt(2) to sqrt(2)."""
    bottom = f + 2.0
    s = Pair.of(f) / Pair(bottom, f - (bottom - 2.0))
    return s.scaled(2.0) * fitted_pair("atanh", s * s)


def log_fine(x: Lane, per_e: tuple[float, float] = LN2, per_log: tuple[float, float] = (1.0, 0.0)) -> Pair:
    """e * per_e + log(1 + f) * per_log of a positive finite f64: its logarithm as precise as `log1p_fine`."""
    y, e0 = scaled_up(x)
    e, f = split_exponent(y)
    e = e + e0
    log = log1p_fine(f)
    if per_log != (1.0, 0.0):
        log = log * Pair.constant(per_log, x)
    # The second product is rounded, to 2**-85.
    first, rest = short_parts(per_e, x)
    return Pair(e * first, e * rest) + log


def _log_wide(x: Lane, per_e: float, per_log: float) -> Lane:
    e, f = split_exponent(x.widened())
    value = log1p_plain(f)
    if per_log != 1.0:
        value = value * per_log
    return _finish(x, fma(e, per_e, value).narrowed())


LOG2_E = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
LOG10_E = (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57"))
LOG10_2 = (float.fromhex("0x1.34413509f79ffp-2"), float.fromhex("-0x1.9dc1da994fd21p-59"))


@lanewise
def log(x: Lane) -> Lane:
    """The natural logarithm; -inf at 0, NaN below it."""
    return _log_wide(x, LN2[0], 1.0) if goes_wide(x) else _log_pair(x, LN2, (1.0, 0.0))


@lanewise
def log2(x: Lane) -> Lane:
    """The logarithm of base 2, exact at powers of two; -inf at 0, NaN below it."""
    if x.format.bits == 64:
        return _finish(x, log_fine(x, (1.0, 0.0), LOG2_E).rounded())
    return _log_wide(x, 1.0, LOG2_E[0]) if goes_wide(x) else _log_pair(x, (1.0, 0.0), LOG2_E)


@lanewise
def log10(x: Lane) -> Lane:
    """The logarithm of base 10; -inf at 0, NaN below it."""
    if x.format.bits == 64:
        return _finish(x, log_fine(x, LOG10_2, LOG10_E).rounded())
    return _log_wide(x, LOG10_2[0], LOG10_E[0]) if goes_wide(x) else _log_pair(x, LOG10_2, LOG10_E)


def log1p_of(x: Lane) -> tuple[Lane, Lane, Lane]:
    """(e, f, c) of x > -1: 1 + x = 2**e (1 + f) + c, |c| at most half an ulp of 1 + x."""
    whole = x + 1.0
    # Knuth's sum: x may be either side of 1.
    back = whole - x
    lost = (x - (whole - back)) + (1.0 - back)
    e, f = split_exponent(whole)
    return e, f, lost / whole


@lanewise
def log1p(x: Lane) -> Lane:
    """log(1 + x); -inf at -1, NaN below it; tiny x and -0.0 stay as they are."""
    is_wide = goes_wide(x)
    e, f, lost = log1p_of(x.widened() if is_wide else x)
    if is_wide:
        value = (fma(e, LN2[0], log1p_plain(f)) + lost).narrowed()
    else:
        high, low = log1p_pair(f)
        ln2 = short_parts(LN2, x)
        total, carried = fast_two_sum(e * ln2[0], high)
        value = total + (fma(e, ln2[1], low + carried) + lost)
    outside = select(x.equals(-1.0), -pymath.inf, x.splat(pymath.nan))
    value = select(x < pymath.inf, value, x)
    value = select(x > -1.0, value, outside)
    return select(x.abs() < pymath.ldexp(1.0, -x.format.mantissa_bits - 2), x, value)
