"""log gamma, digamma and the modified Bessel function of order 0."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.exponential import exp_unscaled, exp_wide, power_of_two
from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, goes_wide, lanewise, select, through_f64
from mlc.dialects.vecmath.logarithm import (
    LN2,
    log1p_pair,
    log1p_plain,
    scaled_up,
    short_parts,
    split_exponent,
)
from mlc.dialects.vecmath.polynomial import fitted

STIRLING_START = 8.0
I0_LIMIT = {32: 92.0, 64: 715.0}


def _log(x: Lane, is_wide: bool) -> Lane:
    """log of a positive finite number, good to f32 relatively (also near 1) or to its format."""
    if is_wide:
        e, f = split_exponent(x)
        return fma(e, LN2[0], log1p_plain(f, "log_fine"))
    scaled, e0 = scaled_up(x)
    e, f = split_exponent(scaled)
    e = e + e0
    high, low = log1p_pair(f)
    ln2 = short_parts(LN2, x)
    total, carried = fast_two_sum(e * ln2[0], high)
    return total + fma(e, ln2[1], low + carried)


def _sin_cos_pi(x: Lane, is_wide: bool) -> tuple[Lane, Lane]:
    """(|sin(pi x)|, the offset of x from its nearest integer, -1/2 to 1/2)."""
    offset = x - (x + 0.5).floor()
    return (offset * fitted("sin_pi", offset * offset, is_wide)).abs(), offset


def _lgamma(x: Lane, is_wide: bool) -> Lane:
    z = x.abs()
    # Under 8: a polynomial in y on [1, 2], steps of the recurrence away. y - 1 is exact where y may not be.
    is_under_one = z < 1.0
    y1, factor = select(is_under_one, z, z - 1.0), z.splat(1.0)
    for _ in range(int(STIRLING_START) - 2):
        is_low = y1 >= 1.0
        factor, y1 = select(is_low, factor * y1, factor), select(is_low, y1 - 1.0, y1)
    near = fma(y1 * (1.0 - y1), -fitted("lgamma", y1 - 0.5, is_wide), 0.0)
    is_near = z < STIRLING_START
    log = _log(select(is_under_one, z, select(is_near, factor, z)), is_wide)
    inverse = 1.0 / z
    tail = inverse * fitted("stirling", inverse * inverse, is_wide)
    far = fma(z - 0.5, log, (0.5 * pymath.log(2 * pymath.pi) + tail) - z)
    value = select(is_near, near + select(is_under_one, -log, log), far)
    sine, _ = _sin_cos_pi(x, is_wide)
    reflected = (pymath.log(pymath.pi) - _log(z * sine, is_wide)) - value
    # Below 2**-60 the reflection's own log would meet a product of denormals; gamma(x) is 1/x there.
    value = select((x < 0.0) & (z > 2.0**-60), reflected, value)
    is_pole = x.equals(x.floor()) & (x <= 0.0)
    value = select(is_pole | z.equals(pymath.inf), pymath.inf, value)
    return select(x.is_nan(), x, value)


@lanewise
def lgamma(x: Lane) -> Lane:
    """log |gamma(x)|; inf at 0, at negative integers and at both infinities.

    On the negative side the error near a root is small absolutely, not relatively.
    """
    return through_f64(lambda wide: _lgamma(wide, True), x) if goes_wide(x) else _lgamma(x, False)


def _digamma(x: Lane, is_wide: bool) -> Lane:
    is_left = x < 0.0
    z = select(is_left, 1.0 - x, x)
    # Up from z by as many steps as reach 8: sum of 1/(z + k) as one fraction.
    bottom, top, w = z.splat(1.0), z.splat(0.0), z
    for _ in range(int(STIRLING_START)):
        is_low = w < STIRLING_START
        top = select(is_low, fma(top, w, bottom), top)
        bottom = select(is_low, bottom * w, bottom)
        w = select(is_low, w + 1.0, w)
    inverse = 1.0 / w
    square = inverse * inverse
    rest = fma(inverse, 0.5, square * fitted("digamma", square, is_wide))
    value = (_log(w, False) - rest) - top / bottom
    sine, offset = _sin_cos_pi(x, is_wide)
    # cot(pi x) = cos / sin; the cosine is the sine half a turn on.
    cosine = (0.5 - offset.abs()) * fitted("sin_pi", (0.5 - offset.abs()) * (0.5 - offset.abs()), is_wide)
    cotangent = (cosine / sine).with_sign_of(offset)
    value = select(is_left, fma(cotangent, -pymath.pi, value), value)
    is_pole = is_left & x.equals(x.floor())
    value = select(is_pole, pymath.nan, value)
    value = select(x.equals(0.0), x.splat(-pymath.inf).with_sign_of(-x), value)
    value = select(x.equals(pymath.inf), x, value)
    return select(x.is_nan() | x.equals(-pymath.inf), pymath.nan, value)


@lanewise
def digamma(x: Lane) -> Lane:
    """The derivative of log gamma; at 0 an infinity of the sign opposite to x's, NaN at negative integers and -inf."""
    return through_f64(lambda wide: _digamma(wide, True), x) if goes_wide(x) else _digamma(x, False)


def _i0(x: Lane, is_wide: bool) -> Lane:
    size = x.abs().at_most(100.0 if is_wide else I0_LIMIT[x.format.bits])
    near = fitted("i0_near", size * size, is_wide)
    scaled = fitted("i0_far", 1.0 / size, is_wide) / size.sqrt()
    if is_wide:
        far = exp_wide(size, "wide_fine") * scaled
    else:
        high, low, twice = exp_unscaled(size)
        half = power_of_two(
            twice - x.format.bias - 64, x.format.bits
        )  # e**limit is over the largest number, its Bessel is not
        far = fma(high, scaled, low * scaled) * half * 2.0**64
    return select(size < 7.75, near, far)


@lanewise
def i0(x: Lane) -> Lane:
    """The modified Bessel function of the first kind of order 0; inf where it overflows, NaN stays NaN."""
    return through_f64(lambda wide: _i0(wide, True), x) if goes_wide(x) else _i0(x, False)
