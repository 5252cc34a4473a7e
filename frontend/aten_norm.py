"""ATen rows: normalisation."""

from __future__ import annotations

from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.record import NUMPY_DTYPES
from mlc.frontend.report import UnsupportedCaseError


@row("aten.layer_norm")
def layer_norm(
    b: AtenBuilder, x: Any, normalized_shape: list[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    return b.op("layer_norm", x, weight, bias, axis=len(x.shape) - len(normalized_shape), epsilon=eps)


@row("aten.native_layer_norm")
def native_layer_norm(b: AtenBuilder, x: Any, normalized_shape: list[Any], weight: Any, bias: Any, eps: float) -> Any:
    """With mean and 1 / deviation, which nothing reads when it runs forward only; if it does, they are here."""
    axes = list(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    mean = b.reduce("mean", x, axes, True)
    off = b.sub(x, mean)
    variance = b.reduce("mean", b.mul(off, off), axes, True)
    return layer_norm(b, x, normalized_shape, weight, bias, eps), mean, b.op("rsqrt", b.add(variance, eps, x.dtype))


@row("aten.rms_norm", "aten._fused_rms_norm")
def rms_norm(b: AtenBuilder, x: Any, normalized_shape: list[Any], weight: Any = None, eps: float | None = None) -> Any:
    import ml_dtypes

    eps = float(ml_dtypes.finfo(NUMPY_DTYPES[x.dtype]).eps) if eps is None else eps
    axis = len(x.shape) - len(normalized_shape)
    result = b.op("rms_norm", x, weight, axis=axis, epsilon=eps)
    if len(b.outs) == 1:
        return result
    square = b.reduce("mean", b.mul(x, x), list(range(axis, len(x.shape))), True)
    return result, b.op("rsqrt", b.add(square, eps, x.dtype))


@row("aten.group_norm")
def group_norm(
    b: AtenBuilder, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    return b.op("group_norm", x, weight, bias, groups=num_groups, epsilon=eps)


@row("aten.native_group_norm")
def native_group_norm(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Any:
    rows = b.reshape(x, [N, group, dims.product(x.shape[1:]) // group])
    mean = b.reduce("mean", rows, 2)
    off = b.sub(rows, b.unsqueeze(mean, 2))
    variance = b.reduce("mean", b.mul(off, off), 2)
    return group_norm(b, x, group, weight, bias, eps), mean, b.op("rsqrt", b.add(variance, eps, x.dtype))


@row("aten.instance_norm")
def instance_norm(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _from_statistics(b, x, weight, bias, running_mean, running_var, eps)
    if not isinstance(x.shape[1], int):
        raise UnsupportedCaseError("instance_norm of a dynamic number of channels")
    return b.op("group_norm", x, weight, bias, groups=x.shape[1], epsilon=eps)


@row("aten.batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm")
def batch_norm(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if training or running_mean is None:
        raise UnsupportedCaseError("batch_norm in training mode; call model.eval() before export")
    return _from_statistics(b, x, weight, bias, running_mean, running_var, eps)


@row("aten._native_batch_norm_legit_no_training")
def native_batch_norm(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    empty = b.full([0], 0, x.dtype)
    return _from_statistics(b, x, weight, bias, running_mean, running_var, eps), empty, empty


@row("aten.native_batch_norm")
def native_batch_norm_flag(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    empty = b.full([0], 0, x.dtype)
    return batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps), empty, empty


def _from_statistics(b: AtenBuilder, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float) -> Any:
    """x * scale + shift with one scale and shift a channel: weights alone, so they fold into what is before."""
    inverse = b.op("reciprocal", b.op("sqrt", b.add(variance, eps, variance.dtype)))
    scale = inverse if weight is None else b.mul(weight, inverse)
    shift = b.op("neg", b.mul(mean, scale))
    shift = shift if bias is None else b.add(bias, shift)
    spread = [scale.shape[0]] + [1] * (len(x.shape) - 2)
    return b.add(b.mul(x, b.reshape(scale, spread), x.dtype), b.reshape(shift, spread), x.dtype)


@row("aten._weight_norm", "aten._weight_norm_interface")
def weight_norm(b: AtenBuilder, v: Any, g: Any, dim: int = 0) -> Any:
    axes = [axis for axis in range(len(v.shape)) if dim == -1 or axis != b.axis(v, dim)]
    size = b.op("sqrt", b.reduce("sum", b.mul(v, v), axes, True))
    result = b.mul(v, b.div(g, size))
    return (result, size) if len(b.outs) > 1 else result
