"""Matrix products."""

from __future__ import annotations

import numpy as np

from . import dims, types
from .op import op
from .types import DTYPES, TensorType


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype that references accumulate in: f32 for f16 and bf16, else the type itself."""
    info = DTYPES[types.dtype_of_numpy(dtype)]
    return np.dtype(np.float32) if info.is_narrow_float else info.numpy


def sum_type(a: str, b: str, is_wide: bool) -> str:
    """The element type of a product's result. Raises ValueError for factors of different types, unless both are floats
    that sum in f32."""
    if a != b and not (_sums_in_f32(a) and _sums_in_f32(b)):
        raise ValueError(f"factors of {a} and {b} have no type to be summed in")
    return "f32" if is_wide and DTYPES[a].is_narrow_float else a


def _sums_in_f32(dtype: str) -> bool:
    return dtype == "f32" or DTYPES[dtype].is_narrow_float


@op("contract")
def matmul(
    a: N[*B, M, K], b: M[*B, L, P], *, transpose_a: bool = False, transpose_b: bool = False, wide: Mark = False,
) -> N[*B, M, P]:  # fmt: skip
    """Batched matrix product of [*B, M, K] and [*B, K, P], each stored transposed where said.

    Accumulates in f32 for f16 and bf16, else in T. `wide`: the result keeps that type; a narrow `b` may meet an `a` of
    f32. Source: ONNX MatMul-13; ATen matmul.
    """
    total = accumulator(a.dtype)
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    product = np.matmul(left.astype(total, copy=False), right.astype(total, copy=False))
    return product if wide else product.astype(a.dtype, copy=False)


@matmul.rule("infer")
def _(a, b, *, transpose_a, transpose_b, wide):
    rows, depth = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    depth_b, columns = (b.shape[-1], b.shape[-2]) if transpose_b else (b.shape[-2], b.shape[-1])
    if depth != depth_b:
        raise ValueError(f"a is {a} with K={depth}, b is {b} with K={depth_b}")
    batch = types.broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    return TensorType(sum_type(a.dtype, b.dtype, wide), (*batch, rows, columns))


def batch_index(index, shape):
    """The leading indices of an operand of `shape` whose batch was broadcast to `index`."""
    own = shape[:-2]
    return [i * 0 if size == 1 else i for i, size in zip(index[len(index) - len(own) :], own, strict=True)]


@matmul.rule("at")
def _(k, index, a, b, *, transpose_a, transpose_b, wide):
    *batch, row, column = index
    a_batch, b_batch = batch_index(batch, k.shape(a)), batch_index(batch, k.shape(b))

    def step(i, acc):
        left = k.read(a, [*a_batch, i, row] if transpose_a else [*a_batch, row, i])
        right = k.read(b, [*b_batch, column, i] if transpose_b else [*b_batch, i, column])
        return [left.fma(right, acc[0]) if left.is_float else acc[0] + left * right]

    depth = k.shape(a)[-2 if transpose_a else -1]
    total = k.loop(depth, [k.splat(k.constant(0, k.dtype(a)))], step)[0]
    return total.cast(sum_type(k.dtype(a), k.dtype(b), wide))


def unpacked(panels: np.ndarray, columns: int) -> np.ndarray:
    """[*B, Q, K, C] panels as [*B, K, columns]."""
    *batch, count, depth, width = panels.shape
    return np.swapaxes(panels, -3, -2).reshape(*batch, depth, count * width)[..., :columns]


@op("special", is_internal=True)
def pack_panels(b: N[*B, K, P], *, width: int, is_transposed: bool = False) -> N[*B, Q, K, C]:
    """[*B, K, P] (or its transpose) as panels of `width` columns: [*B, ceil(P / width), K, width], zeros at the end.

    What a product's inner loop reads front to back: worth a pass over `b` where many rows meet it. Source: Goto and van
    de Geijn 2008, Anatomy of high-performance matrix multiplication.
    """
    b = np.swapaxes(b, -1, -2) if is_transposed else b
    *batch, depth, columns = b.shape
    count = -(-columns // width)
    padded = np.pad(b, [(0, 0)] * (b.ndim - 1) + [(0, count * width - columns)])
    return np.ascontiguousarray(np.swapaxes(padded.reshape(*batch, depth, count, width), -3, -2))


@pack_panels.rule("infer")
def _(b, *, width, is_transposed):
    depth, columns = (b.shape[-1], b.shape[-2]) if is_transposed else b.shape[-2:]
    return TensorType(b.dtype, (*b.shape[:-2], dims.ceildiv(columns, width), depth, width))


@op("gather", is_internal=True)
def pad_rows(x: T[*B, N], *, columns: int) -> T[*B, P]:
    """`x` in rows of `columns` elements, of which those past x's own are not specified (zeros here).

    Rows that are a power of two apart fall into one set of a cache, which holds fewer of them than a register tile
    reads at once. Source: Lam, Rothberg and Wolf 1991, The cache performance and optimizations of blocked algorithms.
    """
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])])


@pad_rows.rule("infer")
def _(x, *, columns):
    if x.rank == 0 or not isinstance(x.shape[-1], int) or x.shape[-1] > columns:
        raise ValueError(f"x is {x}, which has no rows that fit {columns} columns")
    return TensorType(x.dtype, (*x.shape[:-1], columns))


@op("contract", is_internal=True)
def packed_matmul(a: N[*A, M, L], b: N[*B, Q, K, C], *, columns: int, transpose_a: bool = False) -> N[*A, M, P]:
    """`matmul` of a and what `pack_panels` made of a matrix of so many columns. Source: ONNX MatMul-13."""
    return matmul.reference(a, unpacked(b, columns), transpose_a=transpose_a)


@packed_matmul.rule("infer")
def _(a, b, *, columns, transpose_a):
    rows, depth = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    if b.rank < 3 or depth != b.shape[-2] or dims.ceildiv(columns, b.shape[-1]) != b.shape[-3]:
        raise ValueError(f"a is {a}, b is {b}: no panels of a matrix of {columns} columns that a can meet")
    return TensorType(a.dtype, (*types.broadcast_shapes([a.shape[:-2], b.shape[:-3]]), rows, columns))
