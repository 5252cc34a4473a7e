"""The inverse circular and hyperbolic functions."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, goes_wide, lanewise, parts, select, two_sum
from mlc.dialects.vecmath.logarithm import LN2, log1p_of, log1p_pair, short_parts
from mlc.dialects.vecmath.pair import Pair, fitted_pair, select_pair
from mlc.dialects.vecmath.polynomial import fitted

HALF_PI = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))
TAN_EIGHTH = 0.41421356237309503  # tan(pi/8)


def _atan_ratio(top: Lane, bottom: Lane, is_wide: bool) -> tuple[Lane, Lane]:
    """(high, low): the arc whose tangent is top / bottom, 0 <= top <= bottom."""
    # Equal ones may be 0 or inf, whose quotient is no number.
    t = select(top.equals(bottom), select(bottom.equals(0.0), bottom, 1.0), top / bottom)
    z = t * t
    tail = t * z * fitted("atan", z, is_wide)
    if is_wide:
        return t, tail
    # The remainder of the division, through the derivative; where it is no number, top or bottom is 0 or inf.
    remainder = fma(-t, bottom, top) / fma(top, t, bottom)
    return t, tail + select(remainder.abs() < 1.0, remainder, 0.0)


def _atan_fine(top: Lane, bottom: Lane) -> Pair:
    """The arc whose tangent is top / bottom, 0 <= top <= bottom, in f64; from pi/8 on as pi/4 less another."""
    # Sizes that keep the remainders of the division from under- and overflow; 0 / 0 is to be 0, inf / inf 1.
    scale = select(bottom > 2.0**500, 2.0**-200, bottom.splat(2.0**200))
    top = select(bottom.equals(pymath.inf), select(top.equals(pymath.inf), 1.0, top * 0.0), top * scale)
    bottom = select(bottom.equals(pymath.inf) | bottom.equals(0.0), 1.0, bottom * scale)
    is_outer = top > bottom * TAN_EIGHTH
    zero = top.splat(0.0)
    more = Pair(*fast_two_sum(bottom, select(is_outer, top, zero)))
    less = Pair(*fast_two_sum(select(is_outer, bottom, top), select(is_outer, -top, zero)))
    t = less / more
    z = t * t
    arc = t + t * (z * fitted_pair("atan", z))
    quarter = Pair(select(is_outer, HALF_PI[0] / 2, zero), select(is_outer, HALF_PI[1] / 2, zero))
    arc = quarter + arc.signed(is_outer.int_cast(64) << 63)
    # The low part of a quotient this small would be a denormal, rounded too coarsely to help.
    tiny = top / bottom
    return select_pair(tiny < 2.0**-900, Pair.of(tiny), arc)


def _arc(y: Lane, x: Lane, is_wide: bool) -> Lane:
    """atan2 in the format of the operands."""
    up, right = y.abs(), x.abs()
    is_steep = up > right
    top, bottom = select(is_steep, right, up), select(is_steep, up, right)
    is_fine = not is_wide and y.format.bits == 64
    arc = _atan_fine(top, bottom) if is_fine else Pair(*_atan_ratio(top, bottom, is_wide))
    is_left = x.bits() < 0
    half_pi = parts(*HALF_PI, x)
    # The arc is base + sign * (high + low).
    base = select(is_steep, half_pi[0], select(is_left, 2 * half_pi[0], x.splat(0.0)))
    base_low = select(is_steep, half_pi[1], select(is_left, 2 * half_pi[1], x.splat(0.0)))
    flip = (is_steep ^ is_left).int_cast(x.format.bits) << (x.format.bits - 1)
    arc = arc.signed(flip)
    total, carried = fast_two_sum(base, arc.high)
    return (total + (carried + base_low + arc.low)).with_sign_of(y)


@lanewise
def atan2(y: Lane, x: Lane) -> Lane:
    """The angle of the point (x, y), from -pi to pi; signed zeros and infinities as in IEEE 754."""
    if goes_wide(y):
        return _arc(y.widened(), x.widened(), True).narrowed()
    return _arc(y, x, False)


@lanewise
def atan(x: Lane) -> Lane:
    """The inverse tangent; -0.0 and NaN stay as they are."""
    is_wide = goes_wide(x)
    wide = x.widened() if is_wide else x
    arc = _arc(wide, wide.splat(1.0), is_wide)
    return arc.narrowed() if is_wide else arc


def _asin_parts(x: Lane) -> tuple[Lane, Lane, Lane]:
    """(is_outer, high, low): asin |x| up to 1/2, beyond it asin(sqrt((1 - |x|) / 2)); NaN beyond 1."""
    size = x.abs()
    is_outer = size > 0.5
    half = fma(size, -0.5, 0.5)
    z = select(is_outer, half, size * size)
    root = half.sqrt()
    arm = select(is_outer, root, size)
    low = arm * z * fitted("asin", z, False)
    lost = fma(-root, root, half) / (root + root)
    return is_outer, arm, low + select(is_outer & (half > 0.0), lost, 0.0)


@lanewise
def asin(x: Lane) -> Lane:
    """The inverse sine; NaN beyond 1, -0.0 stays."""
    is_outer, high, low = _asin_parts(x)
    half_pi = parts(*HALF_PI, x)
    total, carried = fast_two_sum(x.splat(half_pi[0]), -2.0 * high)
    outer = total + (carried + half_pi[1] - 2.0 * low)
    return select(is_outer, outer, high + low).with_sign_of(x)


@lanewise
def acos(x: Lane) -> Lane:
    """The inverse cosine; NaN beyond 1."""
    is_outer, high, low = _asin_parts(x)
    half_pi = parts(*HALF_PI, x)
    is_negative = x < 0.0
    # pi/2 - asin x, 2 arm, or pi - 2 arm.
    high, low = select(is_outer, 2.0 * high, high), select(is_outer, 2.0 * low, low)
    zero = x.splat(0.0)
    base = select(is_outer, select(is_negative, 2 * half_pi[0], zero), half_pi[0])
    base_low = select(is_outer, select(is_negative, 2 * half_pi[1], zero), half_pi[1])
    is_minus = is_outer ^ is_negative ^ is_outer.splat(1)
    high, low = select(is_minus, -high, high), select(is_minus, -low, low)
    total, carried = fast_two_sum(base, high)
    return total + (carried + base_low + low)


def _log1p_sum(x: Lane, more: Lane, doublings: Lane | float) -> Lane:
    """log(1 + x + more) + doublings * ln2 of x >= 0; `more` is far below x."""
    e, f, lost = log1p_of(x)
    lost = lost + more / (x + 1.0)
    e = e + doublings
    high, low = log1p_pair(f)
    ln2 = short_parts(LN2, x)
    total, carried = fast_two_sum(e * ln2[0], high)
    return total + (fma(e, ln2[1], low + carried) + lost)


def _log1p_of_large(x: Lane, argument: Lane, lost: Lane) -> Lane:
    """log(1 + argument + lost), or log(2 x) where the square of x might overflow and adding 1 to it is lost."""
    is_large = x > pymath.ldexp(1.0, (x.format.mantissa_bits + 9) // 2)
    doublings = select(is_large, 1.0, x.splat(0.0))
    return _log1p_sum(select(is_large, x - 1.0, argument), select(is_large, 0.0, lost), doublings)


@lanewise
def asinh(x: Lane) -> Lane:
    """The inverse hyperbolic sine; -0.0, inf and NaN stay as they are."""
    size = x.abs()
    square = size * size
    value = _log1p_of_large(size, *fast_two_sum(size, square / ((square + 1.0).sqrt() + 1.0)))
    is_plain = (size < pymath.inf) & (size > pymath.ldexp(1.0, -x.format.mantissa_bits // 2 - 2))
    return select(is_plain, value.with_sign_of(x), x)


@lanewise
def acosh(x: Lane) -> Lane:
    """The inverse hyperbolic cosine; NaN below 1."""
    above = x - 1.0
    value = _log1p_of_large(x, *two_sum(above, fma(above, above, above + above).sqrt()))
    return select(x < pymath.inf, select(x < 1.0, pymath.nan, value), x)


@lanewise
def atanh(x: Lane) -> Lane:
    """The inverse hyperbolic tangent; inf at 1, NaN beyond it, -0.0 stays."""
    size = x.abs()
    z = size * size
    near = fma(size * z * 0.5, fitted("log", z, False), size)
    bottom = 1.0 - size
    quotient = (size + size) / bottom
    lost = (1.0 - bottom) - size
    remainder = (fma(-quotient, bottom, size + size) - quotient * lost) / bottom
    value = select(size < 0.17, near, 0.5 * _log1p_sum(quotient, remainder, 0.0))
    outside = select(size.equals(1.0), pymath.inf, x.splat(pymath.nan))
    return select(size < 1.0, value, outside).with_sign_of(x)
