"""Sizes that data decide: reading a number as a size, and compacting ops, whose results are as long as a count says.

A compacting op is sequential, one tile, and writes its rows one after another from the start, so that its result lies
dense whatever the count; memory is planned for the most rows there can be. `read_size` follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import dims
from .op import op
from .pointwise_numpy import widened
from .types import TensorType
from .val import Val


@op("special")
def read_size(x: i64[()], *, size: Size, bound: Size) -> i64[()]:
    """Gives the symbol `size` the value of `x`, which is from its range and at most `bound`; any other ends the run.

    Where `bound` equals `size`, that is a size known before, and `x` must be equal to it. Source: torch's unbacked
    symbols (`aten.item`, `torch._check`).
    """
    return np.asarray(x)


@op("special")
def nonzero(x: U[*S], *, size: Size) -> tuple[i64[N, R], i64[()]]:
    """Positions of elements other than 0, in order, [size, rank]; and how many there are.

    Source: ATen nonzero; ONNX NonZero-13 (transposed).
    """
    found = np.argwhere(widened(np.asarray(x)) != 0).astype(np.int64)
    return found, np.asarray(len(found), np.int64)


@op("special")
def non_max_suppression(
    boxes: F[B, N, 4], scores: F[B, C, N], order: i64[B, C, N], most: i64[()], iou: F[()], least: F[()], *, size: Size,
    centered: bool = False,
) -> tuple[i64[K, 3], i64[()]]:
    """Picks boxes of each batch and class from the best score down, at most `most`, passing over those that overlap a
    picked one by more than `iou` or score `least` and less: (batch, class, box), [size, 3]; and how many.

    `order` holds the boxes of each class from the best score down. Boxes are two corners (y, x), or `centered` (x, y,
    width, height). Source: ONNX NonMaxSuppression-11.
    """
    found: list[tuple[int, int, int]] = []
    corners = _corners(np.asarray(boxes, np.float64), centered)
    for batch, of_class in np.ndindex(*order.shape[:2]):
        kept: list[int] = []
        for box in order[batch, of_class]:
            if len(kept) >= most or not scores[batch, of_class, box] > least:
                break
            if all(_overlap(corners[batch, box], corners[batch, other]) <= iou for other in kept):
                kept.append(int(box))
        found += [(batch, of_class, box) for box in kept]
    return np.asarray(found, np.int64).reshape(-1, 3), np.asarray(len(found), np.int64)


def _corners(boxes: np.ndarray, centered: bool) -> np.ndarray:
    a, b, c, d = np.moveaxis(boxes, -1, 0)
    if centered:
        return np.stack([b - d / 2, a - c / 2, b + d / 2, a + c / 2], -1)
    return np.stack([np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)], -1)


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two boxes given by their corners; 0 where both are empty."""
    height, width = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = height * width
    union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both
    return both / union if union > 0 else 0.0


@nonzero.rule("infer")
def _(x: TensorType, *, size: dims.Size) -> list[TensorType]:
    return [TensorType("i64", (size, x.rank)), TensorType("i64", ())]


@non_max_suppression.rule("infer")
def _(*_types: TensorType, size: dims.Size, centered: bool) -> list[TensorType]:
    return [TensorType("i64", (size, 3)), TensorType("i64", ())]


for _definition in (read_size, nonzero, non_max_suppression):
    _definition.rule("tiles")(lambda *_types, **_: 1)


@read_size.rule("kernel")
def _(k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, size: dims.Size, bound: dims.Size) -> None:
    k.write(outs[0], [], k.read(ins[0], []))


@nonzero.rule("kernel")
def _(k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, size: dims.Size) -> None:
    (x,), (rows, count) = ins, outs
    shape = k.shape(x)

    def element(i: Any, carried: list[Val]) -> list[Val]:
        index = k.delinearize(i, shape)
        value = k.read(x, index)
        is_found = value if value.dtype == "bool" else value.ne(k.constant(0, value.dtype))

        def write() -> None:
            for axis, position in enumerate(index):
                k.write(rows, [carried[0], axis], position.val("i64"))

        # Beyond `size` nothing is written; the count is refused when it is read.
        k.when(is_found & carried[0].lt(k.ix(size).val("i64")), write)
        return [is_found.select(carried[0] + 1, carried[0])]

    total = k.loop(dims.product(shape), [k.constant(0, "i64")], element)
    k.write(count, [], total[0])


Box = list[Val]  # lowest y and x, highest y and x


def _read_box(k: Any, boxes: Any, batch: Any, box: Any, centered: bool) -> Box:
    a, b, c, d = (k.read(boxes, [k.ix(batch), k.ix(box), k.ix(i)]) for i in range(4))
    if centered:
        half = k.constant(0.5, a.dtype)
        return [b - d * half, a - c * half, b + d * half, a + c * half]
    return [a.minimum(c), b.minimum(d), a.maximum(c), b.maximum(d)]


def _overlaps(k: Any, a: Box, b: Box, iou: Val) -> Val:
    """Whether intersection over union is above `iou`; no division, so that empty boxes overlap nothing."""
    zero = k.constant(0, iou.dtype)
    height = (a[2].minimum(b[2]) - a[0].maximum(b[0])).maximum(zero)
    width = (a[3].minimum(b[3]) - a[1].maximum(b[1])).maximum(zero)
    both = height * width
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return union.gt(zero) & both.gt(iou * union)


@non_max_suppression.rule("kernel")
def _(k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, size: dims.Size, centered: bool) -> None:
    boxes, scores, order, most, iou, least = ins
    rows, count = outs
    batches, classes, box_count = k.shape(scores)
    limit, overlap, threshold = k.read(most, []), k.read(iou, []), k.read(least, [])
    box_end = k.ix(box_count).val("i64")

    def overlaps_picked(batch: Any, box: Val, first: Val, end: Val) -> Val:
        candidate = _read_box(k, boxes, batch, box, centered)

        def compare(carried: list[Val]) -> list[Val]:
            other = _read_box(k, boxes, batch, k.load_out(rows, [carried[0], 2]), centered)
            stop = _overlaps(k, candidate, other, overlap)
            return [stop.select(end, carried[0] + 1), stop.select(carried[1] + 1, carried[1])]

        zero = k.constant(0, "i64")
        _, hits = k.while_loop([first, zero], lambda carried: carried[0].lt(end), compare)
        return hits.gt(zero)

    def one_class(number: Any, carried: list[Val]) -> list[Val]:
        batch, of_class = k.delinearize(number, [batches, classes])
        first = carried[0]

        def goes_on(state: list[Val]) -> Val:
            return state[0].lt(box_end) & (state[1] - first).lt(limit)

        def offer(state: list[Val]) -> list[Val]:
            place, end = state
            box = k.read(order, [batch, of_class, k.ix(place)])
            is_good = k.read(scores, [batch, of_class, k.ix(box)]).gt(threshold)
            is_picked = is_good & overlaps_picked(batch, box, first, end).invert()

            def write() -> None:
                for column, value in enumerate((batch.val("i64"), of_class.val("i64"), box)):
                    k.write(rows, [end, column], value)

            k.when(is_picked & end.lt(k.ix(size).val("i64")), write)
            return [is_good.select(place + 1, box_end), is_picked.select(end + 1, end)]

        return [k.while_loop([k.constant(0, "i64"), first], goes_on, offer)[1]]

    total = k.loop(dims.product([batches, classes]), [k.constant(0, "i64")], one_class)
    k.write(count, [], total[0])
