"""Elementary functions as `arith` and `math` operations that no target turns into a library call. See docs/vecmath.md.

Each takes and gives `ir.Value`s, scalars or 1-D vectors (fixed or scalable) of f32 or f64, and builds at the current
insertion point.
"""

from mlc.dialects.vecmath.error import erf, erfc, erfinv, normal_cdf
from mlc.dialects.vecmath.exponential import (
    cosh,
    exp,
    exp2,
    exp2_floored,
    exp2_nonpositive,
    exp_nonpositive,
    expm1,
    sigmoid,
    sinh,
    tanh,
)
from mlc.dialects.vecmath.inverse import acos, acosh, asin, asinh, atan, atan2, atanh
from mlc.dialects.vecmath.lanes import without_f64
from mlc.dialects.vecmath.logarithm import log, log1p, log2, log10
from mlc.dialects.vecmath.power import cbrt, pow, rsqrt
from mlc.dialects.vecmath.special import digamma, i0, lgamma
from mlc.dialects.vecmath.trigonometric import cos, sin, tan

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "exp2_floored",
    "exp2_nonpositive",
    "exp_nonpositive",
    "expm1",
    "i0",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "normal_cdf",
    "pow",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "without_f64",
]
