"""Order along an axis: sort and topk.

Both are one algorithm on the results as working memory: a heap holds the best elements so far with the worst of them on
top, and is then taken apart from the worst to the best: n log k steps, no scratch memory. Equal elements are
ordered by position, so the order is total, the sort is stable and every target gives the same indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dims
from .op import op
from .pointwise_numpy import widened
from .scan import line_count, line_index
from .types import TensorType
from .val import Val


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Positions that sort `x` stably; NaN counts as the largest."""
    x = widened(x)
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


@op("special")
def sort(x: T[*S], *, axis: int, descending: bool = False, stable: bool = True) -> tuple[T[*S], i64[*S]]:
    """The elements along `axis` in order, and the position of each; NaN counts as the largest. Always stable.

    Source: ATen sort.stable.
    """
    order = _order(x, axis, descending)
    return np.take_along_axis(np.asarray(x), order, axis), order.astype(np.int64)


@op("special")
def topk(x: T[*S], *, k: Size, axis: int, largest: bool = True, sorted: bool = True) -> tuple[T[*R], i64[*R]]:
    """The `k` largest (or smallest) elements along `axis`, best first, and their positions; NaN counts as the largest.

    Equal elements: the lower position first. `sorted` false permits any order. Source: ONNX TopK-24; ATen topk.
    """
    order = np.take(_order(x, axis, largest), range(k), axis)
    return np.take_along_axis(np.asarray(x), order, axis), order.astype(np.int64)


@sort.rule("infer")
def _(x: TensorType, *, axis: int, descending: bool, stable: bool) -> list[TensorType]:
    return _picked(x, axis, None)


@topk.rule("infer")
def _(x: TensorType, *, k: dims.Size, axis: int, largest: bool, sorted: bool) -> list[TensorType]:
    return _picked(x, axis, k)


def _picked(x: TensorType, axis: int, count: dims.Size | None) -> list[TensorType]:
    if not 0 <= axis < x.rank:
        raise ValueError(f"there is no axis {axis} in rank {x.rank}")
    size = x.shape[axis]
    if count is None:
        count = size
    elif isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise ValueError(f"k is {count}, but the axis has {size} elements")
    shape = tuple(count if d == axis else s for d, s in enumerate(x.shape))
    return [TensorType(x.dtype, shape), TensorType("i64", shape)]


@sort.rule("tiles")
def _(x: TensorType, *, axis: int, descending: bool, stable: bool) -> dims.Size:
    return line_count(x, axis)


@topk.rule("tiles")
def _(x: TensorType, *, k: dims.Size, axis: int, largest: bool, sorted: bool) -> dims.Size:
    return line_count(x, axis)


@sort.rule("kernel")
def _(
    k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, axis: int, descending: bool, stable: bool
) -> None:
    _first_in_order(k, tile, ins[0], outs, axis, k.shape(ins[0])[axis], descending)


@topk.rule("kernel")
def _(engine: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], **attrs: Any) -> None:
    _first_in_order(engine, tile, ins[0], outs, attrs["axis"], attrs["k"], attrs["largest"])


Entry = tuple[Val, Val]  # an element and its position


def _precedes(a: Val, b: Val, descending: bool) -> Val:
    before = a.gt(b) if descending else a.lt(b)
    if a.is_float:
        first, last = (a, b) if descending else (b, a)
        before = before | (first.is_nan() & last.is_nan().invert())
    return before


def _comes_after(a: Entry, b: Entry, descending: bool) -> Val:
    """Whether `a` is behind `b` in the result."""
    is_tie_behind = _precedes(a[0], b[0], descending).invert() & a[1].gt(b[1])
    return _precedes(b[0], a[0], descending) | is_tie_behind


class _Heap:
    """The first places of a line of the results. Entry i comes after its children, entries 2 i + 1 and 2 i + 2."""

    def __init__(self, k: Any, outs: Sequence[Any], index: Callable[[Any], list[Any]], descending: bool) -> None:
        self.k, self.outs, self.index, self.descending = k, outs, index, descending

    def load(self, place: Any) -> Entry:
        values, positions = self.outs
        return self.k.load_out(values, self.index(place)), self.k.load_out(positions, self.index(place))

    def store(self, place: Any, entry: Entry) -> None:
        for out, part in zip(self.outs, entry, strict=True):
            self.k.write(out, self.index(place), part)

    def sift(self, start: Any, count: Any, held: Entry) -> None:
        """Puts `held` in the tree below `start`, whose own entry is void, among the first `count` places."""
        end = self.k.ix(count).val("i64")
        hole = self.k.ix(start).val("i64")

        def step(carried: list[Val]) -> list[Val]:
            hole, left = carried
            right = left + 1
            right = right.lt(end).select(right, left)
            left_entry, right_entry = self.load(left), self.load(right)
            is_right = _comes_after(right_entry, left_entry, self.descending)
            child = is_right.select(right, left)
            entry = tuple(is_right.select(r, l) for r, l in zip(right_entry, left_entry, strict=True))
            moves = _comes_after(entry, held, self.descending)
            self.store(hole, tuple(moves.select(e, h) for e, h in zip(entry, held, strict=True)))
            return [moves.select(child, hole), moves.select(child * 2 + 1, end)]

        hole, _ = self.k.while_loop([hole, hole * 2 + 1], lambda carried: carried[1].lt(end), step)
        self.store(hole, held)


def _first_in_order(
    k: Any, tile: Any, x: Any, outs: Sequence[Any], axis: int, count: dims.Size, descending: bool
) -> None:
    shape = k.shape(x)
    index = line_index(k, tile, shape, axis)
    heap, size = _Heap(k, outs, index, descending), k.ix(count)

    def entry_of(place: Any) -> Entry:
        return k.read(x, index(place)), place.val("i64")

    def fill(i: Any, _: list[Val]) -> list[Val]:
        heap.store(i, entry_of(i))
        return []

    def order(i: Any, _: list[Val]) -> list[Val]:
        start = size // 2 - 1 - i
        heap.sift(start, size, heap.load(start))
        return []

    def offer(i: Any, _: list[Val]) -> list[Val]:
        entry = entry_of(i + size)
        # later positions lose ties, so the values alone decide
        k.when(_precedes(entry[0], heap.load(0)[0], descending), lambda: heap.sift(0, size, entry))
        return []

    def take_apart(i: Any, _: list[Val]) -> list[Val]:
        last = size - 1 - i
        worst, held = heap.load(0), heap.load(last)
        heap.store(last, worst)
        heap.sift(0, last, held)
        return []

    def whole() -> None:
        k.loop(size, [], fill)
        k.loop(size // 2, [], order)
        if count != shape[axis]:
            k.loop(k.ix(shape[axis]) - size, [], offer)
        k.loop(size - 1, [], take_apart)

    if isinstance(count, int):
        if count:
            whole()
    else:
        k.when(size.gt(0), whole)
