"""Elementwise functions of real numbers: exponential, trigonometric, error and gamma functions, activations.

Bodies are computed in f64 and rounded once. Compiled code takes the functions of `vecmath`, which see f32 and f64 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from . import pointwise_numpy as numpy_functions
from . import vecmath
from .op import op
from .pointwise_numpy import exactly
from .val import Val


def applied(name: str, *operands: Val) -> Val:
    """The function `name` of `vecmath`."""
    return Val(getattr(vecmath, name)(*(v.value for v in operands)), operands[0].dtype)


# --- roots and inverses ---


@op(torch="aten.sqrt.default", onnx="Sqrt")
def sqrt(x: F[*S]) -> F[*S]:
    """The square root; NaN below 0. Source: ONNX Sqrt-13; ATen sqrt."""
    return exactly(np.sqrt, x)


@sqrt.rule("emit")
def _(x: Val) -> Val:
    return x.sqrt()


@op(torch="aten.rsqrt.default")
def rsqrt(x: F[*S]) -> F[*S]:
    """1 / sqrt(x). Source: ATen rsqrt."""
    return exactly(lambda v: 1 / np.sqrt(v), x)


@rsqrt.rule("emit")
def _(x: Val) -> Val:
    return x.like(1.0) / x.sqrt()


@op(torch="aten.reciprocal.default", onnx="Reciprocal")
def reciprocal(x: F[*S]) -> F[*S]:
    """1 / x. Source: ONNX Reciprocal-13; ATen reciprocal."""
    return exactly(np.reciprocal, x)


@reciprocal.rule("emit")
def _(x: Val) -> Val:
    return x.like(1.0) / x


# --- activations ---


@op(torch="aten.silu.default")
def silu(x: F[*S]) -> F[*S]:
    """x * sigmoid(x); NaN at -inf. Source: Elfwing et al. 2017, eq. 3; ATen silu."""
    return exactly(lambda v: v * numpy_functions.sigmoid(v), x)


@silu.rule("emit")
def _(x: Val) -> Val:
    return x * applied("sigmoid", x)


@op()
def gelu(x: F[*S], *, approximate: bool = False) -> F[*S]:
    """x * Phi(x) with Phi the normal distribution; `approximate`: by tanh.

    Source: Hendrycks & Gimpel 2016, sections 2 and 2.1; ONNX Gelu-20.
    """
    if approximate:
        return exactly(lambda v: v * numpy_functions.sigmoid(2 * _TANH_SCALE * (v + _TANH_CUBIC * v**3)), x)
    return exactly(lambda v: 0.5 * v * numpy_functions.erfc(-v * math.sqrt(0.5)), x)


_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


@gelu.rule("emit")
def _(x: Val, *, approximate: bool) -> Val:
    if approximate:  # (1 + tanh(u)) / 2 is sigmoid(2 u)
        slope = (x * x).fma(2 * _TANH_SCALE * _TANH_CUBIC, 2 * _TANH_SCALE)
        return x * applied("sigmoid", x * slope)
    return x * applied("normal_cdf", x)


# --- functions that vecmath has under the same name ---


@op(torch="aten.exp.default", onnx="Exp")
def exp(x: F[*S]) -> F[*S]:
    """e**x. Source: ONNX Exp-13; ATen exp."""
    return exactly(np.exp, x)


@op()
def exp_nonpositive(x: F[*S]) -> F[*S]:
    """e**x for x <= 0, as a softmax wants it: 1 ulp off at most, denormal results anything up to the least normal.

    Source: ATen softmax.
    """
    return exactly(np.exp, x)


@exp_nonpositive.rule("emit")
def _(x: Val) -> Val:
    return applied("exp_nonpositive", x)


@op(torch="aten.exp2.default")
def exp2(x: F[*S]) -> F[*S]:
    """2**x. Source: ATen exp2."""
    return exactly(np.exp2, x)


@op(torch="aten.expm1.default")
def expm1(x: F[*S]) -> F[*S]:
    """e**x - 1 without cancellation near 0. Source: ATen expm1."""
    return exactly(np.expm1, x)


@op(torch="aten.log.default", onnx="Log")
def log(x: F[*S]) -> F[*S]:
    """The natural logarithm; -inf at 0, NaN below. Source: ONNX Log-13; ATen log."""
    return exactly(np.log, x)


@op(torch="aten.log2.default")
def log2(x: F[*S]) -> F[*S]:
    """The logarithm to base 2. Source: ATen log2."""
    return exactly(np.log2, x)


@op(torch="aten.log10.default")
def log10(x: F[*S]) -> F[*S]:
    """The logarithm to base 10. Source: ATen log10."""
    return exactly(np.log10, x)


@op(torch="aten.log1p.default")
def log1p(x: F[*S]) -> F[*S]:
    """log(1 + x) without cancellation near 0. Source: ATen log1p."""
    return exactly(np.log1p, x)


@op(torch="aten.sin.default", onnx="Sin")
def sin(x: F[*S]) -> F[*S]:
    """The sine of x radians; NaN at infinity. Source: ONNX Sin-22; ATen sin."""
    return exactly(np.sin, x)


@op(torch="aten.cos.default", onnx="Cos")
def cos(x: F[*S]) -> F[*S]:
    """The cosine of x radians; NaN at infinity. Source: ONNX Cos-22; ATen cos."""
    return exactly(np.cos, x)


@op(torch="aten.tan.default", onnx="Tan")
def tan(x: F[*S]) -> F[*S]:
    """The tangent of x radians. Source: ONNX Tan-22; ATen tan."""
    return exactly(np.tan, x)


@op(torch="aten.asin.default", onnx="Asin")
def asin(x: F[*S]) -> F[*S]:
    """The inverse sine in radians; NaN outside [-1, 1]. Source: ONNX Asin-22; ATen asin."""
    return exactly(np.arcsin, x)


@op(torch="aten.acos.default", onnx="Acos")
def acos(x: F[*S]) -> F[*S]:
    """The inverse cosine in radians; NaN outside [-1, 1]. Source: ONNX Acos-22; ATen acos."""
    return exactly(np.arccos, x)


@op(torch="aten.atan.default", onnx="Atan")
def atan(x: F[*S]) -> F[*S]:
    """The inverse tangent in radians. Source: ONNX Atan-22; ATen atan."""
    return exactly(np.arctan, x)


@op(torch="aten.atan2.default")
def atan2(y: F[*S], x: F[*S]) -> F[*S]:
    """The angle of the point (x, y) in (-pi, pi]. Source: ATen atan2; C11 7.12.4.4."""
    return exactly(np.arctan2, y, x)


@op(torch="aten.sinh.default", onnx="Sinh")
def sinh(x: F[*S]) -> F[*S]:
    """The hyperbolic sine. Source: ONNX Sinh-22; ATen sinh."""
    return exactly(np.sinh, x)


@op(torch="aten.cosh.default", onnx="Cosh")
def cosh(x: F[*S]) -> F[*S]:
    """The hyperbolic cosine. Source: ONNX Cosh-22; ATen cosh."""
    return exactly(np.cosh, x)


@op(torch="aten.tanh.default", onnx="Tanh")
def tanh(x: F[*S]) -> F[*S]:
    """The hyperbolic tangent. Source: ONNX Tanh-13; ATen tanh."""
    return exactly(np.tanh, x)


@op(torch="aten.asinh.default", onnx="Asinh")
def asinh(x: F[*S]) -> F[*S]:
    """The inverse hyperbolic sine. Source: ONNX Asinh-22; ATen asinh."""
    return exactly(np.arcsinh, x)


@op(torch="aten.acosh.default", onnx="Acosh")
def acosh(x: F[*S]) -> F[*S]:
    """The inverse hyperbolic cosine; NaN below 1. Source: ONNX Acosh-22; ATen acosh."""
    return exactly(np.arccosh, x)


@op(torch="aten.atanh.default", onnx="Atanh")
def atanh(x: F[*S]) -> F[*S]:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]. Source: ONNX Atanh-22; ATen atanh."""
    return exactly(np.arctanh, x)


