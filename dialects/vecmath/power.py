"""pow, cbrt and rsqrt."""

from __future__ import annotations

import math as pymath

from mlc.dialects.vecmath.exponential import (
    REDUCTIONS,
    exp_fine,
    exp_unscaled,
    power_of_two,
    scale_by_halves,
    scale_once,
)
from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, goes_wide, lanewise, parts, select, two_product, two_sum
from mlc.dialects.vecmath.logarithm import (
    LN2,
    LOG2_E,
    denormal_shift,
    log1p_plain,
    log_fine,
    scaled_up,
    short_parts,
    split_exponent,
)
from mlc.dialects.vecmath.pair import Pair
from mlc.dialects.vecmath.polynomial import fitted

THIRD = (1 / 3, float.fromhex("0x1.5555555555555p-56"))


def _at_ends(size: Lane, value: Lane) -> Lane:
    """The logarithm, or -inf at 0, inf at inf, NaN at NaN; `size` is not negative."""
    return select(size.equals(0.0), -pymath.inf, select(size < pymath.inf, value, size))


def _with_sign(x: Lane, y: Lane, value: Lane) -> Lane:
    """|x|**y made x**y: negative for an odd y, NaN for one that is no integer."""
    whole = y.floor()
    half = y * 0.5
    is_integer = whole.equals(y)
    is_odd = is_integer & half.floor().differs(half)
    sign = select(is_odd, x.bits() & x.splat(-0.0).bits(), x.bits().splat(0))
    value = (value.bits() | sign).as_float()
    is_undefined = (x < 0.0) & (x > -pymath.inf) & whole.differs(y)
    return select(is_undefined, pymath.nan, value)


def _pow_wide(x: Lane, y: Lane) -> Lane:
    """|x|**y in f64 good to f32."""
    size = x.abs()
    e, f = split_exponent(size)
    log = _at_ends(size, fma(log1p_plain(f, "log_fine"), LOG2_E[0], e))
    t = select(log.equals(0.0) | y.equals(0.0), 0.0, log * y).at_most(200.0).at_least(-200.0)
    shift = x.format.rounder + x.format.bias
    shifted = t + shift
    f = t - (shifted - shift)
    scale = power_of_two(shifted.bits(), 64)
    return fma(f * scale, fitted("exp2", f, True), scale)


def _log_pair(x: Lane) -> tuple[Lane, Lane]:
    """(high, low): log of a positive finite number as a sum of two, of twice the precision but for a few bits."""
    third, ln2 = parts(*THIRD, x), short_parts(LN2, x)
    scaled, e0 = scaled_up(x)
    e, f = split_exponent(scaled)
    e = e + e0
    bottom = f + 2.0
    bottom_low = f - (bottom - 2.0)
    s = f / bottom
    s_low = fma(-s, bottom_low, fma(-s, bottom, f)) / bottom
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    # s + s**3 / 3 + s**5 p(z): the middle term is kept in two parts as well.
    c, c_low = two_product(z, third[0])
    c_low = fma(z, third[1], fma(z_low, third[0], c_low))
    c_low = fma(z * z, fitted("log_fifth", z, False), c_low)
    cubic, cubic_low = two_product(s, c)
    cubic_low = fma(s, c_low, fma(s_low, c, cubic_low))
    high, low = fast_two_sum(s, cubic)
    low = low + (cubic_low + s_low)
    total, carried = fast_two_sum(e * ln2[0], high + high)
    more, more_low = two_sum(e * ln2[1], low + low)
    # e * ln2[1] is rounded to 2**-53 of 2**-33: far below what is needed.
    total, carried = fast_two_sum(total, carried)
    total, rest = two_sum(total, more)
    return fast_two_sum(total, rest + (carried + more_low))


def _pow_pair(x: Lane, y: Lane) -> Lane:
    """|x|**y."""
    size = x.abs()
    is_fine = x.format.bits == 64
    log = log_fine(size) if is_fine else Pair(*_log_pair(size))
    high = _at_ends(size, log.high)
    is_one = high.equals(0.0) | y.equals(0.0)
    t, t_low = two_product(high, y)
    t_low = fma(log.low, y, t_low)
    constants = REDUCTIONS[x.format.bits]
    t = select(is_one, 0.0, t)
    t_low = select((t < constants.most) & (t > constants.least) & is_one.equals(0), t_low, 0.0)
    t = t.at_most(constants.most).at_least(constants.least)
    if is_fine:
        power, twice = exp_fine(Pair(t, t_low))
        return scale_once(power, twice)
    high, low, twice = exp_unscaled(t)
    return scale_by_halves(high + fma(t_low, high + low, low), twice)


@lanewise
def pow(x: Lane, y: Lane) -> Lane:
    """x**y with IEEE's special cases: 1 for y = 0 or x = 1 even with NaN, NaN for x < 0 and y no integer."""
    if goes_wide(x):
        return _with_sign(x, y, _pow_wide(x.widened(), y.widened()).narrowed())
    return _with_sign(x, y, _pow_pair(x, y))


@lanewise
def cbrt(x: Lane) -> Lane:
    """The cube root; odd, so negative x is fine; -0.0, inf and NaN stay as they are."""
    size, e0 = scaled_up(x.abs())
    e, f = split_exponent(size)
    shift = x.format.rounder + x.format.bias
    shifted = fma(e, 1 / 3, shift)
    rest = fma(shifted - shift, -3.0, e)
    is_less, is_more = rest < 0.0, rest > 0.0
    m = f + 1.0
    root = fitted("cbrt", m, True) * select(is_less, 2.0 ** (-1 / 3), select(is_more, 2.0 ** (1 / 3), rest.splat(1.0)))
    m = m * select(is_less, 0.5, select(is_more, 2.0, rest.splat(1.0)))
    cube = root * root * root
    root = root * ((cube + (m + m)) / (cube + cube + m))  # Halley: the error is cubed
    square, square_low = two_product(root, root)
    root = root + fma(-root, square_low, fma(-root, square, m)) / (3.0 * square)
    unscale = select(e0 < 0.0, 2.0 ** (-denormal_shift(x) // 3), e0.splat(1.0))
    root = root * (power_of_two(shifted.bits(), x.format.bits) * unscale)
    is_plain = (x.abs() < pymath.inf) & x.differs(0.0)
    return select(is_plain, root.with_sign_of(x), x)


@lanewise
def rsqrt(x: Lane) -> Lane:
    """1 / sqrt(x) by an exact root and an exact division: at most 1 ulp; inf at 0, NaN below it."""
    return 1.0 / x.sqrt()
