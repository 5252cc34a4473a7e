"""ATen rows: elementwise arithmetic, choices, conversions. Ops named like an mlc op need no row (aten.py makes one)."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
from mlc.dialects.types import DTYPES
from mlc.frontend.aten_rows import AtenBuilder, alias, is_float, is_tensor, row
from mlc.frontend.record import NUMPY_DTYPES, Scalar
from mlc.frontend.report import UnsupportedCaseError

alias("aten.absolute", "aten.abs")
alias("aten.negative", "aten.neg")
alias("aten.sgn", "aten.sign")
alias("aten.arccos", "aten.acos")
alias("aten.arccosh", "aten.acosh")
alias("aten.arcsin", "aten.asin")
alias("aten.arcsinh", "aten.asinh")
alias("aten.arctan", "aten.atan")
alias("aten.arctanh", "aten.atanh")
alias("aten.arctan2", "aten.atan2")
alias("aten.special_exp2", "aten.exp2")
alias("aten.special_expm1", "aten.expm1")
alias("aten.special_log1p", "aten.log1p")
alias("aten.special_erf", "aten.erf")
alias("aten.special_erfc", "aten.erfc")
alias("aten.special_erfinv", "aten.erfinv")
alias("aten.special_expit", "aten.sigmoid")
alias("aten.special_gammaln", "aten.lgamma")
alias("aten.special_digamma", "aten.digamma")
alias("aten.special_psi", "aten.digamma")
alias("aten.special_round", "aten.round")
alias("aten.not_equal", "aten.ne")
alias("aten.less", "aten.lt")
alias("aten.less_equal", "aten.le")
alias("aten.greater", "aten.gt")
alias("aten.greater_equal", "aten.ge")
alias("aten.__and__", "aten.bitwise_and")
alias("aten.__or__", "aten.bitwise_or")
alias("aten.__xor__", "aten.bitwise_xor")
alias("aten.max.other", "aten.maximum")
alias("aten.min.other", "aten.minimum")
alias("aten.fix", "aten.trunc")


# --- arithmetic ---


@row("aten.add")
def add(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype = b.out_dtype
    if dtype == "bool":
        return b.binary("logical_or", x, y, dtype)
    return b.add(x, y if alpha == 1 else b.mul(y, alpha, dtype), dtype)


@row("aten.sub", "aten.subtract")
def sub(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return b.sub(x, y if alpha == 1 else b.mul(y, alpha, b.out_dtype), b.out_dtype)


@row("aten.rsub")
def rsub(b: AtenBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return sub(b, y, x, alpha)


@row("aten.mul", "aten.multiply")
def mul(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.binary("logical_and" if b.out_dtype == "bool" else "mul", x, y, b.out_dtype)


@row("aten.div", "aten.divide")
def div(b: AtenBuilder, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    dtype = b.out_dtype
    if rounding_mode == "floor":
        return b.binary("floor_div", x, y, dtype)
    quotient = b.div(x, y, dtype)
    return b.op("trunc", quotient) if rounding_mode == "trunc" and is_float(dtype) else quotient


@row("aten.true_divide", "operator.truediv", "torch.sym_float", "aten.sym_float")
def true_divide(b: AtenBuilder, x: Any, y: Any = 1) -> Any:
    return b.div(x, y, b.out_dtype)


for _op in ("add", "sub", "mul", "pow"):

    @row(f"operator.{_op}")
    def _on_sizes(b: AtenBuilder, x: Any, y: Any, name: str = _op) -> Any:
        return b.binary(name, x, y, b.out_dtype)


@row("operator.neg")
def _neg_size(b: AtenBuilder, x: Any) -> Any:
    return b.op("neg", b.scalar(x, b.out_dtype))


@row("math.sqrt", "torch.sym_sqrt", "torch._sym_sqrt")
def _sqrt_size(b: AtenBuilder, x: Any) -> Any:
    return b.op("sqrt", b.scalar(x, b.out_dtype))


@row("aten.floor_divide")
def floor_divide(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.binary("floor_div", x, y, b.out_dtype)


@row("aten.bitwise_left_shift", "aten.__lshift__")
def left_shift(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.binary("shift_left", x, y, b.out_dtype)


@row("aten.bitwise_right_shift", "aten.__rshift__")
def right_shift(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.binary("shift_right", x, y, b.out_dtype)


@row("aten.bitwise_not", "aten.__invert__")
def bitwise_not(b: AtenBuilder, x: Any) -> Any:
    return b.op("logical_not" if x.dtype == "bool" else "bitwise_not", x)


@row("aten.pow", "aten.float_power")
def power(b: AtenBuilder, x: Any, exponent: Any) -> Any:
    """Small whole and half exponents become products and roots: as exact, and far cheaper than pow."""
    dtype = b.out_dtype
    if is_tensor(x) and isinstance(exponent, (int, float)):
        x = b.cast(x, dtype)
        if exponent in (1, 2, 3):
            return x if exponent == 1 else b.mul(b.mul(x, x), x) if exponent == 3 else b.mul(x, x)
        if is_float(dtype) and exponent in (0.5, -0.5, -1):
            return b.op({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], x)
    return b.binary("pow", x, exponent, dtype)


@row("aten.square")
def square(b: AtenBuilder, x: Any) -> Any:
    return b.mul(x, x)


@row("aten.addcmul")
def addcmul(b: AtenBuilder, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    product = b.mul(y, z, b.out_dtype)
    return b.add(x, product if value == 1 else b.mul(product, value, b.out_dtype), b.out_dtype)


@row("aten.addcdiv")
def addcdiv(b: AtenBuilder, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    quotient = b.div(y, z, b.out_dtype)
    return b.add(x, quotient if value == 1 else b.mul(quotient, value, b.out_dtype), b.out_dtype)


@row("aten.lerp")
def lerp(b: AtenBuilder, start: Any, end: Any, weight: Any) -> Any:
    """Torch's two-sided form: exact at both ends."""
    span = b.sub(end, start)
    low = b.add(start, b.mul(span, weight, b.out_dtype))
    if isinstance(weight, (int, float)):
        return low if abs(weight) < 0.5 else b.sub(end, b.mul(span, 1 - weight, b.out_dtype))
    high = b.sub(end, b.mul(span, b.sub(1, weight, b.out_dtype)))
    return b.where(b.binary("lt", b.op("abs", weight), 0.5), low, high)


