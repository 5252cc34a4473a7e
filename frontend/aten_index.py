"""ATen rows: reading and writing elements at positions held in tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from mlc.dialects import dims
from mlc.dialects.types import DTYPES
from mlc.frontend.aten_data import wanted_size
from mlc.frontend.aten_reduce import buckets
from mlc.frontend.aten_rows import AtenBuilder, is_tensor, row
from mlc.frontend.data_sizes import compress
from mlc.frontend.report import UnsupportedCaseError

# --- reading ---


@row("aten.embedding")
def embedding(b: AtenBuilder, weight: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    return b.op("gather", weight, indices, axis=0)


@row("aten.index_select")
def index_select(b: AtenBuilder, x: Any, dim: int, index: Any) -> Any:
    index = index if index.shape else b.reshape(index, [1])
    return b.op("gather", x, index, axis=b.axis(x, dim)) if x.shape else x


@row("aten.take")
def take(b: AtenBuilder, x: Any, index: Any) -> Any:
    return b.op("gather", b.reshape(x, [dims.product(x.shape)]), index, axis=0)


@row("aten.gather")
def gather(b: AtenBuilder, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    return b.op("gather_elements", x, index, axis=b.axis(x, dim)) if x.shape else b.expand(x, list(index.shape))


@row("aten.take_along_dim")
def take_along_dim(b: AtenBuilder, x: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return take(b, x, b.reshape(indices, [dims.product(indices.shape)]))
    axis = b.axis(x, dim)
    lead = [1 if i == axis else size for i, size in enumerate(x.shape)]
    wanted = [*lead[:axis], indices.shape[axis], *lead[axis + 1 :]]
    return b.op("gather_elements", x, _broadcast(b, indices, wanted), axis=axis)


def _broadcast(b: AtenBuilder, x: Any, shape: list[Any]) -> Any:
    return b.expand(x, [a if isinstance(w, int) and w == 1 else w for a, w in zip(x.shape, shape, strict=True)])


@row("aten.index", "aten._unsafe_index")
def index(b: AtenBuilder, x: Any, indices: list[Any]) -> Any:
    """x[indices]: None takes a whole dimension, integer tensors broadcast together."""
    masks = [axis for axis, one in enumerate(indices) if one is not None and one.dtype == "bool"]
    if masks:
        return _masked_index(b, x, indices, masks)
    first, grid, adjacent = _grid(b, x, indices)
    if len(grid) == 1:
        return b.op("gather", x, grid[0], axis=first)
    moved, axes = _indexed_first(b, x, indices)
    flat = b.reshape(moved, [dims.product(moved.shape[: len(axes)]), *moved.shape[len(axes) :]])
    picked = b.op("gather", flat, _flat_position(b, grid, [x.shape[axis] for axis in axes]), axis=0)
    rank = len(picked.shape) - (len(x.shape) - len(axes))
    # The indexed dimensions stand where the first was if they were neighbours, in front otherwise.
    if not adjacent or first == 0:
        return picked
    order = list(range(rank, rank + first)) + list(range(rank)) + list(range(rank + first, len(picked.shape)))
    return b.transpose(picked, order)


def _masked_index(b: AtenBuilder, x: Any, indices: list[Any], masks: list[int]) -> Any:
    """x[:, mask]: what the mask picks along the dimensions that it covers."""
    if any(one is not None for axis, one in enumerate(indices) if axis != masks[0]):
        raise UnsupportedCaseError("a mask beside other indices; index twice, or combine masks into one")
    lead, mask = masks[0], indices[masks[0]]
    return compress(b.graph, x, mask, wanted_size(b, b.out_shape[lead], dims.product(mask.shape)), lead)


def _grid(b: AtenBuilder, x: Any, indices: list[Any]) -> tuple[int, list[Any], bool]:
    """(first indexed axis, the integer tensors as one broadcast shape, whether the axes are neighbours)."""
    axes = [axis for axis, one in enumerate(indices) if one is not None]
    if not axes:
        raise UnsupportedCaseError("indexing without an index")
    tensors = [indices[axis] for axis in axes]
    if any(one.dtype == "bool" for one in tensors):
        raise UnsupportedCaseError("a mask as an index: the result's size depends on data; use where or masked_fill")
    tensors = [b.cast(one, "i64") for one in tensors]
    if len(tensors) > 1:
        rank = max(len(one.shape) for one in tensors)
        shape = [1] * rank
        for one in tensors:
            for place, size in enumerate(one.shape, rank - len(one.shape)):
                if not (isinstance(size, int) and size == 1):
                    shape[place] = size
        tensors = [b.expand(one, shape) for one in tensors]
    return axes[0], tensors, axes == list(range(axes[0], axes[0] + len(axes)))


def _indexed_first(b: AtenBuilder, x: Any, indices: list[Any]) -> tuple[Any, list[int]]:
    """`x` with the indexed dimensions in front, and which they were."""
    axes = [axis for axis, one in enumerate(indices) if one is not None]
    return b.transpose(x, axes + [axis for axis in range(len(x.shape)) if axis not in axes]), axes


def _flat_position(b: AtenBuilder, grid: list[Any], sizes: list[Any]) -> Any:
    """Row-major position from one index a dimension; negative ones count from the end."""
    position = None
    for one, size in zip(grid, sizes, strict=True):
        wrapped = b.where(b.binary("lt", one, 0, "i64"), b.add(one, size, "i64"), one)
        position = wrapped if position is None else b.add(b.mul(position, size, "i64"), wrapped)
    return position


# --- writing ---


@row("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(b: AtenBuilder, x: Any, indices: list[Any], values: Any, accumulate: bool = False, *args: Any) -> Any:
    masks = [one for one in indices if one is not None]
    values = b.cast(values, x.dtype)
    if len(masks) == 1 and masks[0].dtype == "bool" and not accumulate:
        return _masked_write(b, x, indices, values)
    first, grid, adjacent = _grid(b, x, indices)
    moved, axes = _indexed_first(b, x, indices)
    rest = list(moved.shape[len(axes) :])
    target = list(grid[0].shape) + rest
    # Values come shaped like what x[indices] gives; the written form has the indexed dimensions in front.
    if adjacent and first > 0:
        rank, inner = len(grid[0].shape), list(x.shape[:first])
        values = b.expand(values, inner + list(grid[0].shape) + list(x.shape[first + len(axes) :]))
        order = list(range(first, first + rank)) + list(range(first)) + list(range(first + rank, len(values.shape)))
        values = b.transpose(values, order)
    else:
        values = b.expand(values, target)
    at = b.concat([b.unsqueeze(one, -1) for one in grid], len(grid[0].shape))
    written = b.op("scatter_nd", moved, at, values, reduce="add" if accumulate else "none")
    perm = axes + [axis for axis in range(len(x.shape)) if axis not in axes]
    return b.transpose(written, [perm.index(axis) for axis in range(len(perm))])


def _masked_write(b: AtenBuilder, x: Any, indices: list[Any], values: Any) -> Any:
    """x[mask] = value: a choice, when the value does not vary from one true element to the next."""
    lead = next(axis for axis, one in enumerate(indices) if one is not None)
    mask = indices[lead]
    covered = lead + len(mask.shape)
    if values.shape and (len(values.shape) > len(x.shape) - covered and not _is_one(values.shape[0])):
        raise UnsupportedCaseError("x[mask] = values with one value for each true element; use where")
    if len(values.shape) > len(x.shape) - covered:
        values = b.squeeze(values, 0)
    mask = b.reshape(mask, [*mask.shape, *[1] * (len(x.shape) - covered)])
    return b.where(mask, values, x, x.dtype)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


# What the schemas call the reductions.
_REDUCTIONS = {
    None: "none", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min",
    "mean": "mean",
}  # fmt: skip


@row("aten.scatter")
def scatter(b: AtenBuilder, x: Any, dim: int, index: Any, src: Any, reduce: str | None = None) -> Any:
    return _scattered(b, x, dim, index, src, _REDUCTIONS[reduce])


@row("aten.scatter_add")
def scatter_add(b: AtenBuilder, x: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(b, x, dim, index, src, "add")


@row("aten.scatter_reduce")
def scatter_reduce(
    b: AtenBuilder, x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    kind = _REDUCTIONS[reduce]
    if include_self:
        return _scattered(b, x, dim, index, src, kind)
    return _without_self(b, x, kind, lambda into, what, how: _scattered(b, into, dim, index, what, how), src)


def _without_self(b: AtenBuilder, x: Any, kind: str, scatter: Callable[[Any, Any, str], Any], src: Any) -> Any:
    """What is scattered to, from the sources alone; the rest as in `x`. `scatter(into, what, how)` does one."""
    if x.dtype == "bool":
        return b.cast(_without_self(b, b.cast(x, "u8"), kind, scatter, b.cast(src, "u8")), "bool")
    counts = scatter(b.full(x.shape, 0, "i64"), 1, "add")
    touched = b.binary("ne", counts, 0, "i64")
    if kind == "mean":
        wide = "i64" if DTYPES[x.dtype].kind in "iu" else ("f64" if x.dtype == "f64" else "f32")
        total = scatter(b.full(x.shape, 0, wide), b.cast(src, wide) if is_tensor(src) else src, "add")
        divide = "floor_div" if wide == "i64" else "div"
        mean = b.binary(divide, total, b.cast(b.binary("maximum", counts, 1, "i64"), wide), wide)
        return b.where(touched, b.cast(mean, x.dtype), x, x.dtype)
    start = b.expand(b.scalar(_NEUTRAL[kind](x.dtype), x.dtype), list(x.shape))
    return b.where(touched, scatter(start, src, kind), x, x.dtype)


def _least(dtype: str) -> Any:
    return -math.inf if DTYPES[dtype].is_float else int(np.iinfo(DTYPES[dtype].numpy).min)


def _largest(dtype: str) -> Any:
    return math.inf if DTYPES[dtype].is_float else int(np.iinfo(DTYPES[dtype].numpy).max)


_NEUTRAL: dict[str, Callable[[str], Any]] = {"add": lambda _: 0, "mul": lambda _: 1, "max": _least, "min": _largest}


def _scattered(b: AtenBuilder, x: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
    if not x.shape:
        x, index = b.reshape(x, [1]), b.reshape(index, [1])
        src = b.reshape(src, [1]) if is_tensor(src) else src
        return b.reshape(_scattered(b, x, 0, index, src, reduce), [])
    if is_tensor(src) and src.shape:
        for axis, size in enumerate(index.shape):
            src = b.slice(src, axis, 0, size)
    updates = b.expand(b.scalar(src, x.dtype), list(index.shape))
    return b.op("scatter_elements", x, index, updates, axis=b.axis(x, dim), reduce=reduce)


def _lines(b: AtenBuilder, x: Any, dim: int, index: Any) -> tuple[Any, int]:
    """A 1-D index along `dim`, repeated over x's other dimensions; and the axis."""
    axis = b.axis(x, dim)
    index = index if index.shape else b.reshape(index, [1])
    shape = [1] * len(x.shape)
    shape[axis] = index.shape[0]
    full = list(x.shape)
    full[axis] = index.shape[0]
    return b.expand(b.reshape(index, shape), full), axis


