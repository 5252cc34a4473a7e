"""ONNX contractions: MatMul, Gemm, Einsum, and the integer and quantised products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_cast import saturated
from mlc.frontend.onnx_ops_conv import convolve, window_of
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("MatMul")
def _matmul(c: Call, a: Value, b: Value) -> Value:
    return multiply(c, a, b)


def multiply(c: Call, a: Value, b: Value) -> Value:
    """numpy's matmul: vectors gain an axis for the product and lose it again."""
    left = c.shaped(a, [1, *a.shape]) if len(a.shape) == 1 else a
    right = c.shaped(b, [*b.shape, 1]) if len(b.shape) == 1 else b
    c.same_size(left.shape[-1], right.shape[-2])
    batch = c.joined(left.shape[:-2], right.shape[:-2])
    y = c.matmul(left, right)
    rows = [] if len(a.shape) == 1 else [left.shape[-2]]
    cols = [] if len(b.shape) == 1 else [right.shape[-1]]
    return c.shaped(y, [*batch, *rows, *cols])


@row("Gemm")
def _gemm(c: Call, a: Value, b: Value, bias: Value | None = None) -> Value:
    trans_a, trans_b = bool(c.attr("transA", 0)), bool(c.attr("transB", 0))
    c.same_size(a.shape[0 if trans_a else 1], b.shape[1 if trans_b else 0])
    y = c.matmul(a, b, transpose_a=trans_a, transpose_b=trans_b)
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    y = y if alpha == 1.0 else c.mul(y, c.scalar(alpha, y))
    if bias is None or beta == 0.0:
        return y
    return c.add(y, bias if beta == 1.0 else c.mul(bias, c.scalar(beta, bias)))


# --- einsum: pairwise, each step one batched matmul ---


@row("Einsum")
def _einsum(c: Call, *xs: Value) -> Value:
    inputs, output = _terms(c.attr("equation").replace(" ", ""), [len(x.shape) for x in xs])
    sizes: dict[str, Any] = {}
    for labels, x in zip(inputs, xs, strict=True):
        for label, size in zip(labels, x.shape, strict=True):
            sizes[label] = c.joined_size(sizes.get(label, 1), size)
    operands = [_diagonals(c, x, labels) for x, labels in zip(xs, inputs, strict=True)]
    while len(operands) > 1:
        (a, b), rest = operands[:2], operands[2:]
        needed = set(output).union(*(labels for _, labels in rest))
        operands = [_contract(c, a, b, needed, sizes), *rest]
    x, labels = operands[0]
    x, labels = _summed(c, x, labels, set(output))
    x = c.permuted(x, [labels.index(label) for label in output])
    return c.expanded(x, [sizes[label] for label in output])


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Labels of each operand and the output; an ellipsis becomes labels of its own, aligned at the right."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    widest = max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)
    spare = "".join(chr(0x100 + i) for i in range(widest))
    inputs = [t.replace("...", spare[widest - w :]) for t, w in zip(terms, widths, strict=True)]
    if arrow:
        return inputs, right.replace("...", spare)
    letters = left.replace("...", "").replace(",", "")
    return inputs, spare + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))


