"""com.microsoft ops that are standard ops joined: what ONNX Runtime's optimiser leaves in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_conv import convolve, window_of
from mlc.frontend.onnx_steps import activation
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("FusedConv", domain="com.microsoft")
def _fused_conv(c: Call, x: Value, w: Value, bias: Value | None = None, added: Value | None = None) -> Value:
    window = window_of(c, list(x.shape[2:]), [int(k) for k in w.shape[2:]])
    y = convolve(c, x, w, bias, window, c.attr("group", 1))
    return _activated(c, y if added is None else c.add(y, added), c.attr("activation_params") or [])


def _activated(c: Call, x: Value, numbers: list[float]) -> Value:
    name = c.attr("activation", "")
    if not name:
        return x
    if name == "Clip":
        return c.clamp(x, *numbers)
    alpha, beta = [*numbers, None, None][:2]
    return activation(c, name, alpha, beta)(x)


@row("FusedGemm", domain="com.microsoft")
def _fused_gemm(c: Call, a: Value, b: Value, bias: Value | None = None) -> Value:
    y = c.matmul(a, b, transpose_a=bool(c.attr("transA", 0)), transpose_b=bool(c.attr("transB", 0)))
    y = c.mul(y, c.scalar(c.attr("alpha", 1.0), y))
    if bias is not None:
        y = c.add(y, c.mul(bias, c.scalar(c.attr("beta", 1.0), bias)))
    numbers = [c.attr(name) for name in ("activation_alpha", "activation_beta") if c.attr(name) is not None]
    return _activated(c, y, numbers)


@row("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def _fused_matmul(c: Call, a: Value, b: Value) -> Value:
    """alpha A B; transBatch says that the rows of a matrix come before the batch."""
    a, b = (_batch_first(c, x) if c.attr(name, 0) else x for x, name in ((a, "transBatchA"), (b, "transBatchB")))
    y = c.matmul(a, b, transpose_a=bool(c.attr("transA", 0)), transpose_b=bool(c.attr("transB", 0)))
    alpha = c.attr("alpha", 1.0)
    return y if alpha == 1.0 else c.mul(y, c.scalar(alpha, y))


def _batch_first(c: Call, x: Value) -> Value:
    """[M, *B, K] as [*B, M, K]."""
    rank = len(x.shape)
    return c.permuted(x, [*range(1, rank - 1), 0, rank - 1])


@row("GemmFastGelu", domain="com.microsoft")
def _gemm_fast_gelu(c: Call, x: Value, w: Value, bias: Value | None = None) -> Value:
    y = c.matmul(x, w)
    return c.gelu(y if bias is None else c.add(y, bias), approximate=True)


@row("BiasAdd", domain="com.microsoft")
def _bias_add(c: Call, x: Value, bias: Value, skip: Value) -> Value:
    return c.add(c.add(x, bias), skip)


@row("BiasSplitGelu", domain="com.microsoft")
def _bias_split_gelu(c: Call, x: Value, bias: Value) -> Value:
    """The first half of the last axis times the GELU of the second."""
    total = c.add(x, bias)
    axis, size = len(x.shape) - 1, x.shape[-1]
    left, right = c.sliced(total, axis, 0, size // 2), c.sliced(total, axis, size // 2, size)
    return c.mul(left, c.gelu(right, approximate=False))


@row("BiasSoftmax", domain="com.microsoft")
def _bias_softmax(c: Call, x: Value, bias: Value) -> Value:
    """Softmax over the axes from `axis` on, taken as one."""
    total = c.add(x, bias)
    axis = c.axis(x, c.attr("axis", 1))
    return c.shaped(
        c.softmax(c.shaped(total, [*total.shape[:axis], product(total.shape[axis:])]), axis=axis), total.shape
    )


@row("BiasDropout", domain="com.microsoft")
def _bias_dropout(c: Call, x: Value, bias: Value, residual: Value | None = None, *rest: Any) -> Any:
    y = c.add(x, bias)
    y = y if residual is None else c.add(y, residual)
    return (y, c.full(shape=list(x.shape), value=1, dtype="bool")) if c.has_output(1) else y


@row("GroupNorm", domain="com.microsoft")
def _group_norm(c: Call, x: Value, gamma: Value, beta: Value) -> Value:
    return _normed(c, x, gamma, beta)


@row("SkipGroupNorm", domain="com.microsoft")
def _skip_group_norm(c: Call, x: Value, gamma: Value, beta: Value, skip: Value, bias: Value | None = None) -> Any:
    last, channels = bool(c.attr("channels_last", 1)), gamma.shape[0]
    if len(skip.shape) == 2:  # one number for each item and channel
        skip = c.shaped(skip, [skip.shape[0], 1, 1, channels] if last else [skip.shape[0], channels, 1, 1])
    total = c.add(x, skip)
    if bias is not None:
        total = c.add(total, bias if last else c.shaped(bias, [channels, 1, 1]))
    return _normed(c, total, gamma, beta), total


def _normed(c: Call, x: Value, gamma: Value, beta: Value) -> Value:
    last = bool(c.attr("channels_last", 1))
    y = c.transpose(x, perm=[0, 3, 1, 2]) if last else x
    gamma, beta = c.to(gamma, y.dtype), c.to(beta, y.dtype)
    y = c.group_norm(y, gamma, beta, groups=c.attr("groups"), epsilon=c.attr("epsilon", 1e-5))
    y = c.silu(y) if c.attr("activation", 0) else y
    return c.transpose(y, perm=[0, 2, 3, 1]) if last else y


@row("NhwcConv", domain="com.microsoft")
def _nhwc_conv(c: Call, x: Value, w: Value, bias: Value | None = None) -> Value:
    """Channels last in data and weights both."""
    rank = len(x.shape)
    x, w = (c.transpose(v, perm=[0, rank - 1, *range(1, rank - 1)]) for v in (x, w))
    window = window_of(c, list(x.shape[2:]), [int(k) for k in w.shape[2:]])
    y = convolve(c, x, w, bias, window, c.attr("group", 1))
    return c.transpose(y, perm=[0, *range(2, rank), 1])


@row("ExpandDims", domain="com.microsoft")
def _expand_dims(c: Call, x: Value, axis: Known) -> Value:
    at = int(axis.item()) % (len(x.shape) + 1)
    return c.shaped(x, [*x.shape[:at], 1, *x.shape[at:]])
