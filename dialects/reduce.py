"""Reductions over axes, and the positions of extremes.

A reduction is a fold: rule "combine" (operand and result dtype -> `Fold`) says how elements join, and both ways
of compiling it (the `at` rule's loop, and the vectorised rows of a target) are made of that. Narrow floats add up in
f32, integers in their own width: sums wrap alike in any width, and who wants a wider result casts first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .op import OPS, OpDef, op
from .pointwise_numpy import narrowed, truncating_divide, widened
from .types import DTYPES, TensorType
from .val import Val, highest, lowest


@dataclass(frozen=True)
class Fold:
    """How a reduction joins elements.

    `combine(accumulator, x)` takes `x` cast to `dtype`; it is associative and commutative (floats: but for rounding),
    and joins two accumulators as well. `finish(accumulator, count)` takes the count as an integer or as a `dtype`, and
    gives the result's element type. `rounds`: whether combining floats rounds.
    """

    initial: int | float
    combine: Callable[[Val, Val], Val]
    finish: Callable[[Val, Val], Val]
    dtype: str
    rounds: bool = False


def accumulator_dtype(dtype: str) -> str:
    """f32 for narrow floats, else `dtype`."""
    return "f32" if DTYPES[dtype].is_narrow_float else dtype


def _reduced(x: TensorType, *, axes: Sequence[int], keepdims: bool) -> TensorType:
    if any(not 0 <= axis < x.rank for axis in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"axes {list(axes)} are not distinct axes of rank {x.rank}")
    if keepdims:
        return TensorType(x.dtype, tuple(1 if d in axes else size for d, size in enumerate(x.shape)))
    return TensorType(x.dtype, tuple(size for d, size in enumerate(x.shape) if d not in axes))


def operand_index(k: Any, index: Sequence[Any], rank: int, axes: Sequence[int], keepdims: bool) -> list[Any]:
    """The operand's index for a result index, with 0 along the reduced axes."""
    given = iter(index)
    position = []
    for d in range(rank):
        if d in axes:
            position.append(k.ix(0))
            if keepdims:
                next(given)
        else:
            position.append(next(given))
    return position


def _reduce_at(definition: OpDef) -> Callable[..., Val]:
    """The `at` rule of a reduction: one loop an axis around the fold."""

    def at(k: Any, index: Sequence[Any], x: Any, *, axes: Sequence[int], keepdims: bool) -> Val:
        shape = k.shape(x)
        fold: Fold = definition.rules["combine"](k.dtype(x), k.dtype(x))
        position = operand_index(k, index, len(shape), axes, keepdims)

        # One chain of roundings an element: in f64 it is as exact as a sum in pieces, and memory is what it waits for.
        wide = "f64" if fold.rounds and fold.dtype == "f32" else fold.dtype

        def nest(remaining: Sequence[int], accumulator: list[Val]) -> list[Val]:
            if not remaining:
                return [fold.combine(accumulator[0], k.read(x, list(position)).cast(wide))]

            def body(i: Any, carried: list[Val]) -> list[Val]:
                position[remaining[0]] = i
                return nest(remaining[1:], carried)

            return k.loop(shape[remaining[0]], accumulator, body)

        (total,) = nest(sorted(axes), [k.splat(k.constant(fold.initial, wide))])
        count: Any = 1
        for axis in axes:
            count = count * shape[axis]
        return fold.finish(total.cast(fold.dtype), k.size_val(count, "i64"))

    return at


def reduction(definition: OpDef) -> OpDef:
    """Gives a reduction its `infer` and `at` rules."""
    definition.rule("infer")(_reduced)
    definition.rule("at")(_reduce_at(definition))
    return definition


def _fold(
    initial: int | float, combine: Callable[[Val, Val], Val], dtype: str, result: str, rounds: bool = False
) -> Fold:
    return Fold(initial, combine, lambda total, count: total.cast(result), accumulator_dtype(dtype), rounds)


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats as f64, so that a body's own order of additions does not matter."""
    x = np.asarray(x)
    return widened(x).astype(np.float64) if x.dtype.kind not in "iub" else x


@op("reduce")
def sum_(x: N[*S], *, axes: list[int], keepdims: bool = False) -> N[*R]:
    """The sum over `axes` in x's element type; narrow floats accumulate in f32; 0 over nothing.

    Source: ONNX ReduceSum-13; ATen sum.dim_IntList with dtype.
    """
    wide = _wide(x)
    with np.errstate(all="ignore"):
        return narrowed(np.sum(wide, tuple(axes), keepdims=keepdims, dtype=wide.dtype), np.asarray(x).dtype)


@sum_.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(0, lambda a, x: a + x, dtype, result, rounds=True)


@op("reduce")
def prod(x: N[*S], *, axes: list[int], keepdims: bool = False) -> N[*R]:
    """The product over `axes` in x's element type; 1 over nothing. Source: ONNX ReduceProd-18; ATen prod."""
    wide = _wide(x)
    with np.errstate(all="ignore"):
        return narrowed(np.prod(wide, tuple(axes), keepdims=keepdims, dtype=wide.dtype), np.asarray(x).dtype)


@prod.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(1, lambda a, x: a * x, dtype, result, rounds=True)


