"""ATen rows: activation functions, softmax, losses."""

from __future__ import annotations

import math
from typing import Any

from mlc.frontend.aten_reduce import cosine_similarity, pairwise_distance
from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.report import UnsupportedCaseError


@row("aten.gelu")
def gelu(b: AtenBuilder, x: Any, approximate: str = "none") -> Any:
    return b.op("gelu", x, approximate=approximate == "tanh")


@row("aten.relu6")
def relu6(b: AtenBuilder, x: Any) -> Any:
    return b.clamp(x, 0, 6)


@row("aten.hardtanh")
def hardtanh(b: AtenBuilder, x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return b.clamp(x, min_val, max_val)


@row("aten.hardsigmoid")
def hardsigmoid(b: AtenBuilder, x: Any) -> Any:
    return b.div(b.clamp(b.add(x, 3, x.dtype), 0, 6), 6, x.dtype)


@row("aten.hardswish")
def hardswish(b: AtenBuilder, x: Any) -> Any:
    return b.div(b.mul(x, b.clamp(b.add(x, 3, x.dtype), 0, 6)), 6, x.dtype)


def _piecewise(b: AtenBuilder, x: Any, low: Any, high: Any = None) -> Any:
    """`high` (x itself by default) above 0, `low` elsewhere; NaN goes to `low`, which keeps it."""
    return b.where(b.binary("gt", x, 0, x.dtype), x if high is None else high, low, x.dtype)


@row("aten.leaky_relu")
def leaky_relu(b: AtenBuilder, x: Any, negative_slope: float = 0.01) -> Any:
    return _piecewise(b, x, b.mul(x, negative_slope, x.dtype))


@row("aten.prelu", "aten._prelu_kernel")
def prelu(b: AtenBuilder, x: Any, weight: Any) -> Any:
    if len(weight.shape) == 1 and len(x.shape) > 1:
        weight = b.reshape(weight, [weight.shape[0]] + [1] * (len(x.shape) - 2))
    return _piecewise(b, x, b.mul(x, weight))


@row("aten.rrelu", "aten.rrelu_with_noise")
def rrelu(b: AtenBuilder, x: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Any:
    if training:
        raise UnsupportedCaseError("rrelu in training mode; call model.eval() before export")
    return leaky_relu(b, x, (lower + upper) / 2)


@row("aten.elu")
def elu(b: AtenBuilder, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    inner = x if input_scale == 1 else b.mul(x, input_scale, x.dtype)
    low = b.mul(b.op("expm1", inner), alpha * scale, x.dtype)
    return _piecewise(b, x, low, x if scale == 1 else b.mul(x, scale, x.dtype))


@row("aten.selu")
def selu(b: AtenBuilder, x: Any) -> Any:
    """Source: Klambauer et al. 2017, the constants of appendix A1."""
    return elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@row("aten.celu")
def celu(b: AtenBuilder, x: Any, alpha: float = 1.0) -> Any:
    return elu(b, x, alpha, 1, 1 / alpha)


def _log1p_exp(b: AtenBuilder, x: Any) -> Any:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses small values."""
    tail = b.op("log1p", b.op("exp", b.op("neg", b.op("abs", x))))
    return b.add(b.op("relu", x), tail)


@row("aten.softplus")
def softplus(b: AtenBuilder, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else b.mul(x, beta, x.dtype)
    soft = _log1p_exp(b, scaled)
    soft = soft if beta == 1 else b.div(soft, beta, x.dtype)
    return b.where(b.binary("gt", scaled, threshold, x.dtype), x, soft, x.dtype)


@row("aten.log_sigmoid", "aten.log_sigmoid_forward")
def log_sigmoid(b: AtenBuilder, x: Any) -> Any:
    result = b.op("neg", _log1p_exp(b, b.op("neg", x)))
    return (result, b.full([0], 0.0, x.dtype)) if len(b.outs) > 1 else result


@row("aten.mish")
def mish(b: AtenBuilder, x: Any) -> Any:
    return b.mul(x, b.op("tanh", softplus(b, x)))


@row("aten.hardshrink")
def hardshrink(b: AtenBuilder, x: Any, lambd: float = 0.5) -> Any:
    return b.where(b.binary("le", b.op("abs", x), lambd, x.dtype), 0, x, x.dtype)


@row("aten.softshrink")
def softshrink(b: AtenBuilder, x: Any, lambd: float = 0.5) -> Any:
    shrunk = b.sub(x, b.mul(b.op("sign", x), lambd, x.dtype))
    return b.where(b.binary("le", b.op("abs", x), lambd, x.dtype), b.mul(x, 0, x.dtype), shrunk, x.dtype)


@row("aten.glu")
def glu(b: AtenBuilder, x: Any, dim: int = -1) -> Any:
    half = x.shape[b.axis(x, dim)] // 2
    return b.mul(b.slice(x, dim, 0, half), b.op("sigmoid", b.slice(x, dim, half)))


# --- softmax ---


@row("aten.softmax", "aten._softmax", "aten.special_softmax")
def softmax(b: AtenBuilder, x: Any, dim: int, dtype: Any = None) -> Any:
    return b.op("softmax", b.cast(x, b.out_dtype), axis=b.axis(x, dim)) if x.shape else b.full([], 1, b.out_dtype)


@row("aten._safe_softmax")
def safe_softmax(b: AtenBuilder, x: Any, dim: int, dtype: Any = None) -> Any:
    """0 where a whole row is -inf."""
    x = b.cast(x, b.out_dtype)
    hidden = b.reduce("all", b.binary("eq", x, -math.inf, x.dtype), [dim], True)
    return b.where(hidden, 0, softmax(b, x, dim), x.dtype)


@row("aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax")
def log_softmax(b: AtenBuilder, x: Any, dim: int, dtype: Any = None) -> Any:
    return b.op("log_softmax", b.cast(x, b.out_dtype), axis=b.axis(x, dim)) if x.shape else b.full([], 0, b.out_dtype)


# --- losses ---

# The schema's numbers for `reduction`.
_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(b: AtenBuilder, loss: Any, reduction: int) -> Any:
    return loss if reduction == _NONE else b.reduce("mean" if reduction == _MEAN else "sum", loss, None)


@row("aten.mse_loss")
def mse_loss(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN) -> Any:
    difference = b.sub(x, target)
    return _reduced(b, b.mul(difference, difference), reduction)


@row("aten.l1_loss")
def l1_loss(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN) -> Any:
    return _reduced(b, b.op("abs", b.sub(x, target)), reduction)


@row("aten.smooth_l1_loss")
def smooth_l1_loss(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    size = b.op("abs", b.sub(x, target))
    if beta == 0:
        return _reduced(b, size, reduction)
    small = b.div(b.mul(b.mul(size, size), 0.5, size.dtype), beta, size.dtype)
    large = b.sub(size, 0.5 * beta, size.dtype)
    return _reduced(b, b.where(b.binary("lt", size, beta, size.dtype), small, large), reduction)


@row("aten.huber_loss")
def huber_loss(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    size = b.op("abs", b.sub(x, target))
    small = b.mul(b.mul(size, size), 0.5, size.dtype)
    large = b.mul(b.sub(size, 0.5 * delta, size.dtype), delta, size.dtype)
    return _reduced(b, b.where(b.binary("le", size, delta, size.dtype), small, large), reduction)


@row("aten.binary_cross_entropy")
def binary_cross_entropy(b: AtenBuilder, x: Any, target: Any, weight: Any = None, reduction: int = _MEAN) -> Any:
    """Logarithms are bounded below by -100, as torch has it."""
    hit = b.clamp(b.op("log", x), -100, None)
    miss = b.clamp(b.op("log1p", b.op("neg", x)), -100, None)
    loss = b.op("neg", b.add(b.mul(target, hit), b.mul(b.sub(1, target, x.dtype), miss)))
    return _reduced(b, loss if weight is None else b.mul(loss, weight), reduction)


@row("aten.binary_cross_entropy_with_logits")
def bce_with_logits(
    b: AtenBuilder, x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = _MEAN
) -> Any:
    softplus_neg = _log1p_exp(b, b.op("neg", x))
    rest = b.mul(b.sub(1, target, x.dtype), x)
    scale = softplus_neg
    if pos_weight is not None:
        scale = b.mul(softplus_neg, b.add(b.mul(b.sub(pos_weight, 1, x.dtype), target), 1, x.dtype))
    loss = b.add(rest, scale)
    return _reduced(b, loss if weight is None else b.mul(loss, weight), reduction)


@row("aten.kl_div")
def kl_div(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN, log_target: bool = False) -> Any:
    if log_target:
        return _reduced(b, b.mul(b.op("exp", target), b.sub(target, x)), reduction)
    entropy = b.where(b.binary("gt", target, 0, x.dtype), b.mul(target, b.op("log", target)), 0, x.dtype)
    return _reduced(b, b.sub(entropy, b.mul(target, x)), reduction)


@row("aten.nll_loss", "aten.nll_loss2d", "aten.nll_loss_nd", "aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(
    b: AtenBuilder, x: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignore_index: int = -100
) -> Any:
    """x: log-probabilities [N, C, ...] or [C]; target: class numbers [N, ...] or []."""
    axis = 1 if len(x.shape) > 1 else 0
    keep = b.binary("ne", target, ignore_index, target.dtype)
    ids = b.where(keep, target, 0, target.dtype)
    picked = b.squeeze(b.op("gather_elements", x, b.unsqueeze(ids, axis), axis=axis), axis)
    scale = b.cast(keep, x.dtype)
    if weight is not None:
        scale = b.mul(scale, b.op("gather", weight, ids, axis=0))
    # A masked -inf must not become NaN by being multiplied by 0.
    loss = b.where(keep, b.op("neg", b.mul(picked, scale)), 0, x.dtype)
    total = b.reduce("sum", scale, None)
    if reduction == _MEAN:
        loss = b.div(b.reduce("sum", loss, None), total)
    elif reduction == _SUM:
        loss = b.reduce("sum", loss, None)
    return (loss, total) if len(b.outs) > 1 else loss


@row("aten.cross_entropy_loss")
def cross_entropy_loss(
    b: AtenBuilder, x: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    axis = 1 if len(x.shape) > 1 else 0
    log_probabilities = b.op("log_softmax", x, axis=axis)
    if label_smoothing == 0 and len(target.shape) < len(x.shape):
        return nll_loss(b, log_probabilities, target, weight, reduction, ignore_index)
    if weight is not None or len(target.shape) < len(x.shape):
        raise UnsupportedCaseError("cross entropy with label smoothing or class weights on probabilities; write it out")
    if label_smoothing:
        even = label_smoothing / x.shape[axis]
        target = b.add(b.mul(target, 1 - label_smoothing, x.dtype), even, x.dtype)
    loss = b.op("neg", b.reduce("sum", b.mul(log_probabilities, target), axis))
    return _reduced(b, loss, reduction)


@row("aten.poisson_nll_loss")
def poisson_nll_loss(
    b: AtenBuilder, x: Any, target: Any, log_input: bool, full: bool, eps: float, reduction: int
) -> Any:
    if log_input:
        loss = b.sub(b.op("exp", x), b.mul(target, x))
    else:
        loss = b.sub(x, b.mul(target, b.op("log", b.add(x, eps, x.dtype))))
    if full:
        # Stirling's term, for targets above 1.
        stirling = b.add(b.sub(b.mul(target, b.op("log", target)), target), _half_log_tau(b, target))
        loss = b.add(loss, b.where(b.binary("le", target, 1, target.dtype), 0, stirling, target.dtype))
    return _reduced(b, loss, reduction)


def _half_log_tau(b: AtenBuilder, x: Any) -> Any:
    """log(2 pi x) / 2."""
    return b.mul(b.op("log", b.mul(x, 2 * math.pi, x.dtype)), 0.5, x.dtype)


@row("aten.soft_margin_loss")
def soft_margin_loss(b: AtenBuilder, x: Any, target: Any, reduction: int = _MEAN) -> Any:
    return _reduced(b, _log1p_exp(b, b.op("neg", b.mul(target, x))), reduction)


@row("aten.margin_ranking_loss")
def margin_ranking_loss(
    b: AtenBuilder, x: Any, y: Any, target: Any, margin: float = 0.0, reduction: int = _MEAN
) -> Any:
    gap = b.add(b.op("neg", b.mul(target, b.sub(x, y))), margin, x.dtype)
    return _reduced(b, b.clamp(gap, 0, None), reduction)


@row("aten.hinge_embedding_loss")
def hinge_embedding_loss(b: AtenBuilder, x: Any, target: Any, margin: float = 1.0, reduction: int = _MEAN) -> Any:
    apart = b.where(b.binary("ne", target, 1), b.clamp(b.sub(margin, x, x.dtype), 0, None), 0, x.dtype)
    return _reduced(b, b.add(apart, b.where(b.binary("ne", target, -1), x, 0, x.dtype)), reduction)


@row("aten.triplet_margin_loss")
def triplet_margin_loss(
    b: AtenBuilder, anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, reduction: int = _MEAN,
) -> Any:  # fmt: skip
    near, far = pairwise_distance(b, anchor, positive, p, eps), pairwise_distance(b, anchor, negative, p, eps)
    if swap:
        far = b.binary("minimum", far, pairwise_distance(b, positive, negative, p, eps))
    return _reduced(b, b.clamp(b.add(b.sub(near, far), margin, near.dtype), 0, None), reduction)


@row("aten.cosine_embedding_loss")
def cosine_embedding_loss(
    b: AtenBuilder, x: Any, y: Any, target: Any, margin: float = 0.0, reduction: int = _MEAN
) -> Any:
    near = cosine_similarity(b, x, y, len(x.shape) - 1)
    apart = b.clamp(b.sub(near, margin, near.dtype), 0, None)
    loss = b.where(b.binary("eq", target, 1), b.sub(1, near, near.dtype), 0, near.dtype)
    return _reduced(b, b.where(b.binary("eq", target, -1), apart, loss, near.dtype), reduction)


@row("aten.one_hot")
def one_hot(b: AtenBuilder, x: Any, num_classes: Any = -1) -> Any:
    classes = b.out_shape[-1] if isinstance(num_classes, int) and num_classes < 0 else num_classes
    return b.cast(b.binary("eq", b.unsqueeze(x, -1), b.iota(classes, x.dtype)), "i64")
