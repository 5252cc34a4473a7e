"""sin, cos and tan.

x = n pi/2 + r with |r| <= pi/4. Up to `DIRECT_LIMIT` the product n pi/2 is taken off in parts; a vector with any lane
beyond takes `huge_argument.reduce` as well, behind an `scf.if`.
"""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.huge_argument import reduce_huge
from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, goes_wide, lanewise, select, two_sum
from mlc.dialects.vecmath.pair import Pair, fitted_pair, select_pair
from mlc.dialects.vecmath.polynomial import fitted
from mlir import ir
from mlir.dialects import scf

WIDE_LIMIT = 2.0**40
DIRECT_LIMIT = {32: 2.0**12, 64: 2.0**20}
HALF_PI = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))
# pi/2 in three parts of 33 or 12 bits, whose product with n up to the limit is exact, and the rest.
HALF_PI_PARTS = {
    32: tuple(map(float.fromhex, ("0x1.922p+0", "-0x1.2aep-18", "-0x1.deap-31", "0x1.184698p-44"))),
    64: tuple(map(float.fromhex, ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104"))),
}


def _reduce_wide(x: Lane) -> tuple[Lane, Lane, Lane]:
    """(quadrant, r, 0) for f32 values in f64, |x| <= 2**40."""
    shift = x.format.rounder
    shifted = fma(x, 2 / pymath.pi, shift)
    n = shifted - shift
    r = fma(n, -HALF_PI[1], fma(n, -HALF_PI[0], x))
    return shifted.bits(), r, x.splat(0.0)


def _reduce_pair(x: Lane) -> tuple[Lane, Lane, Lane]:
    """(quadrant, high, low): r = high + low, for |x| up to the format's limit."""
    parts = HALF_PI_PARTS[x.format.bits]
    shift = x.format.rounder
    shifted = fma(x, 2 / pymath.pi, shift)
    n = shifted - shift
    high, low = two_sum(fma(n, -parts[0], x), n * -parts[1])
    high, carried = two_sum(high, n * -parts[2])
    return shifted.bits(), *fast_two_sum(high, fma(n, -parts[3], low + carried))


def reduce(x: Lane, is_wide: bool) -> tuple[Lane, Lane, Lane]:
    """(quadrant, high, low): x = n pi/2 + high + low, n in the low two bits of `quadrant`; NaN for inf and NaN."""
    is_huge = x.abs() > (WIDE_LIMIT if is_wide else DIRECT_LIMIT[x.format.bits])
    direct = (_reduce_wide if is_wide else _reduce_pair)(x)
    branch = scf.IfOp(is_huge.any(), [part.value.type for part in direct], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        huge = reduce_huge(x, largest_exponent=128 if is_wide else x.format.bias + 1)
        scf.YieldOp([select(is_huge, far, near).value for far, near in zip(huge, direct, strict=True)])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([part.value for part in direct])
    quadrant, high, low = (Lane(result) for result in branch.results)
    return quadrant, high, low


def _sin_cos(high: Lane, low: Lane, is_wide: bool) -> tuple[Lane, Lane, Lane, Lane]:
    """sin and cos of high + low, each as a sum of two."""
    z = high * high
    sin_tail = fitted("sin", z, is_wide)
    cos_tail = fitted("cos", z, is_wide)
    if is_wide:
        cos_high = fma(z, -0.5, 1.0)
        return high, high * z * sin_tail, cos_high, z * z * cos_tail
    sin_low = fma(high * z, sin_tail, low)
    cos_high = fma(z, -0.5, 1.0)
    lost = fma(high, high, -z)
    cos_low = fma(z * z, cos_tail, fma(z, -0.5, 1.0 - cos_high)) - fma(lost, 0.5, high * low)
    return high, sin_low, cos_high, cos_low


def _sin_cos_fine(r: Pair) -> tuple[Pair, Pair]:
    """sin r and cos r in f64, the last rounding apart to 2**-62 of them."""
    one = Pair.constant((1.0, 0.0), r.high)
    minus_half = Pair.constant((-0.5, 0.0), r.high)
    z = r * r
    return r + r * (z * fitted_pair("sin", z)), one + z * (minus_half + z * fitted_pair("cos", z))


def _circular(x: Lane, quarter: int) -> Lane:
    """sin(x + quarter * pi/2)."""
    is_wide = goes_wide(x)
    quadrant, high, low = reduce(x.widened() if is_wide else x, is_wide)
    if quarter:
        quadrant = quadrant + quarter
    is_odd = (quadrant & 1).differs(0)
    if x.format.bits == 64:
        sine, cosine = _sin_cos_fine(Pair(high, low))
        value = select_pair(is_odd, cosine, sine).rounded()
        return (value.bits() ^ ((quadrant & 2) << 62)).as_float()
    sin_high, sin_low, cos_high, cos_low = _sin_cos(high, low, is_wide)
    value = select(is_odd, cos_high, sin_high) + select(is_odd, cos_low, sin_low)
    value = (value.bits() ^ ((quadrant & 2) << (value.format.bits - 2))).as_float()
    return value.narrowed() if is_wide else value


@lanewise
def sin(x: Lane) -> Lane:
    """The sine of x radians, whatever its size; NaN at inf, -0.0 stays."""
    return select(x.equals(0.0), x, _circular(x, 0))


@lanewise
def cos(x: Lane) -> Lane:
    """The cosine of x radians, whatever its size; NaN at inf."""
    return _circular(x, 1)


@lanewise
def tan(x: Lane) -> Lane:
    """The tangent of x radians, whatever its size; NaN at inf, -0.0 stays."""
    is_wide = goes_wide(x)
    quadrant, high, low = reduce(x.widened() if is_wide else x, is_wide)
    is_odd = (quadrant & 1).differs(0)
    if x.format.bits == 64:
        sine, cosine = _sin_cos_fine(Pair(high, low))
        ratio = (select_pair(is_odd, cosine, sine) / select_pair(is_odd, sine, cosine)).rounded()
        return select(x.equals(0.0), x, (ratio.bits() ^ ((quadrant & 1) << 63)).as_float())
    sin_high, sin_low, cos_high, cos_low = _sin_cos(high, low, is_wide)
    top, top_low = fast_two_sum(select(is_odd, cos_high, sin_high), select(is_odd, cos_low, sin_low))
    bottom, bottom_low = fast_two_sum(select(is_odd, sin_high, cos_high), select(is_odd, sin_low, cos_low))
    quotient = top / bottom
    if not is_wide:
        remainder = fma(-quotient, bottom, top) + fma(-quotient, bottom_low, top_low)
        quotient = quotient + remainder / bottom
    quotient = (quotient.bits() ^ ((quadrant & 1) << (quotient.format.bits - 1))).as_float()
    return select(x.equals(0.0), x, quotient.narrowed() if is_wide else quotient)