@row("aten.frac")
def frac(b: AtenBuilder, x: Any) -> Any:
    return b.sub(x, b.op("trunc", x))


@row("aten.round")
def round_(b: AtenBuilder, x: Any, decimals: int = 0) -> Any:
    if not is_float(x.dtype) or decimals == 0:
        return b.op("round", x) if is_float(x.dtype) else x
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return b.div(b.op("round", b.mul(x, scale, x.dtype)), scale, x.dtype)
    return b.mul(b.op("round", b.div(x, scale, x.dtype)), scale, x.dtype)


for _op in ("floor", "ceil", "trunc"):

    @row(f"aten.{_op}")
    def _whole(b: AtenBuilder, x: Any, name: str = _op) -> Any:
        return b.op(name, x) if is_float(x.dtype) else x


# --- choices ---


@row("aten.where")
def where(b: AtenBuilder, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None:
        raise UnsupportedCaseError("the size of its result depends on data; use the three-operand where")
    return b.where(condition, x, y, b.out_dtype)


@row("aten.masked_fill")
def masked_fill(b: AtenBuilder, x: Any, mask: Any, value: Any) -> Any:
    return b.where(mask, value, x, b.out_dtype)


@row("aten.clamp", "aten.clip")
def clamp(b: AtenBuilder, x: Any, min: Any = None, max: Any = None) -> Any:
    return b.clamp(b.cast(x, b.out_dtype), min, max)


@row("aten.clamp_min")
def clamp_min(b: AtenBuilder, x: Any, min: Any) -> Any:
    return b.clamp(b.cast(x, b.out_dtype), min, None)


@row("aten.clamp_max")
def clamp_max(b: AtenBuilder, x: Any, max: Any) -> Any:
    return b.clamp(b.cast(x, b.out_dtype), None, max)


@row("aten.threshold")
def threshold_(b: AtenBuilder, x: Any, threshold: Any, value: Any) -> Any:
    return b.where(b.binary("le", x, threshold, x.dtype), value, x, x.dtype)


for _op in ("isnan", "isinf"):

    @row(f"aten.{_op}")
    def _is_special(b: AtenBuilder, x: Any, name: str = _op) -> Any:
        return b.op(name, x) if is_float(x.dtype) else b.full(x.shape, False, "bool")


@row("aten.isfinite")
def isfinite(b: AtenBuilder, x: Any) -> Any:
    if not is_float(x.dtype):
        return b.full(x.shape, True, "bool")
    return b.binary("lt", b.op("abs", x), math.inf, x.dtype)


@row("aten.isposinf")
def isposinf(b: AtenBuilder, x: Any) -> Any:
    return b.binary("eq", x, math.inf, x.dtype) if is_float(x.dtype) else b.full(x.shape, False, "bool")


@row("aten.isneginf")
def isneginf(b: AtenBuilder, x: Any) -> Any:
    return b.binary("eq", x, -math.inf, x.dtype) if is_float(x.dtype) else b.full(x.shape, False, "bool")


@row("aten.nan_to_num")
def nan_to_num(b: AtenBuilder, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if not is_float(x.dtype):
        return x
    largest = float(ml_dtypes.finfo(NUMPY_DTYPES[x.dtype]).max)
    y = b.where(b.op("isnan", x), 0.0 if nan is None else nan, x, x.dtype)
    y = b.where(b.binary("eq", x, math.inf, x.dtype), largest if posinf is None else posinf, y, x.dtype)
    return b.where(b.binary("eq", x, -math.inf, x.dtype), -largest if neginf is None else neginf, y, x.dtype)


@row("aten.isclose")
def isclose(b: AtenBuilder, x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    close = b.binary("eq", x, y)
    if not is_float(x.dtype):
        x, y = b.cast(x, "f32"), b.cast(y, "f32")
    allowed = b.add(b.mul(b.op("abs", y), rtol, y.dtype), atol, y.dtype)
    difference = b.op("abs", b.sub(x, y))
    finite = b.binary("lt", difference, math.inf, x.dtype)
    close = b.op("logical_or", close, b.op("logical_and", b.binary("le", difference, allowed), finite))
    if equal_nan:
        close = b.op("logical_or", close, b.op("logical_and", b.op("isnan", x), b.op("isnan", y)))
    return close


# --- conversions and copies ---


@row("aten.to", "aten._to_copy", "aten.type", "prims.convert_element_type", "aten.copy_to")
def to(b: AtenBuilder, x: Any, *args: Any, dtype: Any = None, other: Any = None) -> Any:
    return b.cast(x, b.out_dtype)


@row(
    "aten.type_as", "aten.clone", "aten.contiguous", "aten.alias", "aten.detach", "aten.lift_fresh",
    "aten.lift_fresh_copy", "aten.lift", "aten.requires_grad", "aten.positive", "aten.real", "aten.resolve_conj",
    "aten.resolve_neg", "aten.conj", "aten.conj_physical", "prims.view_of", "prims.device_put", "aten.cpu",
)  # fmt: skip
def same(b: AtenBuilder, x: Any, *others: Any) -> Any:
    return b.cast(x, b.out_dtype)


@row("aten.copy")
def copy(b: AtenBuilder, x: Any, source: Any, non_blocking: bool = False) -> Any:
    return b.expand(b.cast(source, b.out_dtype), b.out_shape)


@row("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.feature_alpha_dropout", "aten.native_dropout")
def dropout(b: AtenBuilder, x: Any, p: float, train: bool | None) -> Any:
    if train and p > 0:
        raise UnsupportedCaseError("dropout in training mode; call model.eval() before export")
    return (x, b.full(x.shape, True, "bool")) if len(b.outs) > 1 else x


@row("aten.scalar_tensor")
def scalar_tensor(b: AtenBuilder, value: Any, dtype: Scalar | None = None) -> Any:
    return b.scalar(value, b.out_dtype)


@row("aten.imag", "aten.complex", "aten.polar", "aten.view_as_real", "aten.view_as_complex")
def no_complex(b: AtenBuilder, *args: Any) -> Any:
    raise UnsupportedCaseError("complex numbers are not supported; keep real and imaginary parts apart")


@row(
    "aten.rand", "aten.randn", "aten.rand_like", "aten.randn_like", "aten.randint", "aten.bernoulli", "aten.multinomial"
)  # fmt: skip
def random(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedCaseError("random numbers; pass them in as an input")


# --- special functions ---


@row("aten.logit", "aten.special_logit")
def logit(b: AtenBuilder, x: Any, eps: float | None = None) -> Any:
    x = b.real(x)
    if eps is not None and eps >= 0:
        x = b.clamp(x, eps, 1 - eps)
    return b.op("log", b.div(x, b.sub(1, x, x.dtype)))


@row("aten.xlogy", "aten.special_xlogy")
def xlogy(b: AtenBuilder, x: Any, y: Any) -> Any:
    return _x_times_log(b, "log", x, y)


@row("aten.special_xlog1py")
def xlog1py(b: AtenBuilder, x: Any, y: Any) -> Any:
    return _x_times_log(b, "log1p", x, y)


def _x_times_log(b: AtenBuilder, log: str, x: Any, y: Any) -> Any:
    x, y = b.scalar(x, b.out_dtype), b.scalar(y, b.out_dtype)
    product = b.where(b.binary("eq", x, 0, x.dtype), 0, b.mul(x, b.op(log, y)), b.out_dtype)
    return b.where(b.op("isnan", y), y, product, b.out_dtype)


@row("aten.special_entr")
def entr(b: AtenBuilder, x: Any) -> Any:
    x = b.real(x)
    body = b.where(b.binary("eq", x, 0, x.dtype), 0, b.op("neg", b.mul(x, b.op("log", x))), x.dtype)
    return b.where(b.binary("lt", x, 0, x.dtype), -math.inf, body, x.dtype)


@row("aten.logaddexp")
def logaddexp(b: AtenBuilder, x: Any, y: Any) -> Any:
    return _log_sum(b, x, y, "exp", 1.0)


@row("aten.logaddexp2")
def logaddexp2(b: AtenBuilder, x: Any, y: Any) -> Any:
    return _log_sum(b, x, y, "exp2", 1 / math.log(2))


def _log_sum(b: AtenBuilder, x: Any, y: Any, exp: str, scale: float) -> Any:
    top = b.binary("maximum", x, y)
    tail = b.op("log1p", b.op(exp, b.op("neg", b.op("abs", b.sub(x, y)))))
    result = b.add(top, tail if scale == 1 else b.mul(tail, scale, tail.dtype))
    # Equal infinities: their difference is NaN, their sum is themselves.
    return b.where(b.op("logical_and", b.binary("eq", x, y), b.op("isinf", top)), top, result, top.dtype)


@row("aten.hypot")
def hypot(b: AtenBuilder, x: Any, y: Any) -> Any:
    x, y = b.op("abs", x), b.op("abs", y)
    top, low = b.binary("maximum", x, y), b.binary("minimum", x, y)
    quotient = b.div(low, top)
    result = b.mul(top, b.op("sqrt", b.add(b.mul(quotient, quotient), 1, top.dtype)))
    is_plain = b.op("logical_or", b.binary("eq", top, 0, top.dtype), b.op("isinf", top))
    return b.where(is_plain, top, result, top.dtype)


@row("aten.signbit")
def signbit(b: AtenBuilder, x: Any) -> Any:
    if not is_float(x.dtype):
        return b.full(x.shape, False, "bool") if x.dtype == "bool" else b.binary("lt", x, 0, x.dtype)
    bits = b.op("bitcast", x, dtype=f"i{DTYPES[x.dtype].bits}")
    return b.binary("lt", bits, 0, bits.dtype)


@row("aten.copysign")
def copysign(b: AtenBuilder, x: Any, y: Any) -> Any:
    x, y = b.scalar(x, b.out_dtype), b.scalar(y, b.out_dtype)
    size = b.op("abs", x)
    return b.where(signbit(b, y), b.op("neg", size), size, b.out_dtype)


@row("aten.heaviside")
def heaviside(b: AtenBuilder, x: Any, values: Any) -> Any:
    step = b.cast(b.binary("gt", x, 0, x.dtype), x.dtype)
    return b.where(b.binary("eq", x, 0, x.dtype), values, step, x.dtype)


@row("aten.deg2rad")
def deg2rad(b: AtenBuilder, x: Any) -> Any:
    return b.mul(x, math.pi / 180, b.out_dtype)


@row("aten.rad2deg")
def rad2deg(b: AtenBuilder, x: Any) -> Any:
    return b.mul(x, 180 / math.pi, b.out_dtype)


@row("aten.sinc", "aten.special_sinc")
def sinc(b: AtenBuilder, x: Any) -> Any:
    x = b.real(x)
    angle = b.mul(x, math.pi, x.dtype)
    return b.where(b.binary("eq", x, 0, x.dtype), 1, b.div(b.op("sin", angle), angle), x.dtype)
