"""The polynomials that `fit.py` fits: which function, where, and of what degree for each precision.

Precisions: "f32" is evaluated in f32, "f64" in f64 for an f64 result, "wide" in f64 for a result rounded to f32,
"pair" in f64 with the lowest `pairs` terms as sums of two numbers.
"""

from __future__ import annotations

import mpmath as mp
from mlc.dialects.vecmath.fit import Row

HALF_LN2 = 0.3467  # ln(2)/2 and a little: rounding x/ln(2) to an integer may land just beyond the middle
# Intervals about 0 are a little lopsided: a node at 0 would lose its function to cancellation.


def _exp_tail(r: mp.mpf) -> mp.mpf:
    return (mp.expm1(r) - r) / r**2


def _log_tail(z: mp.mpf) -> mp.mpf:
    """(2 atanh(s) - 2 s) / s**3 with z = s**2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / s**3


def _sin_tail(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return (mp.sin(x) - x) / x**3


def _cos_tail(z: mp.mpf) -> mp.mpf:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def _sinh_tail(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return (mp.sinh(x) - x) / x**3


def _erf_tail(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return mp.erf(x) / x - 1


ERF_MIDDLE = 7.703125  # half of 3.925**2: from 3.925 on, erf in f32 is 1


def _erf_ratio(u: mp.mpf) -> mp.mpf:
    """erf(x) / x with u = x**2 - ERF_MIDDLE."""
    x = mp.sqrt(u + ERF_MIDDLE)
    return mp.erf(x) / x


CDF_MIDDLE = 15.25  # half of 5.52**2: from 5.5 on, the distribution in f32 is 1


def _cdf_ratio(u: mp.mpf) -> mp.mpf:
    """(Phi(x) - 1/2) / x with u = x**2 - CDF_MIDDLE."""
    x = mp.sqrt(u + CDF_MIDDLE)
    return mp.erf(x / mp.sqrt(2)) / (2 * x)


def _log_fifth(z: mp.mpf) -> mp.mpf:
    """(2 atanh(s) - 2 s - 2 s**3 / 3) / (2 s**5) with z = s**2."""
    s = mp.sqrt(z)
    return (mp.atanh(s) - s - s**3 / 3) / s**5


def _erfcx(u: mp.mpf) -> mp.mpf:
    """(x + 3) exp(x**2) erfc(x) with x = 3 (1 + u) / (1 - u)."""
    x = 3 * (1 + u) / (1 - u)
    return (x + 3) * mp.exp(x**2) * mp.erfc(x)


def _atanh_ratio(z: mp.mpf) -> mp.mpf:
    s = mp.sqrt(z)
    return mp.atanh(s) / s


def _erf_near(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return mp.erf(x) / x


def _atan_tail(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return (mp.atan(x) - x) / x**3


def _asin_tail(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return (mp.asin(x) - x) / x**3


def _erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x with w = -log(1 - x**2)."""
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def _lgamma_ratio(t: mp.mpf) -> mp.mpf:
    """log gamma(y) / ((y - 1) (y - 2)) with y = 3/2 + t."""
    y = mp.mpf(3) / 2 + t
    return mp.loggamma(y) / ((y - 1) * (y - 2))


def _stirling(v: mp.mpf) -> mp.mpf:
    """What Stirling's formula for log gamma(w) leaves, times w, with v = 1 / w**2."""
    w = 1 / mp.sqrt(v)
    return w * (mp.loggamma(w) - (w - mp.mpf(1) / 2) * mp.log(w) + w - mp.log(2 * mp.pi) / 2)


def _digamma_rest(v: mp.mpf) -> mp.mpf:
    """(log w - 1 / (2 w) - digamma(w)) w**2 with v = 1 / w**2."""
    w = 1 / mp.sqrt(v)
    return (mp.log(w) - 1 / (2 * w) - mp.digamma(w)) * w**2


def _sin_pi(z: mp.mpf) -> mp.mpf:
    r = mp.sqrt(z)
    return mp.sin(mp.pi * r) / r


def _i0_near(z: mp.mpf) -> mp.mpf:
    return mp.besseli(0, mp.sqrt(z))


def _i0_far(u: mp.mpf) -> mp.mpf:
    return mp.besseli(0, 1 / u) * mp.exp(-1 / u) / mp.sqrt(u)


