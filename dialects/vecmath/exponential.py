"""exp and the functions made of it.

x = n ln2 + r with |r| <= ln2/2; e**r = 1 + r + r**2 q(r) is kept as an unevaluated sum of two numbers, so that only the
last addition rounds at full size; 2**n is applied as two factors, so that results under the smallest normal number
round once and results over the largest become inf.
"""

from __future__ import annotations

import math as pymath
from dataclasses import dataclass

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import (
    Format,
    Lane,
    fast_two_sum,
    fma,
    goes_wide,
    horner,
    lanewise,
    select,
    through_f64,
    two_product,
    two_sum,
)
from mlc.dialects.vecmath.pair import Pair, fitted_pair
from mlc.dialects.vecmath.polynomial import fitted


@dataclass(frozen=True)
class Reduction:
    """What x = n ln2 + r takes in one format."""

    ln2_high: float  # so short that n times it is exact
    ln2_low: float
    least: float  # e**x is 0 below, and least/ln2 does not overflow the biased exponent
    most: float  # e**x is inf from here on


REDUCTIONS = {
    32: Reduction(float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20"), -104.0, 89.0),
    64: Reduction(float.fromhex("0x1.62e42fefa4p-1"), float.fromhex("-0x1.8432a1b0e2634p-43"), -746.0, 710.0),
}
LOG2_E = 1 / pymath.log(2)
LN2_TAIL = float.fromhex("0x1.abc9e3b39803fp-56")  # ln2 minus the f64 nearest it


def exp_unscaled(x: Lane, is_short: bool = False) -> tuple[Lane, Lane, Lane]:
    """(high, low, twice): e**x = (high + low) * 2**n, with 2 bias + n in the low bits of the integer `twice`.

    x is within the least and most of the format's `Reduction`. The error of `low` is under 2**-5 of `high`'s ulp, or
    2**-3 where `is_short` saves five instructions.
    """
    shape = x.format
    constants = REDUCTIONS[shape.bits]
    shift = shape.rounder + 2 * shape.bias
    shifted = fma(x, LOG2_E, shift)
    n = shifted - shift
    exact = fma(n, -constants.ln2_high, x)
    r = fma(n, -constants.ln2_low, exact)
    high, lost = fast_two_sum(x.splat(1.0), exact)
    lost = fma(n, -constants.ln2_low, lost)
    tail = fitted("exp", r, False, skip=1)
    if is_short:
        return high, fma(r * r, fma(r, tail, 0.5), lost), shifted.bits()
    r_low = fma(n, -constants.ln2_low, exact - r)
    square, square_lost = two_product(r, 0.5 * r)
    square_lost = fma(r, r_low, square_lost)
    high, carried = fast_two_sum(high, square)
    return high, fma(r * r * r, tail, (lost + square_lost) + carried), shifted.bits()


def exp_fine(x: Pair) -> tuple[Pair, Lane]:
    """(power, twice): e**x = power * 2**n, `twice` as in `exp_unscaled`; in f64, off by 2**-64 of it."""
    shape = x.high.format
    constants = REDUCTIONS[shape.bits]
    shift = shape.rounder + 2 * shape.bias
    shifted = fma(x.high, LOG2_E, shift)
    n = shifted - shift
    less, lost = two_product(n, -constants.ln2_low)
    r = Pair(fma(n, -constants.ln2_high, x.high), x.low) + Pair(less, lost)
    return fitted_pair("exp", r), shifted.bits()


def power_of_two(biased: Lane, shape_bits: int) -> Lane:
    """2**(k - bias) for the integer k in the low bits of `biased`, which must make a normal number."""
    return (biased << (23 if shape_bits == 32 else 52)).as_float()


def scale_by_halves(value: Lane, twice: Lane) -> Lane:
    """value * 2**n where `twice` holds 2 bias + n; right down to denormals and up to inf for |value| near 1."""
    half = twice.shift_right_zero(1)
    bits = value.format.bits
    return value * power_of_two(half, bits) * power_of_two(twice - half, bits)


def scale_once(value: Pair, twice: Lane) -> Lane:
    """value * 2**n as `scale_by_halves` has it, a denormal result rounded once and not after the sum as well."""
    shape = value.high.format
    result = scale_by_halves(value.rounded(), twice)
    # The ulp of this number is 2**-n of the smallest denormal: sums with it round where the result must.
    grid = power_of_two(2 * shape.bias + 1 - twice, shape.bits)
    total, lost = fast_two_sum(grid, value.high)
    denormal = scale_by_halves((total + (lost + value.low)) - grid, twice)
    return select(result.abs() < shape.smallest_normal, denormal, result)


def clamp_exponent(x: Lane) -> Lane:
    """x within the range outside which e**x is 0 or inf; NaN stays."""
    constants = REDUCTIONS[x.format.bits]
    return x.at_most(constants.most).at_least(constants.least)


def exp_wide(x: Lane, precision: str = "wide") -> Lane:
    """e**x in f64 good to f32, for |x| < 700."""
    shift = x.format.rounder + x.format.bias
    shifted = fma(x, LOG2_E, shift)
    r = fma(shifted - shift, -pymath.log(2), x)
    return horner(r, COEFFICIENTS["exp_whole", precision]) * power_of_two(shifted.bits(), 64)


@lanewise
def exp(x: Lane) -> Lane:
    """e**x, down to denormals; NaN stays NaN.

    f32 goes through f64: error-free sums in f32 take as many instructions and round denormals twice.
    """
    if goes_wide(x):
        return through_f64(exp_wide, clamp_exponent(x))
    high, low, twice = exp_unscaled(clamp_exponent(x))
    if x.format.bits == 64:
        return scale_once(Pair(high, low), twice)
    return scale_by_halves(high + low, twice)


def exp_short(x: Lane) -> Lane:
    """e**x within 1 ulp for x/ln2 rounded from 1 - bias to bias; where it rounds to bias + 1, inf."""
    shape = x.format
    constants = REDUCTIONS[shape.bits]
    shift = shape.rounder + shape.bias
    shifted = fma(x, LOG2_E, shift)
    n = shifted - shift
    r = fma(n, -constants.ln2_low, fma(n, -constants.ln2_high, x))
    p = fma(r * r, fitted("exp_short", r, False), r)
    return (p + 1.0) * power_of_two(shifted.bits(), shape.bits)


@lanewise
def exp_nonpositive(x: Lane) -> Lane:
    """e**x for x <= 0, off by 1 ulp at most (1.01), in half the instructions of `exp`: the exponential of a softmax.

    Results under the smallest normal number come out as at most it, -inf gives 0 and NaN stays NaN.
    """
    shape = x.format
    least = -pymath.log(2) * (shape.bias - 1)
    value = exp_short(x.at_least(least))
    return select(x < least, 0.0, value)


def _exp2_floor(shape: Format) -> float:
    """The least argument of `exp2_floored`; its power is a normal number still after the polynomial."""
    return 2.0 - shape.bias


@lanewise
def exp2_floored(x: Lane) -> Lane:
    """2**x within 1 ulp for x <= 0; below 2 - bias (-125, or -1021 in f64) the power of that; NaN stays NaN.

    The softmax of a row whose scores all count: what underflows is lost beside the row's largest power, which is 1.
    """
    shape = x.format
    x = x.at_least(_exp2_floor(shape))
    shifted = x + (shape.rounder + shape.bias)
    f = x - (shifted - (shape.rounder + shape.bias))
    scale = power_of_two(shifted.bits(), shape.bits)
    return fma(fitted("exp2_short", f, False), f * scale, scale)


@lanewise
def exp2_nonpositive(x: Lane) -> Lane:
    """`exp2_floored`, but 0 below its range: powers of -inf, scores that are masked, must be 0."""
    return select(x < _exp2_floor(x.format), 0.0, Lane(exp2_floored(x.value)))


@lanewise
def sigmoid(x: Lane) -> Lane:
    """1 / (1 + e**-x); results under about the smallest normal number become 0, NaN stays NaN."""
    shape = x.format
    bound = pymath.log(2) * shape.bias
    return 1.0 / (exp_short((-x).at_most(bound + 0.6).at_least(0.3 - bound)) + 1.0)


@lanewise
def exp2(x: Lane) -> Lane:
    """2**x, denormals included; NaN stays NaN."""
    shape = x.format
    x = x.at_most(shape.bias + 1.0).at_least(-shape.bias - shape.mantissa_bits - 1.0)
    shift = shape.rounder + 2 * shape.bias
    shifted = x + shift
    f = x - (shifted - shift)
    if shape.bits == 32:
        value = fma(f, fitted("exp2", f, False), 1.0)
    else:
        r = f * pymath.log(2)
        residue = fma(f, LN2_TAIL, fma(f, pymath.log(2), -r))
        high, lost = fast_two_sum(x.splat(1.0), r)
        low = fma(r * r, fitted("exp", r, False), lost + residue)
        return scale_once(Pair(high, low), shifted.bits())
    return scale_by_halves(value, shifted.bits())


@lanewise
def expm1(x: Lane) -> Lane:
    """e**x - 1; tiny x, -0.0 and NaN stay as they are."""
    shape = x.format
    most = REDUCTIONS[shape.bits].most
    high, low, twice = exp_unscaled(x.at_most(most).at_least(-0.75 * shape.mantissa_bits - 1.0), shape.bits == 32)
    scale = power_of_two(twice - (shape.bias + 1), shape.bits)
    total, lost = two_sum(high * scale, x.splat(-0.5))
    value = 2.0 * (total + fma(low, scale, lost))
    # Near 0, where r**2 underflows, the sum has lost the sign of zero and bits of denormals.
    return select(x.abs() < pymath.ldexp(1.0, -shape.mantissa_bits - 2), x, value)


def _tanh_wide(x: Lane) -> Lane:
    """tanh in f64 good to f32; |x| at most 10."""
    shape = x.format
    shift = shape.rounder + shape.bias
    shifted = fma(x, 2 * LOG2_E, shift)
    n = shifted - shift
    r = fma(n, -pymath.log(2), x + x)
    p = fma(r * r, fitted("exp_short", r, True), r)
    scale = power_of_two(shifted.bits(), shape.bits)
    return fma(p, scale, scale - 1.0) / fma(p, scale, scale + 1.0)


@lanewise
def tanh(x: Lane) -> Lane:
    """The hyperbolic tangent; -0.0 and NaN stay as they are."""
    if goes_wide(x):
        return through_f64(_tanh_wide, x.at_most(9.5).at_least(-9.5)).with_sign_of(x)
    size = x.abs().at_most(20.0)
    high, low, twice = exp_unscaled(size + size)
    scale = power_of_two(twice - x.format.bias, x.format.bits)
    top, lost = two_sum(high * scale, x.splat(-1.0))
    rest = fma(low, scale, lost)
    bottom, bottom_lost = fast_two_sum(top + 2.0, rest)
    bottom_lost = bottom_lost + select(top < 2.0, top - ((top + 2.0) - 2.0), 2.0 - ((top + 2.0) - top))
    top, rest = fast_two_sum(top, rest)
    inverse = 1.0 / bottom
    quotient = top * inverse
    remainder = fma(-quotient, bottom, top) + fma(-quotient, bottom_lost, rest)
    value = fma(remainder, inverse, quotient)
    return select(size < pymath.ldexp(1.0, -x.format.mantissa_bits // 2 - 2), size, value).with_sign_of(x)


def _exp_halves(size: Lane) -> tuple[Lane, Lane, Lane, Lane, Lane]:
    """(high, low, factor, inverse, inverse_low): (high + low) * factor is e**size / 2, the other sum e**-size / 2."""
    bias, bits = size.format.bias, size.format.bits
    if bits == 64:
        power, twice = exp_fine(Pair.of(size))
        high, low = power.high, power.low
    else:
        high, low, twice = exp_unscaled(size)
    # size >= 0, so n >= 0: 2**(n/2) applied twice can only overflow where the result does.
    half = (twice - 2 * bias).shift_right_zero(1)
    factor = power_of_two(half + bias, bits)
    rest = power_of_two(twice - (bias + 1) - half, bits)
    high, low = fast_two_sum(high * rest, low * rest)
    whole = high * factor
    inverse = 0.25 / whole
    inverse_low = fma(-low * factor, inverse, fma(-whole, inverse, 0.25)) * (4.0 * inverse)
    return high, low, factor, inverse, inverse_low


def _cosh_pair(x: Lane) -> Lane:
    size = x.abs().at_most(REDUCTIONS[x.format.bits].most + 0.9)
    high, low, factor, inverse, inverse_low = _exp_halves(size)
    total, lost = two_sum(high * factor, inverse)
    ordinary = total + (lost + fma(low, factor, inverse_low))
    return select(size < 40.0, ordinary, (high + low) * factor)


def _sinh_near(x: Lane, is_wide: bool) -> Lane:
    """sinh for |x| < 1."""
    z = x * x
    return fma(x * z, fitted("sinh", z, is_wide), x)


def _sinh_pair(x: Lane) -> Lane:
    size = x.abs().at_most(REDUCTIONS[x.format.bits].most + 0.9)
    high, low, factor, inverse, inverse_low = _exp_halves(size)
    total, lost = two_sum(high * factor, -inverse)
    ordinary = total + (lost + fma(low, factor, -inverse_low))
    value = select(size < 40.0, ordinary, (high + low) * factor)
    return select(size < 1.0, _sinh_near(size, False), value).with_sign_of(x)


def _cosh_wide(x: Lane) -> Lane:
    power = exp_wide(x, "wide_fine")
    return 0.5 * (power + 1.0 / power)


def _sinh_wide(x: Lane) -> Lane:
    power = exp_wide(x, "wide_fine")
    return select(x.abs() < 1.0, _sinh_near(x, True), 0.5 * (power - 1.0 / power))


@lanewise
def cosh(x: Lane) -> Lane:
    """The hyperbolic cosine; inf where it overflows, NaN stays NaN."""
    return through_f64(_cosh_wide, x.at_most(100.0).at_least(-100.0)) if goes_wide(x) else _cosh_pair(x)


@lanewise
def sinh(x: Lane) -> Lane:
    """The hyperbolic sine; inf where it overflows, -0.0 and NaN stay as they are."""
    return through_f64(_sinh_wide, x.at_most(100.0).at_least(-100.0)) if goes_wide(x) else _sinh_pair(x)