def _of_numbers_too(function: Callable[..., Any]) -> Callable[..., Any]:
    """The row for tensors of rank 0 as well, which torch takes for one element along dimension 0."""

    @wraps(function)
    def wrapped(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.shape:
            return function(b, x, *args, **kwargs)
        return b.reshape(function(b, b.reshape(x, [1]), *args, **kwargs), [])

    return wrapped


@row("aten.index_add")
@_of_numbers_too
def index_add(b: AtenBuilder, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    lines, axis = _lines(b, x, dim, index)
    source = b.cast(source if alpha == 1 else b.mul(source, alpha, x.dtype), x.dtype)
    return b.op("scatter_elements", x, lines, b.expand(source, list(lines.shape)), axis=axis, reduce="add")


@row("aten.index_copy")
@_of_numbers_too
def index_copy(b: AtenBuilder, x: Any, dim: int, index: Any, source: Any) -> Any:
    lines, axis = _lines(b, x, dim, index)
    return b.op("scatter_elements", x, lines, b.expand(source, list(lines.shape)), axis=axis, reduce="none")


@row("aten.index_fill")
@_of_numbers_too
def index_fill(b: AtenBuilder, x: Any, dim: int, index: Any, value: Any) -> Any:
    lines, axis = _lines(b, x, dim, index)
    return b.op("scatter_elements", x, lines, b.full(lines.shape, value, x.dtype), axis=axis, reduce="none")


@row("aten.index_reduce")
@_of_numbers_too
def index_reduce(
    b: AtenBuilder, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    lines, axis = _lines(b, x, dim, index)
    kind = _REDUCTIONS[reduce]
    if include_self:
        return b.op("scatter_elements", x, lines, b.expand(source, list(lines.shape)), axis=axis, reduce=kind)

    def scatter(into: Any, what: Any, how: str) -> Any:
        updates = b.expand(b.scalar(what, into.dtype), list(lines.shape))
        return b.op("scatter_elements", into, lines, updates, axis=axis, reduce=how)

    return _without_self(b, x, kind, scatter, source)


@row("aten.masked_scatter")
def masked_scatter(b: AtenBuilder, x: Any, mask: Any, source: Any) -> Any:
    """Each true element takes the next of the source: its place is the count of true ones before it."""
    mask = b.expand(mask, list(x.shape))
    count = dims.product(x.shape)
    flat = b.reshape(mask, [count])
    place = b.clamp(b.sub(b.op("cumsum", b.cast(flat, "i64"), axis=0), 1, "i64"), 0, None)
    line = b.reshape(b.cast(source, x.dtype), [dims.product(source.shape)])
    # Places past the source belong to false elements only; they are bounded to stay inside it.
    place = b.binary("minimum", place, b.sub(b.scalar(line.shape[0], "i64"), 1, "i64"), "i64")
    taken = b.reshape(b.op("gather", line, place, axis=0), list(x.shape))
    return b.where(mask, taken, x)


@row("aten.put")
def put(b: AtenBuilder, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Into `x` as one line."""
    line, count = b.reshape(x, [dims.product(x.shape)]), dims.product(index.shape)
    index, source = b.reshape(index, [count]), b.reshape(b.cast(source, x.dtype), [count])
    result = b.op("scatter_elements", line, index, source, axis=0, reduce="add" if accumulate else "none")
    return b.reshape(result, list(x.shape))


@row("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(
    b: AtenBuilder, weight: Any, indices: Any, offsets: Any = None, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: Any = None,
) -> Any:  # fmt: skip
    """Rows of `weight` summed (mode 0), averaged (1) or their maximum (2), bag by bag; offsets say where bags begin.

    torch's other results (bags of rows, their sizes, where maxima are) serve its backward pass and are not given.
    """
    count = indices.shape[0]
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    places = b.iota(count, "i64")
    ends = b.slice(offsets, 0, 0, bags)
    bag = b.sub(b.cast(buckets(b, places, b.cast(ends, "i64"), True), "i64"), 1, "i64")
    rows = b.op("gather", weight, indices, axis=0)
    width = rows.shape[-1]
    if per_sample_weights is not None:
        rows = b.mul(rows, b.unsqueeze(per_sample_weights, 1), rows.dtype)
    is_real = b.full([count], True, "bool")
    if padding_idx is not None and padding_idx != -1:
        is_real = b.binary("ne", indices, padding_idx % weight.shape[0], indices.dtype)
    kind = "max" if mode == 2 else "add"
    blank = -math.inf if mode == 2 else 0
    rows = b.where(b.unsqueeze(is_real, 1), rows, blank, rows.dtype)
    lines = b.expand(b.unsqueeze(bag, 1), [count, width])
    total = b.op("scatter_elements", b.full([bags, width], blank, rows.dtype), lines, rows, axis=0, reduce=kind)
    if mode == 0:
        return total, None, None, None
    real = b.op("scatter_elements", b.full([bags], 0, "i64"), bag, b.cast(is_real, "i64"), axis=0, reduce="add")
    real = b.unsqueeze(real, 1)
    if mode == 1:
        least = b.cast(b.binary("maximum", real, 1, "i64"), rows.dtype)
        return b.div(total, least), None, None, None
    return b.where(b.binary("eq", real, 0, "i64"), 0, total, rows.dtype), None, None, None
