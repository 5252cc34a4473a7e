"""Matrix products."""

from __future__ import annotations

import numpy as np

from . import types
from .op import op
from .types import DTYPES, TensorType


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype that references accumulate in: f32 for f16 and bf16, else the type itself."""
    info = DTYPES[types.dtype_of_numpy(dtype)]
    return np.dtype(np.float32) if info.is_narrow_float else info.numpy


@op("contract")
def matmul(a: N[*B, M, K], b: N[*B, L, P], *, transpose_a: bool = False, transpose_b: bool = False) -> N[*B, M, P]:
    """Batched matrix product of [*B, M, K] and [*B, K, P], each stored transposed where said.

    Accumulates in f32 for f16 and bf16, else in T. Source: ONNX MatMul-13; ATen matmul.
    """
    wide = accumulator(a.dtype)
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    return np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False)).astype(a.dtype, copy=False)


@matmul.rule("infer")
def _(a, b, *, transpose_a, transpose_b):
    rows, depth = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    depth_b, columns = (b.shape[-1], b.shape[-2]) if transpose_b else (b.shape[-2], b.shape[-1])
    if depth != depth_b:
        raise ValueError(f"a is {a} with K={depth}, b is {b} with K={depth_b}")
    batch = types.broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    return TensorType(a.dtype, (*batch, rows, columns))


def batch_index(index, shape):
    """The leading indices of an operand of `shape` whose batch was broadcast to `index`."""
    own = shape[:-2]
    return [i * 0 if size == 1 else i for i, size in zip(index[len(index) - len(own) :], own, strict=True)]


@matmul.rule("at")
def _(k, index, a, b, *, transpose_a, transpose_b):
    *batch, row, column = index
    a_batch, b_batch = batch_index(batch, k.shape(a)), batch_index(batch, k.shape(b))

    def step(i, acc):
        left = k.read(a, [*a_batch, i, row] if transpose_a else [*a_batch, row, i])
        right = k.read(b, [*b_batch, column, i] if transpose_b else [*b_batch, i, column])
        return [left.fma(right, acc[0]) if left.is_float else acc[0] + left * right]

    depth = k.shape(a)[-2 if transpose_a else -1]
    return k.loop(depth, [k.splat(k.constant(0, k.dtype(a)))], step)[0]
