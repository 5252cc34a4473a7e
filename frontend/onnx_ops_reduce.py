"""ONNX reductions, argmax and cumulative ops, and the softmax family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


def _axes(c: Call, x: Value, axes: Known | None) -> list[int] | None:
    """The axes to reduce, from the input (newer operator sets) or the attribute; None: leave `x` as it is."""
    given = c.attr("axes") if axes is None else axes.items()
    if not given:
        return None if c.attr("noop_with_empty_axes", 0) else list(range(len(x.shape)))
    return sorted(c.axes(x, given))


def _reduced(c: Call, op: str, x: Value, axes: list[int]) -> Value:
    if op in ("max", "min") and x.dtype == "bool":
        op = "any" if op == "max" else "all"
    return c.importer.emit(op, x, axes=axes, keepdims=bool(c.attr("keepdims", 1)))


@row("ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin")
def _reduce(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    return x if over is None else _reduced(c, c.node.op.removeprefix("Reduce").lower(), x, over)


@row("ReduceL1")
def _reduce_l1(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    return c.abs(x) if over is None else _reduced(c, "sum", c.abs(x), over)


@row("ReduceSumSquare")
def _reduce_sum_square(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    return c.mul(x, x) if over is None else _reduced(c, "sum", c.mul(x, x), over)


@row("ReduceL2")
def _reduce_l2(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    if over is None:
        return c.abs(x)
    y = x if DTYPES[x.dtype].is_float else c.to(x, "f64")
    return c.to(c.sqrt(_reduced(c, "sum", c.mul(y, y), over)), x.dtype)


@row("ReduceLogSum")
def _reduce_log_sum(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    return c.log(x if over is None else _reduced(c, "sum", x, over))


@row("ReduceLogSumExp")
def _reduce_log_sum_exp(c: Call, x: Value, axes: Known | None = None) -> Value:
    over = _axes(c, x, axes)
    if over is None:
        return x
    y = x if DTYPES[x.dtype].is_float else c.to(x, "f64")
    top = c.max(y, axes=over, keepdims=True)
    # An infinite maximum would give inf - inf; the sum is then that maximum anyway.
    shift = c.where(c.isinf(top), c.scalar(0, y), top)
    total = c.add(c.log(c.sum(c.exp(c.sub(y, shift)), axes=over, keepdims=True)), shift)
    if not c.attr("keepdims", 1):
        total = c.shaped(total, [size for i, size in enumerate(x.shape) if i not in over])
    return c.to(total, x.dtype)


@row("ArgMax", "ArgMin")
def _arg_extreme(c: Call, x: Value) -> Value:
    axis, op = c.axis(x, c.attr("axis", 0)), c.node.op.lower()
    keepdims = bool(c.attr("keepdims", 1))
    if not c.attr("select_last_index", 0):
        return c.importer.emit(op, x, axis=axis, keepdims=keepdims)
    back = c.importer.emit(op, c.flip(x, axes=[axis]), axis=axis, keepdims=keepdims)
    last = c.importer.materialize(Known.of(x.shape[axis] - 1, np.int64), "last index")
    return c.sub(last, back)


@row("CumSum", "CumProd")
def _cumulative(c: Call, x: Value, axis: Known) -> Value:
    exclusive, reverse = bool(c.attr("exclusive", 0)), bool(c.attr("reverse", 0))
    over = c.axis(x, int(axis.item()))
    return c.importer.emit(c.node.op.lower(), x, axis=over, exclusive=exclusive, reverse=reverse)


# --- softmax and its kin ---


@row("Softmax", "LogSoftmax", since=13)
def _softmax(c: Call, x: Value) -> Value:
    op = "softmax" if c.node.op == "Softmax" else "log_softmax"
    return c.importer.emit(op, x, axis=c.axis(x, c.attr("axis", -1)))


@row("Softmax", "LogSoftmax", "Hardmax")
def _softmax_flattened(c: Call, x: Value) -> Value:
    """Before operator set 13 the axes from `axis` on are one."""
    axis = c.axis(x, c.attr("axis", 1)) if len(x.shape) != c.attr("axis", 1) else len(x.shape)
    if axis == len(x.shape) - 1:
        return _one_axis(c, x, axis)
    flat = c.shaped(x, [product(x.shape[:axis]), product(x.shape[axis:])])
    return c.shaped(_one_axis(c, flat, 1), x.shape)


def _one_axis(c: Call, x: Value, axis: int) -> Value:
    if c.node.op == "Hardmax":
        return _hardmax_along(c, x, axis)
    return c.importer.emit("softmax" if c.node.op == "Softmax" else "log_softmax", x, axis=axis)


@row("Hardmax", since=13)
def _hardmax(c: Call, x: Value) -> Value:
    return _hardmax_along(c, x, c.axis(x, c.attr("axis", -1)))


def _hardmax_along(c: Call, x: Value, axis: int) -> Value:
    index = c.argmax(x, axis=axis, keepdims=False)
    return c.to(c.one_hot(index, axis, x.shape[axis]), x.dtype)


# --- losses have function bodies; what is left is counting ---


@row("Size")
def _size(c: Call, x: Any) -> Known:
    return Known.of(product(x.shape), np.int64)
