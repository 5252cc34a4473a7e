"""Running folds along an axis: one sequential loop a line of the tensor, the lines in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dims
from .op import op
from .pointwise_numpy import narrowed, widened
from .types import DTYPES, TensorType
from .val import Val, highest, lowest


def line_count(x: TensorType, axis: int) -> dims.Size:
    """How many lines along `axis` a tensor has."""
    return dims.product(size for d, size in enumerate(x.shape) if d != axis)


def line_index(k: Any, tile: Any, shape: Sequence[dims.Size], axis: int) -> Callable[[Any], list[Any]]:
    """The function from a position along `axis` to the index in line number `tile`."""
    others = k.delinearize(tile, [size for d, size in enumerate(shape) if d != axis])
    return lambda position: [*others[:axis], k.ix(position), *others[axis:]]


def _running(
    function: np.ufunc, x: np.ndarray, axis: int, exclusive: bool, reverse: bool, start: Any
) -> np.ndarray:
    """`function.accumulate` in f64 (floats) or the integers' own width, then shifted by one for `exclusive`."""
    x = np.asarray(x)
    wide = widened(x).astype(np.float64) if x.dtype.kind not in "iub" else x
    wide = np.flip(wide, axis) if reverse else wide
    if exclusive:
        first = np.full([1 if d == axis else size for d, size in enumerate(wide.shape)], start, wide.dtype)
        wide = np.concatenate([first, np.take(wide, range(wide.shape[axis] - 1), axis)], axis)
        wide = np.take(wide, range(x.shape[axis]), axis)
    with np.errstate(all="ignore"):
        total = function.accumulate(wide, axis, dtype=wide.dtype) if wide.size else wide
    return narrowed(np.flip(total, axis) if reverse else total, x.dtype)


@op("special")
def cumsum(x: N[*S], *, axis: int, exclusive: bool = False, reverse: bool = False) -> N[*S]:
    """The sum of all elements up to and with each one (`exclusive`: without), from the end for `reverse`.

    f32 accumulates in f64, narrow floats in f32. Source: ONNX CumSum-14; ATen cumsum.
    """
    return _running(np.add, x, axis, exclusive, reverse, 0)


@op("special")
def cumprod(x: N[*S], *, axis: int, exclusive: bool = False, reverse: bool = False) -> N[*S]:
    """The product of all elements up to and with each one (`exclusive`: without), from the end for `reverse`.

    f32 accumulates in f64, narrow floats in f32. Source: ONNX CumProd-26; ATen cumprod.
    """
    return _running(np.multiply, x, axis, exclusive, reverse, 1)


@op("special")
def cummax(x: N[*S], *, axis: int, exclusive: bool = False, reverse: bool = False) -> N[*S]:
    """The largest element so far; NaN from the first NaN on. Source: ATen cummax."""
    return _running(np.maximum, x, axis, exclusive, reverse, lowest(_name_of(x)))


@op("special")
def cummin(x: N[*S], *, axis: int, exclusive: bool = False, reverse: bool = False) -> N[*S]:
    """The smallest element so far; NaN from the first NaN on. Source: ATen cummin."""
    return _running(np.minimum, x, axis, exclusive, reverse, highest(_name_of(x)))


def _name_of(x: np.ndarray) -> str:
    return next(name for name, info in DTYPES.items() if info.numpy == np.asarray(x).dtype)


def _same_type(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> TensorType:
    if not 0 <= axis < x.rank:
        raise ValueError(f"there is no axis {axis} in rank {x.rank}")
    return x


def _scan_kernel(start: Callable[[str], int | float], combine: Callable[[Val, Val], Val]) -> Callable[..., None]:
    def kernel(
        k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, axis: int, exclusive: bool, reverse: bool
    ) -> None:
        (x,), (out,) = ins, outs
        shape, dtype = k.shape(x), k.dtype(x)
        # One long chain of roundings: a sum of many f32 loses digits that a wider accumulator keeps for the same time.
        wide = "f64" if dtype == "f32" else "f32" if DTYPES[dtype].is_narrow_float else dtype
        index = line_index(k, tile, shape, axis)

        def body(i: Any, carried: list[Val]) -> list[Val]:
            place = index(k.ix(shape[axis]) - 1 - i if reverse else i)
            total = combine(carried[0], k.read(x, place).cast(wide))
            k.write(out, place, (carried[0] if exclusive else total).cast(dtype))
            return [total]

        k.loop(shape[axis], [k.constant(start(dtype), wide)], body)

    return kernel


for _definition, _start, _combine in (
    (cumsum, lambda dtype: 0, lambda total, x: total + x),
    (cumprod, lambda dtype: 1, lambda total, x: total * x),
    (cummax, lowest, lambda total, x: total.maximum(x)),
    (cummin, highest, lambda total, x: total.minimum(x)),
):
    _definition.rule("infer")(_same_type)
    _definition.rule("tiles")(lambda x, *, axis, **_: line_count(x, axis))
    _definition.rule("kernel")(_scan_kernel(_start, _combine))
