"""ONNX ops that move or make data without looking at it: shapes, joins, pieces, padding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects import types
from mlc.frontend.onnx_fold import shape_of
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, is_linear, product, resolve_reshape

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("Shape")
def _shape(c: Call, x: Any) -> Known:
    return shape_of(c.node, tuple(x.shape))


@row("Reshape")
def _reshape(c: Call, x: Value, shape: Known | None = None) -> Value:
    target = c.attr("shape") if shape is None else shape.items()
    return c.shaped(x, resolve_reshape(x.shape, list(target), zero_copies=not c.attr("allowzero", 0)))


@row("Flatten")
def _flatten(c: Call, x: Value) -> Value:
    axis = c.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return c.shaped(x, [product(x.shape[:axis]), product(x.shape[axis:])])


@row("Squeeze")
def _squeeze(c: Call, x: Value, axes: Known | None = None) -> Value:
    given = c.attr("axes") if axes is None else axes.items()
    if given is None:
        drop = [i for i, size in enumerate(x.shape) if isinstance(size, int) and size == 1]
        c.importer.unsqueezed += [size for size in x.shape if not isinstance(size, int)]
    else:
        drop = c.axes(x, given)
        for axis in drop:
            if is_linear(x.shape[axis]):
                c.same_size(x.shape[axis], 1)
            else:  # such as a number of frames, which is 1 for the lengths that the model is meant for
                x = c.sliced(x, axis, 0, 1)
    return c.shaped(x, [size for i, size in enumerate(x.shape) if i not in drop])


@row("Unsqueeze")
def _unsqueeze(c: Call, x: Value, axes: Known | None = None) -> Value:
    given = c.attr("axes") if axes is None else axes.items()
    rank = len(x.shape) + len(given)
    new = {int(axis) % rank for axis in given}
    rest = iter(x.shape)
    return c.shaped(x, [1 if i in new else next(rest) for i in range(rank)])


@row("Transpose")
def _transpose(c: Call, x: Value) -> Value:
    return c.permuted(x, c.attr("perm") or list(range(len(x.shape)))[::-1])


@row("Expand")
def _expand(c: Call, x: Value, shape: Known) -> Value:
    return c.expanded(x, c.joined(x.shape, shape.items()))


@row("Tile")
def _tile(c: Call, x: Value, repeats: Known) -> Value:
    times = repeats.items()
    grown = [size for pair in zip(times, x.shape, strict=True) for size in pair]
    spread = c.expanded(c.shaped(x, [v for size in x.shape for v in (1, size)]), grown)
    return c.shaped(spread, [a * b for a, b in zip(times, x.shape, strict=True)])


@row("Concat")
def _concat(c: Call, *xs: Value) -> Value:
    axis = c.axis(xs[0], c.attr("axis", 1))
    for x in xs[1:]:
        for i, (a, b) in enumerate(zip(xs[0].shape, x.shape, strict=True)):
            if i != axis:
                c.same_size(a, b)
    return xs[0] if len(xs) == 1 else c.concat(*xs, axis=axis)


@row("Split")
def _split(c: Call, x: Value, split: Known | None = None) -> list[Value]:
    axis = c.axis(x, c.attr("axis", 0))
    parts = c.attr("split") if split is None else split.items()
    if parts is None:
        count = len(c.node.outputs)
        chunk = (x.shape[axis] + count - 1) // count
        parts = [chunk] * (count - 1) + [x.shape[axis] - chunk * (count - 1)]
    out, start = [], 0
    for part in parts:
        out.append(c.sliced(x, axis, start, start + part))
        start = start + part
    return out


@row("Slice")
def _slice_attributes(c: Call, x: Value) -> Value:
    return _sliced(c, x, c.attr("starts"), c.attr("ends"), c.attr("axes"), None)


@row("Slice", since=10)
def _slice(
    c: Call, x: Value, starts: Known, ends: Known, axes: Known | None = None, steps: Known | None = None
) -> Value:
    return _sliced(c, x, starts.items(), ends.items(), axes and axes.items(), steps and steps.items())


def _sliced(c: Call, x: Value, starts: list, ends: list, axes: list | None, steps: list | None) -> Value:
    rank = len(x.shape)
    first: list[Any] = [0] * rank
    limit, step = list(x.shape), [1] * rank
    for i, axis in enumerate(axes or range(len(starts))):
        at = c.axis(x, axis)
        step[at] = int(steps[i]) if steps else 1
        first[at], limit[at], _ = c.sizes.slice_bounds(x.shape[at], starts[i], ends[i], step[at])
    if first == [0] * rank and limit == list(x.shape) and step == [1] * rank:
        return x
    return c.slice(x, starts=first, limits=limit, steps=step)


# --- padding ---

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@row("Pad")
def _pad_attributes(c: Call, x: Value) -> Value:
    return _padded(c, x, c.attr("pads"), c.attr("value", 0.0))


@row("Pad", since=11)
def _pad(c: Call, x: Value, pads: Known, value: Any = None, axes: Known | None = None) -> Value:
    given = pads.items()
    if axes is not None:
        half, full = len(given) // 2, [0] * (2 * len(x.shape))
        for i, axis in enumerate(c.axes(x, axes.items())):
            full[axis], full[axis + len(x.shape)] = given[i], given[i + half]
        given = full
    if value is not None and not isinstance(value, Known):
        return _padded_with(c, x, given, value)
    return _padded(c, x, given, 0.0 if value is None else value.array.reshape(-1)[0].item())


def _padded(c: Call, x: Value, pads: list, value: float) -> Value:
    rank = len(x.shape)
    mode = _PAD_MODES[c.attr("mode", "constant")]
    low, high = pads[:rank], pads[rank:]
    x = _cropped(c, x, low, high)
    low, high = [_not_negative(p) for p in low], [_not_negative(p) for p in high]
    if not any(low) and not any(high):
        return x
    if x.dtype == "bool":
        return c.to(c.pad(c.to(x, "u8"), low=low, high=high, mode=mode, value=float(value)), "bool")
    return c.pad(x, low=low, high=high, mode=mode, value=float(value))


def _not_negative(size: Any) -> Any:
    return max(size, 0) if isinstance(size, int) else size


def _cropped(c: Call, x: Value, low: list, high: list) -> Value:
    """Negative padding takes away."""
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        start = -a if isinstance(a, int) and a < 0 else 0
        stop = x.shape[axis] + b if isinstance(b, int) and b < 0 else x.shape[axis]
        x = c.sliced(x, axis, start, stop)
    return x


def _padded_with(c: Call, x: Value, pads: list, value: Value) -> Value:
    """Constant padding with a value that is computed: pad a mask beside the data."""
    inside = _padded(c, c.full(shape=list(x.shape), value=1.0, dtype="u8"), pads, 0.0)
    y = _padded(c, x, pads, 0.0)
    return c.where(c.to(inside, "bool"), y, c.shaped(value, []))


# --- sources ---


@row("ConstantOfShape")
def _constant_of_shape(c: Call, shape: Known) -> Value:
    value = c.attr("value", np.zeros(1, np.float32)).reshape(-1)
    dtype = types.dtype_of_numpy(value.dtype)
    number = value[0].item()
    if isinstance(number, int) and abs(number) >= 2**53:
        return c.expanded(c.const(value[0]), shape.items())  # `full` holds its number as a float
    return c.full(shape=shape.items(), value=number, dtype=dtype)


@row("Range")
def _range(c: Call, start: Known, limit: Known, delta: Known) -> Value:
    dtype = types.dtype_of_numpy(start.dtype)
    first, last, step = start.item(), limit.item(), delta.item()
    if all(isinstance(v, int) for v in (first, last, step)):
        return c.iota(size=max(math.ceil((last - first) / step), 0), start=first, step=step, dtype=dtype)
    if isinstance(step, int) and step != 0 and start.dtype.kind in "iu":
        count = _steps(c, first, last, step)
        return c.iota(size=count, start=first, step=step, dtype=dtype)
    if start.is_symbolic or limit.is_symbolic or delta.is_symbolic:
        return _float_range(c, first, last, step, dtype)
    count = max(math.ceil((last - first) / step), 0)
    return c.const((first + np.arange(count) * step).astype(start.dtype))


def _steps(c: Call, first: Any, last: Any, step: int) -> Any:
    distance = last - first if step > 0 else first - last
    return c.sizes.larger_of((distance + abs(step) - 1) // abs(step), 0)


def _float_range(c: Call, first: Any, last: Any, step: Any, dtype: str) -> Value:
    """A float range whose ends are sizes, as `arange(float(n))`: whole steps only."""
    ends = [int(v) if isinstance(v, float) and v == int(v) else getattr(v, "num", None) for v in (first, last)]
    if any(end is None for end in ends) or any(getattr(v, "den", 1) != 1 for v in (first, last)) or step != int(step):
        raise c.unsupported("a float range over sizes in fractional steps")
    count = _steps(c, ends[0], ends[1], int(step))
    return c.to(c.iota(size=count, start=ends[0], step=int(step), dtype="i64"), dtype)


@row("OneHot")
def _one_hot(c: Call, indices: Value, depth: Known, values: Value) -> Value:
    size = int(depth.array.reshape(-1)[0]) if not depth.is_symbolic else depth.item()
    index = c.to(indices, "i64")
    extent = c.importer.materialize(Known.of(size, np.int64), "depth")
    index = c.where(c.lt(index, c.scalar(0, "i64")), c.add(index, extent), index)
    rank = len(indices.shape) + 1
    hot = c.one_hot(index, c.attr("axis", -1) % rank, size)
    return c.where(hot, c.shaped(c.sliced(values, 0, 1, 2), []), c.shaped(c.sliced(values, 0, 0, 1), []))


@row("Trilu")
def _trilu(c: Call, x: Value, k: Any = None) -> Value:
    rows, cols = x.shape[-2:]
    line = c.shaped(c.iota(size=rows, dtype="i64"), [rows, 1])
    column = c.iota(size=cols, dtype="i64")
    shift = c.sub(column, line)
    bound = c.scalar(0, "i64") if k is None else c.shaped(c.importer.materialize(k, "k"), [])
    keep = c.ge(shift, bound) if c.attr("upper", 1) else c.le(shift, bound)
    return c.where(keep, x, c.scalar(0, x))


# --- blocks ---


@row("DepthToSpace")
def _depth_to_space(c: Call, x: Value) -> Value:
    n, channels, height, width = x.shape
    block = c.attr("blocksize")
    out = channels // (block * block)
    if c.attr("mode", "DCR") == "DCR":
        y = c.transpose(c.shaped(x, [n, block, block, out, height, width]), perm=[0, 3, 4, 1, 5, 2])
    else:
        y = c.transpose(c.shaped(x, [n, out, block, block, height, width]), perm=[0, 1, 4, 2, 5, 3])
    return c.shaped(y, [n, out, height * block, width * block])


@row("SpaceToDepth")
def _space_to_depth(c: Call, x: Value) -> Value:
    n, channels, height, width = x.shape
    block = c.attr("blocksize")
    y = c.shaped(x, [n, channels, height // block, block, width // block, block])
    y = c.transpose(y, perm=[0, 3, 5, 1, 2, 4] if c.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4])
    return c.shaped(y, [n, channels * block * block, height // block, width // block])


@row("ReverseSequence")
def _reverse_sequence(c: Call, x: Value, lengths: Value) -> Value:
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    return reverse_within(c, x, lengths, time, batch)


def reverse_within(c: Call, x: Value, lengths: Value, time: int, batch: int) -> Value:
    """The first lengths[b] steps of item b turned round, the rest as they are."""
    rank = len(x.shape)

    def along(v: Value, axis: int) -> Value:
        return c.shaped(v, [v.shape[0] if i == axis else 1 for i in range(rank)])

    step = along(c.iota(size=x.shape[time], dtype="i64"), time)
    length = along(c.to(lengths, "i64"), batch)
    back = c.sub(c.sub(length, c.scalar(1, "i64")), step)
    index = c.where(c.lt(step, length), back, step)
    return c.gather_elements(x, c.expanded(index, x.shape), axis=time)
