"""ONNX DeformConv: a convolution whose taps read at offsets that are data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_conv import Window, window_of

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("DeformConv")
def _deform_conv(
    c: Call, x: Value, w: Value, offset: Value, bias: Value | None = None, mask: Value | None = None
) -> Value:
    """All taps of an offset group are one bilinear sampling; a product with the weights follows."""
    if len(x.shape) != 4 or not all(isinstance(size, int) for size in (*x.shape[1:], *offset.shape[2:])):
        raise c.unsupported(f"data of shape {list(x.shape)}: two spatial dimensions of known sizes are needed")
    window = window_of(c, list(x.shape[2:]), [int(k) for k in w.shape[2:]])
    batch, channels, taps = x.shape[0], x.shape[1], int(np.prod(window.kernel))
    offset_groups, groups = c.attr("offset_group", 1), c.attr("group", 1)
    rows, cols = offset.shape[2:]
    columns = []
    for group in range(offset_groups):
        part = c.sliced(x, 1, group * channels // offset_groups, (group + 1) * channels // offset_groups)
        moved = c.sliced(offset, 1, group * taps * 2, (group + 1) * taps * 2)
        grid = _grid(c, window, moved, x.shape[2:], batch)
        seen = c.grid_sample(part, grid, mode="linear", padding_mode="zeros", align_corners=False)
        seen = c.shaped(seen, [batch, part.shape[1], taps, rows * cols])
        if mask is not None:
            weight = c.sliced(mask, 1, group * taps, (group + 1) * taps)
            seen = c.mul(seen, c.shaped(weight, [batch, 1, taps, rows * cols]))
        columns.append(seen)
    column = columns[0] if len(columns) == 1 else c.concat(*columns, axis=1)
    column = c.shaped(column, [batch, groups, channels // groups * taps, rows * cols])
    kernel = c.shaped(w, [groups, w.shape[0] // groups, channels // groups * taps])
    y = c.shaped(c.matmul(kernel, column), [batch, w.shape[0], rows, cols])
    return y if bias is None else c.add(y, c.shaped(bias, [w.shape[0], 1, 1]))


def _grid(c: Call, window: Window, offset: Value, sizes: Any, batch: Any) -> Value:
    """[N, taps * rows, cols, 2] positions between -1 and 1, x before y, of taps moved by offsets [N, taps * 2, ...]."""
    taps, (rows, cols) = int(np.prod(window.kernel)), offset.shape[2:]
    starts = [np.arange(n) * s - p for n, s, p in zip((rows, cols), window.strides, window.low, strict=True)]
    reaches = [np.arange(k) * d for k, d in zip(window.kernel, window.dilations, strict=True)]
    start, tap = np.meshgrid(*starts, indexing="ij"), np.meshgrid(*reaches, indexing="ij")
    moved = c.shaped(offset, [batch, taps, 2, rows, cols])
    places = []
    for axis in (1, 0):
        base = tap[axis].reshape(taps, 1, 1) + start[axis][None]
        at = c.shaped(c.sliced(moved, 2, axis, axis + 1), [batch, taps, rows, cols])
        at = c.add(at, c.const(base.astype(DTYPES[offset.dtype].numpy)))
        scaled = c.add(c.mul(at, c.scalar(2 / sizes[axis], at)), c.scalar(1 / sizes[axis] - 1, at))
        places.append(c.shaped(scaled, [batch, taps * rows, cols, 1]))
    return c.concat(*places, axis=3)