@op(torch="aten.erf.default", onnx="Erf")
def erf(x: F[*S]) -> F[*S]:
    """The error function. Source: ONNX Erf-13; ATen erf."""
    return exactly(numpy_functions.erf, x)


@op(torch="aten.erfc.default")
def erfc(x: F[*S]) -> F[*S]:
    """1 - erf(x) without cancellation. Source: ATen erfc."""
    return exactly(numpy_functions.erfc, x)


@op(torch="aten.erfinv.default")
def erfinv(x: F[*S]) -> F[*S]:
    """The inverse of erf; infinite at -1 and 1, NaN outside. Source: ATen erfinv."""
    return exactly(numpy_functions.erfinv, x)


@op(torch="aten.lgamma.default")
def lgamma(x: F[*S]) -> F[*S]:
    """log |gamma(x)|; inf at the poles. Source: ATen lgamma."""
    return exactly(numpy_functions.lgamma, x)


@op(torch="aten.digamma.default")
def digamma(x: F[*S]) -> F[*S]:
    """The derivative of lgamma; at 0 an infinity of the other sign, NaN at the other poles. Source: ATen digamma."""
    return exactly(numpy_functions.digamma, x)


@op(torch=("aten.i0.default", "aten.special_i0.default"))
def i0(x: F[*S]) -> F[*S]:
    """The modified Bessel function of the first kind, of order 0. Source: Abramowitz and Stegun, 9.6; ATen i0."""
    return exactly(np.i0, x)


@op(torch="aten.sigmoid.default", onnx="Sigmoid")
def sigmoid(x: F[*S]) -> F[*S]:
    """1 / (1 + e**-x). Source: ONNX Sigmoid-13; ATen sigmoid."""
    return exactly(numpy_functions.sigmoid, x)


def _emit_of(name: str) -> Callable[..., Val]:
    return lambda *operands: applied(name, *operands)


for _definition in (
    exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, asin, acos, atan, atan2, sinh, cosh, tanh,
    asinh, acosh, atanh, erf, erfc, erfinv, lgamma, digamma, i0, sigmoid,
):
    _definition.rule("emit")(_emit_of(_definition.name))
