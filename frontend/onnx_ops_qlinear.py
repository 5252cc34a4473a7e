"""com.microsoft ops on quantised numbers: what ONNX Runtime's quantiser leaves in a model.

Pointwise ones compute in f32 between a dequantisation and a quantisation, as ONNX Runtime does; products stay in i32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_matmul import centred, dequantize, dynamic_quantize, multiply, quantize
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


def _plain(c: Call, x: Value, scale: Value, zero: Value | None) -> Value:
    """The f32 of a tensor with one scale and zero point."""
    zero = None if zero is None else c.shaped(zero, [])
    return dequantize(c, x, c.shaped(scale, []), zero, "f32")


def _quantized(c: Call, y: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    return quantize(c, y, c.shaped(scale, []), None if zero is None else c.shaped(zero, []), dtype)


@row("QLinearAdd", "QLinearMul", domain="com.microsoft")
def _binary(
    c: Call,
    a: Value,
    a_scale: Value,
    a_zero: Value | None,
    b: Value,
    b_scale: Value,
    b_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None = None,
) -> Value:
    op = "add" if c.node.op == "QLinearAdd" else "mul"
    y = c.importer.emit(op, _plain(c, a, a_scale, a_zero), _plain(c, b, b_scale, b_zero))
    return _quantized(c, y, y_scale, y_zero, a.dtype)


@row("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain="com.microsoft")
def _unary(
    c: Call, x: Value, x_scale: Value, x_zero: Value | None, y_scale: Value, y_zero: Value | None = None
) -> Value:
    y = _plain(c, x, x_scale, x_zero)
    if c.node.op == "QLinearSigmoid":
        y = c.sigmoid(y)
    elif c.node.op == "QLinearLeakyRelu":
        y = c.where(c.lt(y, c.scalar(0, y)), c.mul(y, c.scalar(c.attr("alpha", 0.01), y)), y)
    else:
        y = c.softmax(y, axis=c.axis(y, c.attr("axis", -1)))
    return _quantized(c, y, y_scale, y_zero, x.dtype)


@row("QLinearGlobalAveragePool", domain="com.microsoft")
def _global_average_pool(c: Call, x: Value, x_scale: Value, x_zero: Value, y_scale: Value, y_zero: Value) -> Value:
    last = len(x.shape) - bool(c.attr("channels_last", 0))
    first = 1 if c.attr("channels_last", 0) else 2
    y = c.mean(_plain(c, x, x_scale, x_zero), axes=list(range(first, last)), keepdims=True)
    return _quantized(c, y, y_scale, y_zero, x.dtype)


@row("QLinearConcat", domain="com.microsoft")
def _concat(c: Call, y_scale: Value, y_zero: Value, *parts: Value) -> Value:
    """`parts` are tensors, each with its scale and zero point."""
    tensors = [_plain(c, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    y = c.concat(*tensors, axis=c.axis(tensors[0], c.attr("axis")))
    return _quantized(c, y, y_scale, y_zero, parts[0].dtype)


# --- products ---


def _per_column(c: Call, v: Value) -> Value:
    """A scale or zero point for a whole matrix, or one for each of its columns."""
    return c.shaped(v, []) if product(v.shape) == 1 else v


def _scaled_product(
    c: Call,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None,
    b_zero: Value | None,
    bias: Value | None,
) -> Value:
    total = multiply(c, centred(c, a, a_zero, -2), centred(c, b, b_zero, -1))
    y = c.mul(c.to(total, "f32"), c.mul(c.shaped(a_scale, []), _per_column(c, b_scale)))
    return y if bias is None else c.add(y, bias)


@row("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_integer_to_float(
    c: Call,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None = None,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    return _scaled_product(c, a, b, a_scale, b_scale, a_zero, b_zero, bias)


@row("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_quantize_matmul(
    c: Call, a: Value, b: Value, b_scale: Value, b_zero: Value | None = None, bias: Value | None = None
) -> Value:
    whole, scale, zero = dynamic_quantize(c, a)
    return _scaled_product(c, whole, b, scale, b_scale, zero, b_zero, bias)


@row("QGemm", domain="com.microsoft")
def _qgemm(
    c: Call,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    bias: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
) -> Value:
    """alpha (A B + bias), `bias` in the product's steps; quantised where there is a scale for it."""
    left, right = c.sub(c.to(a, "i32"), c.to(c.shaped(a_zero, []), "i32")), c.to(b, "i32")
    columns = 0 if c.attr("transB", 0) else 1
    if product(b_zero.shape) == 1:
        b_zero = c.shaped(b_zero, [])
    else:
        b_zero = c.shaped(b_zero, [1, b_zero.shape[0]] if columns == 1 else [b_zero.shape[0], 1])
    right = c.sub(right, c.to(b_zero, "i32"))
    transpose_a, transpose_b = bool(c.attr("transA", 0)), bool(c.attr("transB", 0))
    total = c.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b)
    total = total if bias is None else c.add(total, bias)
    scale = c.mul(c.shaped(a_scale, []), _per_column(c, b_scale))
    y = c.mul(c.to(total, "f32"), c.mul(scale, c.scalar(c.attr("alpha", 1.0), scale)))
    return y if y_scale is None else _quantized(c, y, y_scale, y_zero, a.dtype if y_zero is None else y_zero.dtype)


def projected(
    c: Call, x: Value, w: Value, x_scale: Value, w_scale: Value, x_zero: Value | None, w_zero: Value | None, bias: Value
) -> Value:
    """The f32 product of quantised matrices, as QAttention makes its queries, keys and values."""
    return _scaled_product(c, x, w, x_scale, w_scale, x_zero, w_zero, bias)


# --- packed tables ---


@row("GatherBlockQuantized", domain="com.microsoft")
def _gather_block_quantized(c: Call, data: Known, indices: Value, scales: Known, zeros: Known | None = None) -> Value:
    """Rows of a table of 4 or 8 bits in blocks along an axis, unpacked here to the dtype of the scales."""
    bits, block = c.attr("bits", 4), c.attr("block_size", 128)
    axis = c.attr("gather_axis", 0)

    def unpacked(x: np.ndarray) -> np.ndarray:
        if x.dtype != np.uint8 or bits == 8:
            return x.astype(np.float32)
        return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1).astype(np.float32)

    table = unpacked(data.array)
    along = c.attr("quantize_axis", 1) % table.ndim
    packed = data.dtype == np.uint8
    offset: Any = float(1 << (bits - 1)) if packed else 0.0
    if zeros is not None:
        size = scales.array.shape[along]
        offset = _spread(unpacked(zeros.array).take(range(size), along), along, block, table.shape[along])
    table = (table - offset) * _spread(scales.array.astype(np.float32), along, block, table.shape[along])
    return c.gather(c.const(table.astype(scales.dtype)), indices, axis=axis % table.ndim)


def _spread(x: np.ndarray, axis: int, block: int, size: int) -> np.ndarray:
    """One value a block as one an element."""
    return np.repeat(x, block, axis).take(range(size), axis)
