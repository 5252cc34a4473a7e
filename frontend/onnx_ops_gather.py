"""ONNX gathers, scatters and selections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("Gather")
def _gather(c: Call, x: Value, indices: Value) -> Value:
    return c.gather(x, indices, axis=c.axis(x, c.attr("axis", 0)))


@row("GatherElements")
def _gather_elements(c: Call, x: Value, indices: Value) -> Value:
    return c.gather_elements(x, c.to(indices, "i64"), axis=c.axis(x, c.attr("axis", 0)))


@row("GatherND")
def _gather_nd(c: Call, x: Value, indices: Value) -> Value:
    return c.gather_nd(x, c.to(indices, "i64"), batch_dims=c.attr("batch_dims", 0))


@row("Scatter", "ScatterElements")
def _scatter_elements(c: Call, x: Value, indices: Value, updates: Value) -> Value:
    axis, reduce = c.axis(x, c.attr("axis", 0)), c.attr("reduction", "none")
    return c.scatter_elements(x, c.to(indices, "i64"), updates, axis=axis, reduce=reduce)


@row("ScatterND")
def _scatter_nd(c: Call, x: Value, indices: Value, updates: Value) -> Value:
    return c.scatter_nd(x, c.to(indices, "i64"), updates, reduce=c.attr("reduction", "none"))


@row("TensorScatter")
def _tensor_scatter(c: Call, past: Value, update: Value, write_indices: Value | None = None) -> Value:
    """Writes a piece of a cache at each batch item's own position, wrapping round if `mode` is circular."""
    axis, size = c.axis(past, c.attr("axis", -2)), len(past.shape)
    length = update.shape[axis]
    step = c.shaped(c.iota(size=length, dtype="i64"), [length if i == axis else 1 for i in range(size)])
    if write_indices is not None:
        step = c.add(step, c.shaped(c.to(write_indices, "i64"), [past.shape[0]] + [1] * (size - 1)))
    if c.attr("mode", "linear") == "circular":
        extent = c.importer.materialize(Known.of(past.shape[axis], np.int64), "extent")
        step = c.remainder(step, extent)
    return c.scatter_elements(past, c.expanded(step, update.shape), update, axis=axis, reduce="none")


@row("Where")
def _where(c: Call, condition: Value, a: Value, b: Value) -> Value:
    return c.where(condition, a, b)


@row("TopK")
def _top_k_attribute(c: Call, x: Value) -> Any:
    return c.topk(x, k=c.attr("k"), axis=c.axis(x, c.attr("axis", -1)), largest=True, sorted=True)


@row("TopK", since=10)
def _top_k(c: Call, x: Value, k: Known) -> Any:
    count = k.array.reshape(-1)[0]
    axis = c.axis(x, c.attr("axis", -1))
    count = c.sizes.smaller_of(count, x.shape[axis]) if k.is_symbolic else int(count)
    return c.topk(x, k=count, axis=axis, largest=bool(c.attr("largest", 1)), sorted=True)


@row("MaxUnpool")
def _max_unpool(c: Call, x: Value, indices: Value, shape: Known | None = None) -> Value:
    kernel, rank = c.attr("kernel_shape"), len(c.attr("kernel_shape"))
    strides, pads = c.attr("strides") or [1] * rank, c.attr("pads") or [0] * 2 * rank
    # Indices count over the whole tensor, batch and channel included, of the size that the kernel alone implies.
    implied = [(size - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank] for i, size in enumerate(x.shape[2:])]
    base = [*x.shape[:2], *implied]
    out = base if shape is None else shape.items()
    zeros = c.full(shape=[product(base)], value=0, dtype=x.dtype)
    flat = c.scatter_elements(
        zeros, c.shaped(indices, [product(x.shape)]), c.shaped(x, [product(x.shape)]), axis=0, reduce="none"
    )
    y = c.shaped(flat, base)
    if list(base) == list(out):
        return y
    high = [a - b for a, b in zip(out, base, strict=True)]
    return c.pad(y, low=[0] * len(out), high=high, mode="constant", value=0.0)
