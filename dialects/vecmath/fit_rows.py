"""The polynomials that `fit.py` fits: which function, where, and of what degree for each precision.

Precisions: "f32" is evaluated in f32, "f64" in f64 for an f64 result, "wide" in f64 for a result rounded to f32.
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


ROWS = (
    Row("exp", _exp_tail, -HALF_LN2, HALF_LN2 + 1e-4, {"f32": 5, "wide": 5, "f64": 11}, pinned=(0.5,)),
    Row("exp_short", _exp_tail, -HALF_LN2, HALF_LN2 + 1e-4, {"f32": 4, "f64": 10}),
    Row("exp2", lambda f: (2**f - 1) / f, -0.5, 0.5001, {"f32": 6, "wide": 8}),
    Row("sinh", _sinh_tail, 0, 1, {"f32": 3, "f64": 7}),
    Row("log", _log_tail, 0, 0.02945, {"wide": 3, "wide_pow": 4, "f64": 7}),
    Row("sin", _sin_tail, 0, 0.6170, {"wide": 4, "f64": 6}),
    Row("cos", _cos_tail, 0, 0.6170, {"wide": 4, "f64": 6}),
    Row("erf_near", _erf_tail, 0, 0.81, {"f32": 6}),
    Row("erfc_log2", lambda x: mp.log(mp.erfc(x), 2) / x, 0.85, 4.0, {"f32": 9}),
)
