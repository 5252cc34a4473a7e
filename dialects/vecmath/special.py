"""log gamma, digamma and the modified Bessel function of order 0."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.exponential import exp_fine, exp_unscaled, exp_wide, power_of_two
from mlc.dialects.vecmath.lanes import (
    Lane,
    fast_two_sum,
    fma,
    goes_wide,
    lanewise,
    select,
    through_f64,
    two_product,
    two_sum,
)
from mlc.dialects.vecmath.logarithm import (
    LN2,
    log1p_pair,
    log1p_plain,
    log_fine,
    scaled_up,
    short_parts,
    split_exponent,
)
from mlc.dialects.vecmath.pair import Pair, fitted_pair, select_pair
from mlc.dialects.vecmath.polynomial import fitted

STIRLING_START = 8.0
HALF_LOG_TAU = (float.fromhex("0x1.d67f1c864beb5p-1"), float.fromhex("-0x1.65b5a1b7ff5dfp-55"))  # log(2 pi) / 2
LOG_PI = (float.fromhex("0x1.250d048e7a1bdp+0"), float.fromhex("0x1.7abf2ad8d5088p-57"))
I0_SPLIT = 7.75
I0_CENTRE = 0.0645  # of 1/x beyond
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


def _log_of_pair(x: Pair) -> Pair:
    """log of a positive number."""
    return log_fine(x.high) + Pair.of(x.low / x.high)


def _lgamma_near_fine(z: Lane) -> Pair:
    """log gamma(z) in f64, 0 < z < 8: as in `_lgamma`."""
    is_under_one = z < 1.0
    y1, factor = select(is_under_one, z, z - 1.0), Pair.of(z.splat(1.0))
    for _ in range(int(STIRLING_START) - 2):
        is_low = y1 >= 1.0
        factor = select_pair(is_low, factor * Pair.of(y1), factor)
        y1 = select(is_low, y1 - 1.0, y1)
    below, centred = (Pair(*two_sum(y1, y1.splat(shift))) for shift in (-1.0, -0.5))
    near = Pair.of(y1) * (below * fitted_pair("lgamma", centred))
    log = _log_of_pair(select_pair(is_under_one, Pair.of(z), factor))
    return near + select_pair(is_under_one, -log, log)


def _lgamma_far_fine(z: Lane) -> tuple[Pair, Lane]:
    """(value, scale): log gamma(z) = value * scale in f64, z >= 8 and finite: Stirling's formula."""
    is_large = z > 2.0**500
    inverse = 1.0 / z
    tail = inverse * fitted("stirling", inverse * inverse, False)
    whole = Pair(*two_sum(z, z.splat(-0.5))) * log_fine(z).scaled(select(is_large, 2.0**-200, z.splat(1.0)))
    constant = Pair(*fast_two_sum(z.splat(HALF_LOG_TAU[0]), tail)) + Pair.of(z.splat(HALF_LOG_TAU[1]))
    less = Pair.of(select(is_large, z * 2.0**-200, z))
    return (whole - less) + constant, select(is_large, 2.0**200, z.splat(1.0))


def _lgamma_fine(x: Lane) -> Lane:
    z = x.abs()
    far, scale = _lgamma_far_fine(z.at_least(STIRLING_START))
    value = select_pair(z < STIRLING_START, _lgamma_near_fine(z.at_most(STIRLING_START)), far)
    sine, _ = _sin_cos_pi(x, False)
    reflected = Pair.constant(LOG_PI, x) - _log_of_pair(Pair(*two_product(z, sine))) - value
    # Below 2**-60 the reflection's own log would meet a product of denormals; gamma(x) is 1/x there.
    value = select_pair((x < 0.0) & (z > 2.0**-60), reflected, value)
    result = value.rounded() * scale
    is_pole = x.equals(x.floor()) & (x <= 0.0)
    result = select(is_pole | z.equals(pymath.inf), pymath.inf, result)
    return select(x.is_nan(), x, result)


@lanewise
def lgamma(x: Lane) -> Lane:
    """log |gamma(x)|; inf at 0, at negative integers and at both infinities.

    On the negative side the error near a root is small absolutely, not relatively.
    """
    if goes_wide(x):
        return through_f64(lambda wide: _lgamma(wide, True), x)
    return _lgamma_fine(x) if x.format.bits == 64 else _lgamma(x, False)


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
        far = fma(high, scaled, low * scaled) * _half_power(twice, x) * 2.0**64
    return select(size < I0_SPLIT, near, far)


def _half_power(twice: Lane, like: Lane) -> Lane:
    """2**(n - 64): e**limit is over the largest number where its Bessel function is not."""
    return power_of_two(twice - like.format.bias - 64, like.format.bits)


def _i0_fine(x: Lane) -> Lane:
    size = x.abs().at_most(I0_LIMIT[64])
    inner = size.at_most(I0_SPLIT)
    near = fitted_pair("i0_near", Pair(*two_product(inner, inner))).rounded()
    root = size.sqrt()
    inverse = Pair.of(size.splat(1.0)) / Pair.of(size.at_least(I0_SPLIT))
    ratio = fitted_pair("i0_far", inverse + Pair.of(size.splat(-I0_CENTRE))) / Pair(
        root, fma(-root, root, size) / (root + root)
    )
    power, twice = exp_fine(Pair.of(size))
    far = (power * ratio).rounded() * _half_power(twice, x) * 2.0**64
    return select(size < I0_SPLIT, near, far)


@lanewise
def i0(x: Lane) -> Lane:
    """The modified Bessel function of the first kind of order 0; inf where it overflows, NaN stays NaN."""
    if goes_wide(x):
        return through_f64(lambda wide: _i0(wide, True), x)
    return _i0_fine(x) if x.format.bits == 64 else _i0(x, False)
