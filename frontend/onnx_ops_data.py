"""ONNX rows whose results are as long as data say."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlc.dialects import dims
from mlc.frontend import data_sizes
from mlc.frontend.graph import Value
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, product


@row("NonZero")
def _nonzero(c: Call, x: Value) -> Value:
    wanted = c.importer.data_size(c.node.outputs[0], product(x.shape))
    return c.transpose(data_sizes.nonzero(c.importer.g, x, wanted), perm=[1, 0])


@row("Compress")
def _compress(c: Call, x: Value, condition: Any) -> Value:
    axis = c.attr("axis")
    flat = c.shaped(x, [product(x.shape)]) if axis is None else x
    at = 0 if axis is None else c.axis(x, axis)
    if isinstance(condition, Known):
        return c.gather(flat, c.const(np.flatnonzero(condition.array).astype(np.int64)), axis=at)
    if condition.shape[0] != flat.shape[at]:  # a shorter condition leaves the rest out
        flat = c.sliced(flat, at, 0, c.sizes.smaller_of(condition.shape[0], flat.shape[at]))
    wanted = c.importer.data_size(c.node.outputs[0], flat.shape[at])
    return data_sizes.compress(c.importer.g, flat, condition, wanted, at)


@row("Unique")
def _unique(c: Call, x: Value) -> list[Any]:
    axis = c.attr("axis")
    shape = list(x.shape)
    if axis is None:
        rows = c.shaped(x, [product(shape)])
    else:
        at = c.axis(x, axis)
        order = [at, *(i for i in range(len(shape)) if i != at)]
        moved = [shape[i] for i in order]
        if not isinstance(product(moved[1:]), int):
            raise c.unsupported(f"unique slices of {moved[1:]} elements; their number must be known")
        rows = c.permuted(x, order)
        rows = c.shaped(rows, moved[:1] if product(moved[1:]) == 1 else [moved[0], product(moved[1:])])
    wanted = c.importer.data_size(c.node.outputs[0], rows.shape[0])
    found = data_sizes.unique(c.importer.g, rows, wanted, is_sorted=bool(c.attr("sorted", 1)))
    values = found.values
    if axis is not None:
        back = [order.index(i) for i in range(len(shape))]
        values = c.permuted(c.shaped(values, [wanted.size, *moved[1:]]), back)
    return [values, found.first, found.inverse, found.counts]


@row("NonMaxSuppression")
def _non_max_suppression(
    c: Call, boxes: Value, scores: Value, most: Any = None, iou: Value | None = None, least: Value | None = None
) -> Value:
    if most is None:
        most = Known.of(np.asarray(0))
    batches, classes, count = scores.shape
    if isinstance(most, Known) and not most.is_symbolic:
        count = c.sizes.smaller_of(max(int(most.item()), 0), count)
    limit = c.to(c.shaped(c.importer.materialize(most, "max_output_boxes_per_class"), []), "i64")
    iou = c.scalar(0.0, boxes) if iou is None else c.shaped(c.to(iou, boxes.dtype), [])
    least = c.scalar(-np.inf, boxes) if least is None else c.shaped(c.to(least, boxes.dtype), [])
    order = c.sort(scores, axis=2, descending=True)[1]
    wanted = c.importer.data_size(c.node.outputs[0], dims.product([batches, classes, count]))
    found, number = c.non_max_suppression(
        boxes, scores, order, limit, iou, least, size=wanted.size, centered=bool(c.attr("center_point_box", 0))
    )
    data_sizes.read_size(c.importer.g, number, wanted)
    return found
