"""Ops without operands: constants, weights, ranges."""

from __future__ import annotations

import numpy as np

from . import types
from .op import op
from .types import DTYPES, TensorType


@op("source")
def constant(*, value: Array) -> T:
    """A small constant tensor kept in the IR. Source: ONNX Constant-13."""
    return value


@constant.rule("infer")
def _(*, value):
    return TensorType(types.dtype_of_numpy(value.dtype), value.shape)


@op("source")
def weight(*, name: str, shape: Dims, dtype: DType) -> T:
    """A weight whose bytes lie in the module's WeightStore under `name`. Source: mlc."""
    raise NotImplementedError("the interpreter reads the store")


@weight.rule("infer")
def _(*, name, shape, dtype):
    return TensorType(dtype, tuple(shape))


@op("source")
def full(*, shape: Dims, value: float, dtype: DType) -> T:
    """A tensor of one repeated number. Source: ONNX ConstantOfShape-9; ATen full."""
    return np.full(shape, value).astype(DTYPES[dtype].numpy)


@full.rule("infer")
def _(*, shape, value, dtype):
    return TensorType(dtype, tuple(shape))


@op("source")
def iota(*, size: Size, start: Size = 0, step: int = 1, dtype: DType = "i64") -> T:
    """start + step * i for i in [0, size), 1-D. Source: ATen arange; ONNX Range-11."""
    return (start + step * np.arange(size)).astype(DTYPES[dtype].numpy)


@iota.rule("infer")
def _(*, size, start, step, dtype):
    return TensorType(dtype, (size,))


@op("source")
def dim_value(*, value: Size, dtype: DType = "i64") -> T:
    """The value of a size expression as a 0-D tensor. Source: ONNX Shape-21; ATen sym_size."""
    return np.asarray(value, DTYPES[dtype].numpy)


@dim_value.rule("infer")
def _(*, value, dtype):
    return TensorType(dtype, ())


@op("view", is_internal=True)
def copy(x: T[*S]) -> T[*S]:
    """The same tensor in memory of its own. Source: ONNX Identity-21."""
    return x
