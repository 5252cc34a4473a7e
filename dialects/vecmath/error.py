"""erf, erfc and the inverse of erf."""

from __future__ import annotations

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.exponential import LOG2_E, exp_unscaled, power_of_two, scale_by_halves
from mlc.dialects.vecmath.lanes import Lane, fma, horner, lanewise, select, through_f64, two_product, two_sum

ERF_MIDDLE = 7.703125
ERF_LIMIT = 3.925  # erf rounds to 1 in f32 from 3.92 on
ERFCX_CENTRE = 3.0
LN2 = 0.6931471805599453


def _erf_wide(x: Lane) -> Lane:
    """erf in f64 good to f32, |x| <= 3.925: one odd polynomial, no exponential and no branch."""
    return x * horner(fma(x, x, -ERF_MIDDLE), COEFFICIENTS["erf", "wide"])


def _erfc_wide(x: Lane) -> Lane:
    """erfc in f64 good to f32."""
    size = x.abs().at_most(10.5)
    inverse = 1.0 / (size + ERFCX_CENTRE)
    tail = inverse * horner(fma(inverse, -2 * ERFCX_CENTRE, 1.0), COEFFICIENTS["erfcx", "wide"])
    square = size * size
    shift = x.format.rounder + x.format.bias
    shifted = fma(square, -LOG2_E, shift)
    n = shifted - shift
    r = fma(n, -LN2, -square)
    power = fma(r * r, horner(r, COEFFICIENTS["exp", "wide"]), r)
    scale = power_of_two(shifted.bits(), 64) * tail
    positive = fma(power, scale, scale)
    return select(x < 0.0, 2.0 - positive, positive)


def erfc_pair(size: Lane) -> tuple[Lane, Lane, Lane]:
    """(high, low, twice): erfc(size) = (high + low) 2**n for f64 size >= 0 up to 27.3; `twice` as in `exp_unscaled`."""
    bottom, lost = two_sum(size, size.splat(ERFCX_CENTRE))
    inverse = 1.0 / bottom
    inverse_low = fma(-lost, inverse, fma(-inverse, bottom, 1.0)) * inverse
    ratio = fma(inverse, -2 * ERFCX_CENTRE, 1.0)
    poly = horner(ratio, COEFFICIENTS["erfcx", "f64"])
    square, square_low = two_product(size, size)
    high, low, twice = exp_unscaled(-square)
    low = fma(-square_low, high + low, low)
    tail, tail_low = two_product(poly, inverse)
    tail_low = fma(poly, inverse_low, tail_low)
    product, product_low = two_product(high, tail)
    return product, fma(high, tail_low, fma(low, tail, product_low)), twice


def _erf_f64(x: Lane) -> Lane:
    size = x.abs().at_most(6.5)
    z = x * x
    near = fma(x, horner(z, COEFFICIENTS["erf_near_z", "f64"]), x)
    high, low, twice = erfc_pair(size)
    scale = power_of_two(twice - x.format.bias, 64)
    far = 1.0 - (high + low) * scale
    return select(size < 1.0, near, far.with_sign_of(x))


@lanewise
def erf(x: Lane) -> Lane:
    """The error function; -0.0 and NaN stay as they are."""
    if x.format.bits == 32:
        return through_f64(_erf_wide, x.at_most(ERF_LIMIT).at_least(-ERF_LIMIT))
    return _erf_f64(x)


@lanewise
def erfc(x: Lane) -> Lane:
    """1 - erf(x) without its cancellation; NaN stays NaN."""
    if x.format.bits == 32:
        return through_f64(_erfc_wide, x)
    high, low, twice = erfc_pair(x.abs().at_most(27.3))
    positive = scale_by_halves(high + low, twice)
    outer = select(x < 0.0, 2.0 - positive, positive)
    # Near 0 the sum of `erfc_pair` cancels.
    near = 1.0 - fma(x, horner(x * x, COEFFICIENTS["erf_near_z", "f64"]), x)
    return select(x.abs() < 0.5, near, outer)