def _diagonals(c: Call, x: Value, labels: str) -> tuple[Value, str]:
    """A label that occurs twice on one operand takes the diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size = x.shape[first]
            shape = [size if i in (first, second) else 1 for i in range(len(labels))]
            line = [1 if i == second else s for i, s in enumerate(shape)]
            column = [1 if i == first else s for i, s in enumerate(shape)]
            index = c.iota(size=size, dtype="i64")
            keep = c.eq(c.shaped(index, line), c.shaped(index, column))
            x = c.sum(c.where(keep, x, c.scalar(0, x)), axes=[second], keepdims=False)
            labels = labels[:second] + labels[second + 1 :]
    return x, labels


def _summed(c: Call, x: Value, labels: str, keep: set[str]) -> tuple[Value, str]:
    drop = [i for i, label in enumerate(labels) if label not in keep]
    if drop:
        x = c.sum(x, axes=drop, keepdims=False)
    return x, "".join(label for label in labels if label in keep)


def _contract(c: Call, a: tuple, b: tuple, needed: set[str], sizes: dict[str, Any]) -> tuple[Value, str]:
    (x, x_labels), (y, y_labels) = a, b
    x, x_labels = _summed(c, x, x_labels, needed | set(y_labels))
    y, y_labels = _summed(c, y, y_labels, needed | set(x_labels))
    batch = [label for label in x_labels if label in y_labels and label in needed]
    inner = [label for label in x_labels if label in y_labels and label not in needed]
    rows = [label for label in x_labels if label not in y_labels]
    cols = [label for label in y_labels if label not in x_labels]

    def extents(labels: list[str]) -> list[Any]:
        return [sizes[label] for label in labels]

    def arranged(v: Value, labels: str, order: list[str]) -> Value:
        v = c.permuted(v, [labels.index(label) for label in order])
        return c.expanded(v, extents(order))

    left = arranged(x, x_labels, batch + rows + inner)
    right = arranged(y, y_labels, batch + inner + cols)
    left = c.shaped(left, [*extents(batch), product(extents(rows)), product(extents(inner))])
    right = c.shaped(right, [*extents(batch), product(extents(inner)), product(extents(cols))])
    out = c.matmul(left, right)
    return c.shaped(out, extents(batch) + extents(rows) + extents(cols)), "".join(batch + rows + cols)


# --- quantisation ---


def _along(c: Call, v: Value, x: Value, axis: int) -> Value:
    """A scale or zero point, one for each slice of `x` along `axis`, so that it broadcasts."""
    if len(v.shape) == 0 or product(v.shape) == 1:
        return c.shaped(v, [])
    if len(v.shape) > 1:
        return v
    return c.shaped(v, [v.shape[0]] + [1] * (len(x.shape) - 1 - axis))


def _blocked(c: Call, v: Value, x: Value, axis: int, block: int) -> Value:
    """A value for each block of `block` along `axis`, one for each element."""
    grown = c.shaped(v, [*v.shape[: axis + 1], 1, *v.shape[axis + 1 :]])
    grown = c.expanded(grown, [*v.shape[: axis + 1], block, *v.shape[axis + 1 :]])
    repeated = c.shaped(grown, [*v.shape[:axis], v.shape[axis] * block, *v.shape[axis + 1 :]])
    return c.sliced(repeated, axis, 0, x.shape[axis])


def _quantisation(c: Call, x: Value, scale: Value, zero: Value | None) -> tuple[Value, Value | None]:
    axis = c.axis(x, c.attr("axis", 1)) if len(scale.shape) else 0
    block = c.attr("block_size", 0)

    def spread(v: Value) -> Value:
        return _blocked(c, v, x, axis, block) if block else _along(c, v, x, axis)

    return spread(scale), None if zero is None else spread(zero)


def _range(dtype: str) -> tuple[float, float]:
    """The least and largest number of an integer type."""
    info = DTYPES[dtype]
    half = 1 << (info.bits - 1)
    return (-half, half - 1) if info.kind == "i" else (0, 2 * half - 1)


def quantize(c: Call, x: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """x / scale + zero as `dtype`, saturated; for integers rounded to even before zero is added."""
    y = c.div(x, c.to(scale, x.dtype))
    if DTYPES[dtype].is_float:
        y = y if zero is None else c.add(y, c.to(zero, y.dtype))
        return saturated(c, y, dtype) if c.attr("saturate", 1) else c.to(y, dtype)
    low, high = _range(dtype)
    y = c.round(y)
    y = y if zero is None else c.add(y, c.to(zero, y.dtype))
    return c.to(c.to(c.clamp(y, float(low), float(high)), "i32"), dtype)


def dequantize(c: Call, x: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """(x - zero) * scale as `dtype`, subtracted exactly in i32 where `x` is of integers."""
    exact = "f32" if DTYPES[x.dtype].is_float else "i32"
    wide = c.to(x, exact)
    wide = wide if zero is None else c.sub(wide, c.to(zero, exact))
    return c.to(c.mul(c.to(wide, scale.dtype), scale), dtype)


@row("QuantizeLinear")
@row("QuantizeLinear", domain="com.microsoft")
def _quantize_linear(c: Call, x: Value, scale: Value, zero: Value | None = None) -> Value:
    number = c.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else c.mlc_dtype(number) if number else "u8"
    precision = c.attr("precision", 0)
    work = c.mlc_dtype(precision) if precision else x.dtype if DTYPES[x.dtype].is_float else scale.dtype
    scale, zero = _quantisation(c, x, scale, zero)
    return quantize(c, c.to(x, work), scale, zero, dtype)


@row("DequantizeLinear")
@row("DequantizeLinear", domain="com.microsoft")
def _dequantize_linear(c: Call, x: Value, scale: Value, zero: Value | None = None) -> Value:
    number = c.attr("output_dtype", 0)
    dtype = c.mlc_dtype(number) if number else scale.dtype
    scale, zero = _quantisation(c, x, scale, zero)
    return dequantize(c, x, scale, zero, dtype)


@row("MatMulInteger")
def _matmul_integer(c: Call, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None) -> Value:
    return multiply(c, centred(c, a, a_zero, -2), centred(c, b, b_zero, -1))


def centred(c: Call, x: Value, zero: Value | None, axis: int) -> Value:
    """x - zero in i32; a vector of zero points runs along `axis`."""
    wide = c.to(x, "i32")
    if zero is None:
        return wide
    zero = c.to(zero, "i32")
    if len(zero.shape) == 1 and product(zero.shape) != 1:
        zero = c.shaped(zero, [*zero.shape, 1] if axis == -2 else zero.shape)
    elif len(zero.shape) <= 1:
        zero = c.shaped(zero, [])
    return c.sub(wide, zero)


@row("QLinearMatMul")
def _qlinear_matmul(
    c: Call,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    product_ = multiply(c, centred(c, a, a_zero, -2), centred(c, b, b_zero, -1))
    scale = c.div(c.mul(c.to(a_scale, "f32"), c.to(b_scale, "f32")), c.to(y_scale, "f32"))
    return _requantized(c, product_, scale, y_zero)


def _requantized(c: Call, x: Value, scale: Value, zero: Value) -> Value:
    scale = c.shaped(scale, []) if product(scale.shape) == 1 else scale
    zero_ = c.shaped(zero, []) if product(zero.shape) == 1 else zero
    low, high = _range(zero.dtype)
    y = c.add(c.round(c.mul(c.to(x, "f32"), scale)), c.to(zero_, "f32"))
    return c.to(c.to(c.clamp(y, float(low), float(high)), "i32"), zero.dtype)


@row("ConvInteger")
def _conv_integer(c: Call, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None) -> Value:
    return _integer_conv(c, x, w, x_zero, w_zero)


def _integer_conv(c: Call, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    window = window_of(c, list(x.shape[2:]), [int(k) for k in w.shape[2:]])
    if w_zero is not None and product(w_zero.shape) != 1:
        w_zero = c.shaped(w_zero, [w.shape[0]] + [1] * (len(w.shape) - 1))
        weight = c.sub(c.to(w, "i32"), c.to(w_zero, "i32"))
    else:
        weight = centred(c, w, w_zero, -1)
    # f64 holds every sum of i8 products that can occur; integer convolution is not an op.
    data = centred(c, x, x_zero, -1)
    y = convolve(c, c.to(data, "f64"), c.to(weight, "f64"), None, window, c.attr("group", 1))
    return c.to(y, "i32")


@row("QLinearConv")
def _qlinear_conv(
    c: Call,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
) -> Value:
    y = _integer_conv(c, x, w, x_zero, w_zero)
    per_channel = [w.shape[0]] + [1] * (len(x.shape) - 2)
    if bias is not None:
        y = c.add(y, c.shaped(bias, per_channel))
    w_scale = c.shaped(w_scale, per_channel if product(w_scale.shape) != 1 else [])
    scale = c.div(c.mul(c.shaped(x_scale, []), w_scale), c.shaped(y_scale, []))
    return _requantized(c, y, scale, y_zero)


@row("DynamicQuantizeLinear")
def dynamic_quantize(c: Call, x: Value) -> Any:
    """`x` as u8 over its own range, with the scale and zero point of that."""
    axes, zero = list(range(len(x.shape))), c.scalar(0, x)
    high = c.maximum(c.max(x, axes=axes, keepdims=False), zero)
    low = c.minimum(c.min(x, axes=axes, keepdims=False), zero)
    scale = c.div(c.sub(high, low), c.scalar(255, x))
    # All zeros: any scale does; 0 / 0 must not reach the zero point.
    safe = c.where(c.eq(scale, zero), c.scalar(1, x), scale)
    point = c.to(c.to(c.round(c.clamp(c.div(c.neg(low), safe), 0.0, 255.0)), "i32"), "u8")
    return quantize(c, x, safe, point, "u8"), scale, point


@row("MatMulNBits", domain="com.microsoft")
def _matmul_nbits(c: Call, a: Value, packed: Known, scales: Known, zeros: Known | None = None) -> Value:
    """Weights of 4 or 8 bits in blocks along K, unpacked here to the dtype of the scales."""
    bits, block, k, n = c.attr("bits", 4), c.attr("block_size"), c.attr("K"), c.attr("N")
    if bits not in (4, 8):
        raise c.unsupported(f"weights of {bits} bits")

    def unpacked(data: np.ndarray) -> np.ndarray:
        return data if bits == 8 else np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)

    blocks = -(-k // block)
    weight = unpacked(packed.array.reshape(n, blocks, -1))[..., :block].astype(np.float32)
    offset: Any = float(1 << (bits - 1))
    if zeros is not None:
        offset = unpacked(zeros.array.reshape(n, -1))[:, :blocks, None] if zeros.dtype == np.uint8 else zeros.array
        offset = np.asarray(offset, np.float32).reshape(n, blocks, 1)
    weight = (weight - offset) * scales.array.astype(np.float32).reshape(n, blocks, 1)
    dense = weight.reshape(n, -1)[:, :k].astype(DTYPES[a.dtype].numpy)
    return multiply(c, a, c.transpose(c.const(dense), perm=[1, 0]))
