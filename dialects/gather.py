"""Ops that pick elements by computed index: gather, gather_elements, gather_nd."""

from __future__ import annotations

import numpy as np

from .op import op
from .shape import check_axis
from .types import TensorType


def wrapped_index(k, position, size):
    """An index operand's value as an Ix: negative counts from the end; clamped, so that reads stay inside."""
    count = k.size_val(size, "i64")
    position = position.cast("i64")
    position = position.lt(0).select(position + count, position)
    return k.ix(position.maximum(0).minimum(count - 1))


@op("gather")
def gather(x: T, indices: I, *, axis: int) -> T:
    """Slices of `x` along `axis` at `indices` of any shape, which replaces that dimension.

    Negative indices count from the end; an index out of range is the nearest valid one when compiled, an error here.
    Source: ONNX Gather-13; ATen embedding, index_select.
    """
    return np.take(x, indices.astype(np.int64), axis=axis)


@gather.rule("infer")
def _(x, indices, *, axis):
    check_axis(axis, x.rank)
    return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@gather.rule("at")
def _(k, index, x, indices, *, axis):
    rank = len(k.shape(indices))
    chosen = k.read(indices, index[axis : axis + rank])
    return k.read(x, [*index[:axis], wrapped_index(k, chosen, k.shape(x)[axis]), *index[axis + rank :]])


@op("gather", torch="aten.gather.default", onnx="GatherElements")
def gather_elements(x: T, indices: I, *, axis: int) -> T:
    """x[i, indices[i, j, k], k] for axis 1, of the shape of `indices`, whose other sizes are at most `x`'s.

    Source: ONNX GatherElements-13; ATen gather.
    """
    where = list(np.ogrid[tuple(slice(0, n) for n in indices.shape)])
    where[axis] = indices.astype(np.int64)
    return x[tuple(where)]


@gather_elements.rule("infer")
def _(x, indices, *, axis):
    if x.rank != indices.rank:
        raise ValueError(f"x is {x}, indices are {indices}: the ranks differ")
    check_axis(axis, x.rank)
    for d, (size, count) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if d != axis and isinstance(count - size, int) and count - size > 0:
            raise ValueError(f"indices have size {count} in dimension {d}, x only {size}")
    return TensorType(x.dtype, indices.shape)


@gather_elements.rule("at")
def _(k, index, x, indices, *, axis):
    chosen = wrapped_index(k, k.read(indices, index), k.shape(x)[axis])
    return k.read(x, [*index[:axis], chosen, *index[axis + 1 :]])


@op("gather")
def gather_nd(x: T, indices: I, *, batch_dims: int = 0) -> T:
    """x[batch..., indices[batch..., i, :], ...]: the last dimension of `indices` is a position in `x` after the batch.

    Source: ONNX GatherND-13; ATen index.
    """
    depth = indices.shape[-1]
    batch = np.ogrid[tuple(slice(0, n) for n in x.shape[:batch_dims])] if batch_dims else []
    spread = indices.ndim - 1 - batch_dims
    where = [b.reshape(b.shape + (1,) * spread) for b in batch]
    return x[(*where, *(indices[..., d].astype(np.int64) for d in range(depth)))]


@gather_nd.rule("infer")
def _(x, indices, *, batch_dims):
    if indices.rank <= batch_dims or not isinstance(indices.shape[-1], int):
        raise ValueError(f"indices are {indices}: the last size must be a number, after {batch_dims} batch dimensions")
    depth = indices.shape[-1]
    if batch_dims + depth > x.rank:
        raise ValueError(f"indices are {indices}: {depth} positions after {batch_dims} batch dimensions of {x}")
    if x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise ValueError(f"batch sizes of {x} and {indices} differ")
    return TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch_dims + depth :]))


@gather_nd.rule("at")
def _(k, index, x, indices, *, batch_dims):
    shape, index_shape = k.shape(x), k.shape(indices)
    outer, depth = len(index_shape) - 1, index_shape[-1]
    chosen = [
        wrapped_index(k, k.read(indices, [*index[:outer], k.ix(d)]), shape[batch_dims + d]) for d in range(depth)
    ]
    return k.read(x, [*index[:batch_dims], *chosen, *index[outer:]])
