"""Elementary functions as `arith` and `math` operations that no target turns into a library call. See docs/vecmath.md.

Each takes and gives an `ir.Value`, a scalar or a 1-D vector (fixed or scalable) of f32 or f64, at the current insertion point.
"""

from mlc.dialects.vecmath.exponential import cosh, exp, exp2, exp_nonpositive, expm1, sigmoid, sinh, tanh
from mlc.dialects.vecmath.logarithm import log, log1p, log2, log10
from mlc.dialects.vecmath.trigonometric import cos, sin, tan

__all__ = [
    "cos",
    "cosh",
    "exp",
    "exp2",
    "exp_nonpositive",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