I0_CENTRE = 0.0645  # the middle of 1/x from 7.75 on: about 0 the polynomial's terms would cancel


def _i0_far_centred(v: mp.mpf) -> mp.mpf:
    return _i0_far(v + mp.mpf(I0_CENTRE))


ROWS = (
    Row("exp", _exp_tail, -HALF_LN2, HALF_LN2 + 1e-4, {"f32": 5, "wide": 5, "f64": 11}, pinned=(0.5,)),
    Row("exp_whole", mp.exp, -HALF_LN2, HALF_LN2 + 1e-4, {"wide": 6, "wide_fine": 7}),
    Row("exp_short", _exp_tail, -HALF_LN2, HALF_LN2 + 1e-4, {"f32": 4, "wide": 5, "f64": 10}),
    Row("exp2", lambda f: (2**f - 1) / f, -0.5, 0.5001, {"f32": 6, "wide": 8}),
    Row("exp2_short", lambda f: (2**f - 1) / f, -0.5, 0.5001, {"f32": 5, "f64": 11}),
    Row("exp", mp.exp, -HALF_LN2, HALF_LN2 + 1e-4, {"pair": 13}, pairs=7),
    Row("sinh", _sinh_tail, 0, 1, {"wide": 3, "f64": 7}),
    Row("log", _log_tail, 0, 0.02945, {"wide": 3, "f64": 7}),
    Row("log_fine", _log_tail, 0, 0.02945, {"wide": 4}),
    Row("sin", _sin_tail, 0, 0.6170, {"wide": 4}),
    Row("cos", _cos_tail, 0, 0.6170, {"wide": 4}),
    Row("log_fifth", _log_fifth, 0, 0.02945, {"f32": 3}),
    Row("sin", _sin_tail, 0, 0.6170, {"pair": 7}, pairs=3),
    Row("cos", _cos_tail, 0, 0.6170, {"pair": 6}, pairs=2),
    Row("atanh", _atanh_ratio, 0, 0.02945, {"pair": 10}, pairs=4),
    Row("erf", _erf_ratio, -ERF_MIDDLE, ERF_MIDDLE + 0.01, {"wide": 16}),
    Row("normal_cdf", _cdf_ratio, -CDF_MIDDLE, CDF_MIDDLE + 0.01, {"f32": 15}),
    Row("erf_near_z", _erf_tail, 0, 1, {"f32": 7}),
    Row("erfcx", _erfcx, -1, (10.1 - 3) / (10.1 + 3), {"wide": 9}),
    Row("erf_near", _erf_near, 0, 1, {"pair": 19}, pairs=7),
    Row("erfcx", _erfcx, -0.501, (27.3 - 3) / (27.3 + 3), {"pair": 26}, pairs=12),
    Row("atan", _atan_tail, 0, 1, {"wide": 10}),
    Row("atan", _atan_tail, 0, 0.1717, {"pair": 13}, pairs=3),
    Row("asin", _asin_tail, 0, 0.25, {"f32": 5, "f64": 12}),
    Row("cbrt", mp.cbrt, 0.7071, 1.4143, {"wide": 4}),
    Row("erfinv_near", _erfinv_ratio, 0.0001, 6.3, {"wide": 15}),
    Row("erfinv_far", lambda t: _erfinv_ratio((t + 4) ** 2), -1.51, 2.1, {"wide": 18}),
    Row("lgamma", _lgamma_ratio, -0.5001, 0.5, {"wide": 12}),
    Row("lgamma", _lgamma_ratio, -0.5001, 0.5, {"pair": 24}, pairs=10),
    Row("stirling", _stirling, 1e-6, 1 / 64, {"wide": 3, "f64": 7}),
    Row("digamma", _digamma_rest, 1e-6, 1 / 64, {"wide": 4, "f64": 9}),
    Row("sin_pi", _sin_pi, 1e-9, 0.2501, {"wide": 6, "f64": 9}),
    Row("i0_near", _i0_near, 0, 60, {"wide": 10}),
    Row("i0_near", _i0_near, 0, 60, {"pair": 19}, pairs=15),
    Row("i0_far", _i0_far, 1e-4, 1 / 7.74, {"wide": 7}),
    Row("i0_far", _i0_far_centred, -0.0644, 0.06454, {"pair": 32}, pairs=3),
)
