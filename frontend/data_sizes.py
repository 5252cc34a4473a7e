"""Tensors as long as data say, for both importers: what they are made of, with each size read before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlc.dialects import dims
from mlc.dialects.dims import Size
from mlc.dialects.op import OpError


@dataclass(frozen=True)
class DataSize:
    """A size that data decide, at most `most`; `most` equals `size` where the model needs it to be a size known
    before."""

    size: Size
    most: Size


def read_size(g: Any, value: Any, wanted: DataSize) -> None:
    """From here on `wanted.size` is what the integer tensor `value`, of one element, holds."""
    if g.open_loops:
        raise OpError("a size that data decide, in a loop whose trip count data decide; move one out of the other")
    value = value if value.dtype == "i64" else g.op("cast", value, dtype="i64")
    g.op("read_size", g.op("reshape", value, shape=[]) if value.shape else value, size=wanted.size, bound=wanted.most)


def nonzero(g: Any, x: Any, wanted: DataSize) -> Any:
    """i64[wanted, rank]: where `x` is not 0."""
    rows, count = g.op("nonzero", x, size=wanted.size)
    read_size(g, count, wanted)
    return rows


def positions(g: Any, mask: Any, wanted: DataSize) -> Any:
    """i64[wanted]: where `mask` is not 0, counted over its elements in order."""
    flat = g.op("reshape", mask, shape=[dims.product(mask.shape)])
    return g.op("reshape", nonzero(g, flat, wanted), shape=[wanted.size])


def compress(g: Any, x: Any, mask: Any, wanted: DataSize, axis: int = 0) -> Any:
    """The slices of `x` along `axis` where `mask` is not 0; `mask` covers one axis, or several from `axis` on."""
    covered = dims.product(x.shape[axis : axis + len(mask.shape)])
    flat = g.op("reshape", x, shape=[*x.shape[:axis], covered, *x.shape[axis + len(mask.shape) :]])
    return g.op("gather", flat, positions(g, mask, wanted), axis=axis)


@dataclass(frozen=True)
class Unique:
    """Distinct rows in order, where each comes first, which each row of the input is, and how often each occurs."""

    values: Any
    first: Any
    inverse: Any
    counts: Any


def unique(g: Any, x: Any, wanted: DataSize, *, is_sorted: bool = True, consecutive: bool = False) -> Unique:
    """Distinct elements of `x` [n], or rows of `x` [n, m], ascending, or in order of their first occurrence.

    `consecutive` drops only what equals the row before it.
    """
    rows = x.shape[0]
    place = g.op("iota", size=rows, dtype="i64")
    order = place if consecutive else _sorted_order(g, x, place)
    values = x if consecutive else g.op("gather", x, order, axis=0)
    zero, one = (g.scalar(number, "i64") for number in (0, 1))
    before = g.op("gather", values, g.op("maximum", g.op("sub", place, one), zero), axis=0)
    differs = g.op("ne", values, before)
    if len(x.shape) == 2:
        wide = g.op("cast", differs, dtype="i64")
        differs = g.op("gt", g.op("sum", wide, axes=[1], keepdims=False), zero)
    is_first = g.op("logical_or", differs, g.op("eq", place, zero))
    starts = positions(g, is_first, wanted)
    group = g.op("sub", g.op("cumsum", g.op("cast", is_first, dtype="i64"), axis=0), one)
    found = Unique(
        g.op("gather", values, starts, axis=0), g.op("gather", order, starts, axis=0),
        _scattered(g, rows, order, group), _counted(g, wanted.size, group, rows),
    )
    return found if is_sorted or consecutive else _by_first(g, found, wanted.size)


def _sorted_order(g: Any, x: Any, order: Any) -> Any:
    """Positions that sort elements, or rows by their first column, then the next; stable."""
    if len(x.shape) == 1:
        return g.op("sort", x, axis=0)[1]
    rows, columns = x.shape
    for column in reversed(range(columns)):
        part = g.op("slice", x, starts=[0, column], limits=[rows, column + 1], steps=[1, 1])
        key = g.op("gather", g.op("reshape", part, shape=[rows]), order, axis=0)
        order = g.op("gather", order, g.op("sort", key, axis=0)[1], axis=0)
    return order


def _scattered(g: Any, size: Size, at: Any, values: Any) -> Any:
    zeros = g.op("full", shape=[size], value=0, dtype="i64")
    return g.op("scatter_elements", zeros, at, values, axis=0, reduce="none")


def _counted(g: Any, size: Size, group: Any, rows: Size) -> Any:
    zeros, ones = (g.op("full", shape=[n], value=number, dtype="i64") for number, n in ((0, size), (1, rows)))
    return g.op("scatter_elements", zeros, group, ones, axis=0, reduce="add")


def _by_first(g: Any, found: Unique, size: Size) -> Unique:
    order = g.op("sort", found.first, axis=0)[1]
    values, first, counts = (g.op("gather", x, order, axis=0) for x in (found.values, found.first, found.counts))
    renamed = _scattered(g, size, order, g.op("iota", size=size, dtype="i64"))
    return Unique(values, first, g.op("gather", renamed, found.inverse, axis=0), counts)
