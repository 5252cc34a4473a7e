"""erf, erfc and the inverse of erf."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.exponential import (
    LOG2_E,
    exp_fine,
    exp_unscaled,
    power_of_two,
    scale_by_halves,
    scale_once,
)
from mlc.dialects.vecmath.lanes import Lane, fma, goes_wide, halves, lanewise, select, through_f64, two_product, two_sum
from mlc.dialects.vecmath.logarithm import log1p_plain, split_exponent
from mlc.dialects.vecmath.pair import Pair, fitted_pair, select_pair
from mlc.dialects.vecmath.polynomial import fitted

ERF_MIDDLE = 7.703125
ERFINV_SPLIT = 6.28
ERFC_LIMIT = {32: 10.06, 64: 27.3}  # 0 beyond
TWO_OVER_ROOT_PI = 2 / pymath.sqrt(pymath.pi)
ERF_LIMIT = 3.925  # erf rounds to 1 in f32 from 3.92 on
ERFCX_CENTRE = 3.0
LN2 = 0.6931471805599453
CDF_MIDDLE = 15.25
CDF_LIMIT = 5.5122213  # here the polynomial gives 1/2 to the last bit, so that what lies beyond is 0 or 1


def _erf_wide(x: Lane) -> Lane:
    """erf in f64 good to f32, |x| <= 3.925: one odd polynomial, no exponential and no branch."""
    return x * fitted("erf", fma(x, x, -ERF_MIDDLE), True)


def _erfc_wide(x: Lane) -> Lane:
    """erfc in f64 good to f32."""
    size = x.abs().at_most(10.5)
    inverse = 1.0 / (size + ERFCX_CENTRE)
    tail = inverse * fitted("erfcx", fma(inverse, -2 * ERFCX_CENTRE, 1.0), True)
    square = size * size
    shift = x.format.rounder + x.format.bias
    shifted = fma(square, -LOG2_E, shift)
    n = shifted - shift
    r = fma(n, -LN2, -square)
    power = fma(r * r, fitted("exp", r, True), r)
    scale = power_of_two(shifted.bits(), 64) * tail
    positive = fma(power, scale, scale)
    return select(x < 0.0, 2.0 - positive, positive)


def erfc_pair(size: Lane) -> tuple[Lane, Lane, Lane]:
    """(high, low, twice): erfc(size) = (high + low) 2**n for 0 <= size <= ERFC_LIMIT; `twice` as in `exp_unscaled`."""
    bottom, lost = two_sum(size, size.splat(ERFCX_CENTRE))
    inverse = 1.0 / bottom
    inverse_low = fma(-lost, inverse, fma(-inverse, bottom, 1.0)) * inverse
    ratio = fma(inverse, -2 * ERFCX_CENTRE, 1.0)
    poly = fitted("erfcx", ratio, False)
    square, square_low = two_product(size, size)
    high, low, twice = exp_unscaled(-square)
    low = fma(-square_low, high + low, low)
    tail, tail_low = two_product(poly, inverse)
    tail_low = fma(poly, inverse_low, tail_low)
    product, product_low = two_product(high, tail)
    return product, fma(high, tail_low, fma(low, tail, product_low)), twice


def _erf_near_fine(size: Lane) -> Pair:
    """erf(size) in f64 for 0 <= size < 1."""
    return Pair.of(size) * fitted_pair("erf_near", Pair(*two_product(size, size)))


def _erfc_far_fine(size: Lane) -> tuple[Pair, Lane]:
    """(value, twice): erfc(size) = value * 2**n in f64 for 1 <= size <= ERFC_LIMIT; `twice` as in `exp_unscaled`."""
    one = Pair.constant((1.0, 0.0), size)
    inverse = one / Pair(*two_sum(size, size.splat(ERFCX_CENTRE)))
    ratio = one + inverse * Pair.constant((-2 * ERFCX_CENTRE, 0.0), size)
    power, twice = exp_fine(-Pair(*two_product(size, size)))
    return power * (inverse * fitted_pair("erfcx", ratio)), twice


def _unscaled(value: Pair, twice: Lane) -> Pair:
    """value * 2**n, which is a normal number."""
    return value.scaled(power_of_two(twice - value.high.format.bias, value.high.format.bits))


def _erf_fine(x: Lane) -> Lane:
    size = x.abs()
    far = Pair.constant((1.0, 0.0), x) - _unscaled(*_erfc_far_fine(size.at_most(6.5).at_least(1.0)))
    # Low parts of tiny numbers would be denormals.
    is_tiny = size < 2.0**-500
    near = _erf_near_fine(select(is_tiny, size * 2.0**200, size.at_most(1.0)))
    value = select_pair(size < 1.0, near, far).rounded()
    return (value * select(is_tiny, 2.0**-200, x.splat(1.0))).with_sign_of(x)


def _erfc_fine(x: Lane) -> Lane:
    size = x.abs()
    is_left, is_near = x < 0.0, size < 1.0
    # From -6.5 down 2 - erfc(-x) rounds to 2 whatever the tail.
    limit = select(is_left, 6.5, x.splat(ERFC_LIMIT[64]))
    tail, twice = _erfc_far_fine(select(size > limit, limit, size).at_least(1.0))
    near = _erf_near_fine(size.at_most(1.0)).signed(x.bits() & x.splat(-0.0).bits())
    zero = x.splat(0.0)
    whole = Pair(select(is_near, 1.0, x.splat(2.0)), zero)
    sums = whole - select_pair(is_near, near, _unscaled(tail, twice))
    return select(is_near | is_left, sums.rounded(), scale_once(tail, twice))


def _erf_pair(x: Lane) -> Lane:
    size = x.abs().at_most(6.5)
    z = x * x
    near = fma(x, fitted("erf_near_z", z, False), x)
    high, low, twice = erfc_pair(size)
    scale = power_of_two(twice - x.format.bias, x.format.bits)
    far = 1.0 - (high + low) * scale
    return select(size < 1.0, near, far.with_sign_of(x))


@lanewise
def erf(x: Lane) -> Lane:
    """The error function; -0.0 and NaN stay as they are."""
    if goes_wide(x):
        return through_f64(_erf_wide, x.at_most(ERF_LIMIT).at_least(-ERF_LIMIT))
    return _erf_fine(x) if x.format.bits == 64 else _erf_pair(x)


@lanewise
def normal_cdf(x: Lane) -> Lane:
    """The normal distribution (1 + erf(x / sqrt(2))) / 2; f32 errs by 1.3e-7 at most, which GELU multiplies by x.

    NaN stays NaN; 0 below -5.5122 and 1 above 5.5122 in f32, in half the instructions of erf by way of f64.
    """
    if x.format.bits == 64:
        return 0.5 * Lane(erfc((x * -pymath.sqrt(0.5)).value))
    x = x.at_most(CDF_LIMIT).at_least(-CDF_LIMIT)
    u = fma(x, x, -CDF_MIDDLE)
    return x * halves(u, COEFFICIENTS["normal_cdf", "f32"]) + 0.5


@lanewise
def erfc(x: Lane) -> Lane:
    """1 - erf(x) without its cancellation; NaN stays NaN."""
    if goes_wide(x):
        return through_f64(_erfc_wide, x)
    if x.format.bits == 64:
        return _erfc_fine(x)
    high, low, twice = erfc_pair(x.abs().at_most(ERFC_LIMIT[x.format.bits]))
    positive = scale_by_halves(high + low, twice)
    outer = select(x < 0.0, 2.0 - positive, positive)
    # Near 0 the sum of `erfc_pair` cancels.
    near = 1.0 - fma(x, fitted("erf_near_z", x * x, False), x)
    return select(x.abs() < 0.5, near, outer)


def _erfinv_start(x: Lane) -> Lane:
    """erfinv in f64 good to f32, as x times a polynomial in w = -log(1 - x**2) or in its root."""
    e, f = split_exponent((1.0 - x) * (1.0 + x))
    w = -fma(e, LN2, log1p_plain(f, "log_fine"))
    near = fitted("erfinv_near", w, True)
    far = fitted("erfinv_far", w.sqrt() - 4.0, True)
    return x * select(w < ERFINV_SPLIT, near, far)


def _erfinv_fine(x: Lane) -> Lane:
    """erfinv in f64, |x| < 1: one step of Halley's from a start good to f32, its residue taken in pairs."""
    size = x.abs()
    is_tiny = size < 2.0**-500  # low parts of tiny numbers would be denormals
    size = select(is_tiny, size * 2.0**200, size)
    start = _erfinv_start(size)
    is_near = start < 1.0
    rest = Pair(*two_sum(size.splat(1.0), -size)) - _unscaled(*_erfc_far_fine(start.at_least(1.0).at_most(6.5)))
    residue = select_pair(is_near, _erf_near_fine(start.at_most(1.0)) - Pair.of(size), rest).rounded()
    # The derivative of erf is 2 / sqrt(pi) e**-start**2.
    high, low, twice = exp_unscaled(-(start * start).at_most(40.0))
    step = residue / ((high + low) * power_of_two(twice - x.format.bias, x.format.bits) * TWO_OVER_ROOT_PI)
    value = start - step / fma(start, step, 1.0)
    return (value * select(is_tiny, 2.0**-200, x.splat(1.0))).with_sign_of(x)


@lanewise
def erfinv(x: Lane) -> Lane:
    """The inverse of erf; inf at 1, NaN beyond it; -0.0 stays."""
    if goes_wide(x):
        value = through_f64(_erfinv_start, x)
    elif x.format.bits == 64:
        value = _erfinv_fine(x)
    else:
        start = _erfinv_start(x)
        size = start.abs()
        high, low, twice = erfc_pair(size)
        scale = power_of_two(twice - x.format.bias, x.format.bits)
        inner = fma(size, fitted("erf_near_z", size * size, False), size) - x.abs()
        outer = (1.0 - x.abs()) - (high + low) * scale
        # One step of Newton's: the derivative of erf is 2 / sqrt(pi) e**-size**2.
        slope_high, slope_low, slope_twice = exp_unscaled(-(size * size))
        slope = (slope_high + slope_low) * power_of_two(slope_twice - x.format.bias, x.format.bits)
        step = select(size < 0.75, inner, outer) / (slope * TWO_OVER_ROOT_PI)
        value = (size - step).with_sign_of(x)
    ends = select(x.abs().equals(1.0), x.splat(pymath.inf).with_sign_of(x), pymath.nan)
    return select(x.abs() < 1.0, value, ends)
