"""ATen rows: tensors made from sizes and numbers."""

from __future__ import annotations

import math
from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, is_float, is_tensor, row
from mlc.frontend.report import UnsupportedCaseError


@row("aten.full", "aten.full_like", "aten.fill")
def full(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    value = kwargs.get("fill_value", kwargs.get("value", args[-1]))
    return b.full(b.out_shape, value, b.out_dtype)


@row("aten.new_full")
def new_full(b: AtenBuilder, x: Any, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    return b.full(b.out_shape, fill_value, b.out_dtype)


@row(
    "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.zero", "aten.empty", "aten.empty_like", "aten.new_empty",
    "aten.empty_permuted", "aten.empty_strided", "aten.new_empty_strided",
)  # fmt: skip
def zeros(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    """Empty tensors too: their contents are anything, and zeros are the same anything each time."""
    return b.full(b.out_shape, 0, b.out_dtype)


@row("aten.ones", "aten.ones_like", "aten.new_ones")
def ones(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    return b.full(b.out_shape, 1, b.out_dtype)


@row("aten.arange")
def arange(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    start, step = _range_arguments(args, kwargs)
    dtype, [size] = b.out_dtype, b.out_shape
    if any(isinstance(number, float) for number in (start, step)):
        steps = b.mul(b.iota(size, dtype), step, dtype)
        return b.add(steps, start, dtype)
    return b.iota(size, dtype, start, step)


def _range_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """(start, step); the end is in the result's size."""
    values = [*args]
    if len(values) == 1 and "end" not in kwargs:
        values.insert(0, 0)
    names = ("start", "end", "step")
    given = dict(zip(names, values, strict=False)) | {n: kwargs[n] for n in names if n in kwargs}
    return given.get("start", 0), given.get("step", 1)


@row("aten.linspace")
def linspace(b: AtenBuilder, start: Any, end: Any, steps: Any, **kwargs: Any) -> Any:
    """Counted from the nearer end, as torch has it, so that both ends are exact."""
    dtype = b.out_dtype
    if not isinstance(steps, int) or not is_float(dtype) or is_tensor(start) or is_tensor(end):
        raise UnsupportedCaseError("linspace with a dynamic count, tensor ends or an integer result")
    if steps == 1:
        return b.full([1], start, dtype)
    step = (end - start) / (steps - 1)
    up = b.add(b.mul(b.iota(steps, dtype), step, dtype), start, dtype)
    down = b.sub(end, b.mul(b.iota(steps, dtype, steps - 1, -1), step, dtype), dtype)
    return b.where(b.binary("lt", b.iota(steps, "i64"), steps // 2), up, down)


@row("aten.logspace")
def logspace(b: AtenBuilder, start: Any, end: Any, steps: Any, base: float = 10.0, **kwargs: Any) -> Any:
    return b.op("exp", b.mul(linspace(b, start, end, steps), math.log(base), b.out_dtype))


@row("aten.eye")
def eye(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    rows, columns = b.out_shape
    return b.cast(_compared(b, rows, columns, 0, "eq"), b.out_dtype)


def _compared(b: AtenBuilder, rows: Any, columns: Any, diagonal: Any, comparison: str) -> Any:
    """[rows, columns] bool: column compared with row + diagonal."""
    row_ids = b.add(b.unsqueeze(b.iota(rows, "i64"), 1), diagonal, "i64")
    return b.binary(comparison, b.unsqueeze(b.iota(columns, "i64"), 0), row_ids)


@row("aten.tril")
def tril(b: AtenBuilder, x: Any, diagonal: Any = 0) -> Any:
    return b.where(_compared(b, x.shape[-2], x.shape[-1], diagonal, "le"), x, 0, x.dtype)


@row("aten.triu")
def triu(b: AtenBuilder, x: Any, diagonal: Any = 0) -> Any:
    return b.where(_compared(b, x.shape[-2], x.shape[-1], diagonal, "ge"), x, 0, x.dtype)


@row("aten.tril_indices", "aten.triu_indices")
def triangle_indices(b: AtenBuilder, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedCaseError("tril_indices and triu_indices; compute them outside the model, as a buffer")


@row("aten.cartesian_prod")
def cartesian_prod(b: AtenBuilder, tensors: list[Any]) -> Any:
    if len(tensors) == 1:
        return tensors[0]
    sizes = [x.shape[0] for x in tensors]
    columns = []
    for axis, x in enumerate(tensors):
        shape = [1] * len(sizes)
        shape[axis] = sizes[axis]
        columns.append(b.reshape(b.expand(b.reshape(x, shape), sizes), [dims.product(sizes), 1]))
    return b.concat(columns, 1)
