"""The inverse circular and hyperbolic functions."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, horner, lanewise, select, two_sum
from mlc.dialects.vecmath.logarithm import LN2_HIGH, LN2_LOW, log1p_of, log1p_pair, log1p_wide

HALF_PI = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))


def _atan_ratio(top: Lane, bottom: Lane, is_wide: bool) -> tuple[Lane, Lane]:
    """(high, low): the arc whose tangent is top / bottom, 0 <= top <= bottom."""
    # Equal ones may be 0 or inf, whose quotient is no number.
    t = select(top.equals(bottom), select(bottom.equals(0.0), bottom, 1.0), top / bottom)
    z = t * t
    tail = t * z * horner(z, COEFFICIENTS["atan", "wide" if is_wide else "f64"])
    if is_wide:
        return t, tail
    # The remainder of the division, through the derivative; where it is no number, top or bottom is 0 or inf.
    remainder = fma(-t, bottom, top) / fma(top, t, bottom)
    return t, tail + select(remainder.abs() < 1.0, remainder, 0.0)


def _arc(y: Lane, x: Lane, is_wide: bool) -> Lane:
    """atan2 of f64 operands."""
    up, right = y.abs(), x.abs()
    is_steep = up > right
    top, bottom = select(is_steep, right, up), select(is_steep, up, right)
    high, low = _atan_ratio(top, bottom, is_wide)
    is_left = x.bits() < 0
    # The arc is base + sign * (high + low).
    base = select(is_steep, HALF_PI[0], select(is_left, 2 * HALF_PI[0], x.splat(0.0)))
    base_low = select(is_steep, HALF_PI[1], select(is_left, 2 * HALF_PI[1], x.splat(0.0)))
    flip = (is_steep ^ is_left).int_cast(64) << 63
    high, low = ((part.bits() ^ flip).as_float() for part in (high, low))
    total, carried = fast_two_sum(base, high)
    return (total + (carried + base_low + low)).with_sign_of(y)


@lanewise
def atan2(y: Lane, x: Lane) -> Lane:
    """The angle of the point (x, y), from -pi to pi; signed zeros and infinities as in IEEE 754."""
    if y.format.bits == 32:
        return _arc(y.widened(), x.widened(), True).narrowed()
    return _arc(y, x, False)


@lanewise
def atan(x: Lane) -> Lane:
    """The inverse tangent; -0.0 and NaN stay as they are."""
    is_wide = x.format.bits == 32
    wide = x.widened() if is_wide else x
    arc = _arc(wide, wide.splat(1.0), is_wide)
    return arc.narrowed() if is_wide else arc


def _asin_parts(x: Lane, is_wide: bool) -> tuple[Lane, Lane, Lane]:
    """(is_outer, high, low): asin |x| up to 1/2, beyond it asin(sqrt((1 - |x|) / 2)); NaN beyond 1."""
    size = x.abs()
    is_outer = size > 0.5
    half = fma(size, -0.5, 0.5)
    z = select(is_outer, half, size * size)
    root = half.sqrt()
    arm = select(is_outer, root, size)
    low = arm * z * horner(z, COEFFICIENTS["asin", "wide" if is_wide else "f64"])
    if not is_wide:
        lost = fma(-root, root, half) / (root + root)
        low = low + select(is_outer & (half > 0.0), lost, 0.0)
    return is_outer, arm, low


@lanewise
def asin(x: Lane) -> Lane:
    """The inverse sine; NaN beyond 1, -0.0 stays."""
    is_wide = x.format.bits == 32
    wide = x.widened() if is_wide else x
    is_outer, high, low = _asin_parts(wide, is_wide)
    total, carried = fast_two_sum(wide.splat(HALF_PI[0]), -2.0 * high)
    outer = total + (carried + HALF_PI[1] - 2.0 * low)
    value = select(is_outer, outer, high + low).with_sign_of(wide)
    return value.narrowed() if is_wide else value


@lanewise
def acos(x: Lane) -> Lane:
    """The inverse cosine; NaN beyond 1."""
    is_wide = x.format.bits == 32
    wide = x.widened() if is_wide else x
    is_outer, high, low = _asin_parts(wide, is_wide)
    is_negative = wide < 0.0
    # pi/2 - asin x, 2 arm, or pi - 2 arm.
    high, low = select(is_outer, 2.0 * high, high), select(is_outer, 2.0 * low, low)
    zero = wide.splat(0.0)
    base = select(is_outer, select(is_negative, 2 * HALF_PI[0], zero), HALF_PI[0])
    base_low = select(is_outer, select(is_negative, 2 * HALF_PI[1], zero), HALF_PI[1])
    is_minus = is_outer ^ is_negative ^ is_outer.splat(1)
    high, low = select(is_minus, -high, high), select(is_minus, -low, low)
    total, carried = fast_two_sum(base, high)
    value = total + (carried + base_low + low)
    return value.narrowed() if is_wide else value


def _log1p_sum(x: Lane, more: Lane | None, is_wide: bool, doublings: Lane | float) -> Lane:
    """log(1 + x + more) + doublings * ln2 of f64 x >= 0; `more` is far below x."""
    e, f, lost = log1p_of(x)
    if more is not None:
        lost = lost + more / (x + 1.0)
    e = e + doublings
    if is_wide:
        return fma(e, pymath.log(2), log1p_wide(f)) + lost
    high, low = log1p_pair(f)
    total, carried = fast_two_sum(e * LN2_HIGH, high)
    return total + (fma(e, LN2_LOW, low + carried) + lost)


@lanewise
def asinh(x: Lane) -> Lane:
    """The inverse hyperbolic sine; -0.0, inf and NaN stay as they are."""
    is_wide = x.format.bits == 32
    wide = (x.widened() if is_wide else x).abs()
    square = wide * wide
    argument, lost = fast_two_sum(wide, square / ((square + 1.0).sqrt() + 1.0))
    doublings: Lane | float = 0.0
    if not is_wide:  # the square of what an f32 holds does not overflow
        is_large = wide > 2.0**30
        argument = select(is_large, wide - 1.0, argument)
        lost = select(is_large, 0.0, lost)
        doublings = select(is_large, 1.0, wide.splat(0.0))
    value = _log1p_sum(argument, None if is_wide else lost, is_wide, doublings)
    value = value.narrowed() if is_wide else value
    is_plain = (x.abs() < pymath.inf) & (x.abs() > pymath.ldexp(1.0, -x.format.mantissa_bits // 2 - 2))
    return select(is_plain, value.with_sign_of(x), x)


@lanewise
def acosh(x: Lane) -> Lane:
    """The inverse hyperbolic cosine; NaN below 1."""
    is_wide = x.format.bits == 32
    wide = x.widened() if is_wide else x
    above = wide - 1.0
    argument, lost = two_sum(above, fma(above, above, above + above).sqrt())
    doublings: Lane | float = 0.0
    if not is_wide:
        is_large = wide > 2.0**30
        argument = select(is_large, above, argument)
        lost = select(is_large, 0.0, lost)
        doublings = select(is_large, 1.0, wide.splat(0.0))
    value = _log1p_sum(argument, None if is_wide else lost, is_wide, doublings)
    value = value.narrowed() if is_wide else value
    return select(x < pymath.inf, select(x < 1.0, pymath.nan, value), x)


@lanewise
def atanh(x: Lane) -> Lane:
    """The inverse hyperbolic tangent; inf at 1, NaN beyond it, -0.0 stays."""
    is_wide = x.format.bits == 32
    wide = (x.widened() if is_wide else x).abs()
    z = wide * wide
    near = fma(wide * z * 0.5, horner(z, COEFFICIENTS["log", "wide" if is_wide else "f64"]), wide)
    bottom = 1.0 - wide
    quotient = (wide + wide) / bottom
    remainder = None if is_wide else fma(-quotient, bottom, wide + wide) / bottom
    if remainder is not None:
        lost = (1.0 - bottom) - wide
        remainder = remainder - quotient * lost / bottom
    far = 0.5 * _log1p_sum(quotient, remainder, is_wide, 0.0)
    value = select(wide < 0.17, near, far)
    value = value.narrowed() if is_wide else value
    size = x.abs()
    outside = select(size.equals(1.0), pymath.inf, x.splat(pymath.nan))
    return select(size < 1.0, value, outside).with_sign_of(x)