@op("reduce")
def mean(x: N[*S], *, axes: list[int], keepdims: bool = False) -> N[*R]:
    """The sum over `axes` divided by the count; NaN over nothing; integers sum in 64 bits and round toward zero.

    Source: ONNX ReduceMean-18; ATen mean.dim.
    """
    x = np.asarray(x)
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            total = np.sum(x, tuple(axes), keepdims=keepdims, dtype=np.uint64 if x.dtype.kind == "u" else np.int64)
            return truncating_divide(total, np.asarray(count, total.dtype)).astype(x.dtype)
        return narrowed(np.divide(np.sum(_wide(x), tuple(axes), keepdims=keepdims), count), x.dtype)


@mean.rule("combine")
def _(dtype: str, result: str) -> Fold:
    info = DTYPES[dtype]
    wide = accumulator_dtype(dtype) if info.is_float else "u64" if info.kind == "u" else "i64"
    return Fold(0, lambda a, x: a + x, lambda total, count: (total / count.cast(wide)).cast(result), wide, rounds=True)


@op("reduce")
def max_(x: N[*S], *, axes: list[int], keepdims: bool = False) -> N[*R]:
    """The largest over `axes`; NaN if there is one; over nothing -inf or the lowest integer.

    Source: ONNX ReduceMax-20; ATen amax.
    """
    return np.max(x, tuple(axes), keepdims=keepdims, initial=_number(lowest, x))


@max_.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(lowest(dtype), lambda a, x: a.maximum(x, orders_zeros=False), dtype, result)


@op("reduce")
def min_(x: N[*S], *, axes: list[int], keepdims: bool = False) -> N[*R]:
    """The smallest over `axes`; NaN if there is one; over nothing inf or the highest integer.

    Source: ONNX ReduceMin-20; ATen amin.
    """
    return np.min(x, tuple(axes), keepdims=keepdims, initial=_number(highest, x))


@min_.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(highest(dtype), lambda a, x: a.minimum(x, orders_zeros=False), dtype, result)


def _number(bound: Callable[[str], int | float], x: np.ndarray) -> Any:
    dtype = np.asarray(x).dtype
    name = next(name for name, info in DTYPES.items() if info.numpy == dtype)
    return np.asarray(bound(name)).astype(dtype)[()]


@op("reduce")
def any_(x: bool[*S], *, axes: list[int], keepdims: bool = False) -> bool[*R]:
    """Whether any element over `axes` is true; false over nothing. Source: ATen any.dims."""
    return np.any(x, tuple(axes), keepdims=keepdims)


@any_.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(0, lambda a, x: a | x, dtype, result)


@op("reduce")
def all_(x: bool[*S], *, axes: list[int], keepdims: bool = False) -> bool[*R]:
    """Whether all elements over `axes` are true; true over nothing. Source: ATen all.dims."""
    return np.all(x, tuple(axes), keepdims=keepdims)


@all_.rule("combine")
def _(dtype: str, result: str) -> Fold:
    return _fold(1, lambda a, x: a & x, dtype, result)


for _definition in (sum_, prod, mean, max_, min_, any_, all_):
    reduction(_definition)


# --- positions of extremes ---


@op("gather")
def argmax(x: T[*S], *, axis: int, keepdims: bool = False) -> i64[*R]:
    """Where the largest element along `axis` first occurs; NaN counts as the largest.

    Source: ATen argmax; ONNX ArgMax-13.
    """
    return _first_extreme(x, axis, keepdims, np.argmax)


@op("gather")
def argmin(x: T[*S], *, axis: int, keepdims: bool = False) -> i64[*R]:
    """Where the smallest element along `axis` first occurs; NaN counts as the smallest.

    Source: ATen argmin; ONNX ArgMin-13.
    """
    return _first_extreme(x, axis, keepdims, np.argmin)


def _first_extreme(x: np.ndarray, axis: int, keepdims: bool, position: Callable[..., np.ndarray]) -> np.ndarray:
    return position(widened(x), axis=axis, keepdims=keepdims).astype(np.int64)  # numpy's NaN rule is the same


def _position_type(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
    if x.rank and x.shape[axis] == 0:
        raise ValueError("there is no extreme of nothing")
    return TensorType("i64", _reduced(x, axes=[axis], keepdims=keepdims).shape)


def _position_at(
    k: Any, index: Sequence[Any], x: Any, axis: int, keepdims: bool, is_better: Callable[[Val, Val], Val]
) -> Val:
    shape = k.shape(x)
    position = operand_index(k, index, len(shape), [axis], keepdims)
    first = k.splat(k.read(x, list(position)))

    def body(i: Any, carried: list[Val]) -> list[Val]:
        best, where = carried
        position[axis] = i
        value = k.read(x, list(position))
        better = is_better(value, best)
        if value.is_float:
            better = (better | value.is_nan()) & best.is_nan().invert()
        return [better.select(value, best), better.select(i.val("i64"), where)]

    return k.loop(shape[axis], [first, k.splat(k.constant(0, "i64"))], body)[1]


@argmax.rule("at")
def _(k: Any, index: Sequence[Any], x: Any, *, axis: int, keepdims: bool) -> Val:
    return _position_at(k, index, x, axis, keepdims, lambda value, best: value.gt(best))


@argmin.rule("at")
def _(k: Any, index: Sequence[Any], x: Any, *, axis: int, keepdims: bool) -> Val:
    return _position_at(k, index, x, axis, keepdims, lambda value, best: value.lt(best))


for _definition in (argmax, argmin):
    _definition.rule("infer")(_position_type)

assert all("combine" in d.rules for d in OPS.values() if d.kind == "reduce")
