"""Writing at computed index into a copy of a tensor.

Both ops come down to `scatter_lines`, which owns the loops: [O, A, I] written along A.
"""

from __future__ import annotations

import numpy as np

from . import dims
from .gather import wrapped_index
from .op import op
from .shape import check_axis
from .types import DTYPES

REDUCTIONS = ("none", "add", "mul", "max", "min")
_NUMPY_AT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
# A tile takes this many neighbouring lines: whole cache lines, and room for vectors.
_LINES_PER_TILE = 64


def _write(result: np.ndarray, where: tuple, updates: np.ndarray, reduce: str) -> np.ndarray:
    if reduce == "none":
        result[where] = updates
    elif reduce in _NUMPY_AT:
        _NUMPY_AT[reduce].at(result, where, updates)
    else:
        raise ValueError(f"reduce '{reduce}' is none of {', '.join(REDUCTIONS)}")
    return result


def _check_reduce(reduce: str, known: tuple[str, ...]) -> None:
    if reduce not in known:
        raise ValueError(f"reduce '{reduce}' is none of {', '.join(known)}")


@op("special")
def scatter_lines(x: T[O, A, I], indices: I[O, J, L], updates: T[O, J, I], *, reduce: str = "none") -> T[O, A, I]:
    """`x` with updates[o, j, i] written at [o, indices[o, j, i], i], in the order of j; L is I or 1.

    Negative indices count from the end. reduce: how an update joins what is there. Source: mlc.
    """
    where = np.broadcast_to(indices.astype(np.int64), updates.shape)
    outer, inner = np.arange(x.shape[0])[:, None, None], np.arange(x.shape[2])
    return _write(x.copy(), (outer, where, inner), updates, reduce)


@scatter_lines.rule("infer")
def _(x, indices, updates, *, reduce):
    _check_reduce(reduce, REDUCTIONS)
    if indices.shape[2] not in (1, x.shape[2]):
        raise ValueError(f"indices are {indices}, expected a last size of 1 or {x.shape[2]}")
    return x


@scatter_lines.rule("in_place")
def _(*, reduce):
    """A tile writes only lines of x that it alone reads."""
    return 0


@scatter_lines.rule("tiles")
def _(x, indices, updates, *, reduce):
    return x.shape[0] * dims.ceildiv(x.shape[2], _LINES_PER_TILE)


@scatter_lines.rule("kernel")
def _(k, tile, ins, outs, *, reduce):
    x, indices, updates = ins
    (result,) = outs
    _, length, lines = k.shape(x)
    outer, block = k.delinearize(tile, [k.shape(x)[0], dims.ceildiv(lines, _LINES_PER_TILE)])
    first = block * _LINES_PER_TILE
    count = (k.ix(lines) - first).minimum(_LINES_PER_TILE)
    is_shared = k.shape(indices)[2] == 1

    def copy(a, _):
        def one(i, _):
            k.write(result, [outer, a, first + i], k.read(x, [outer, a, first + i]))
            return []

        return k.loop(count, [], one)

    k.when(k.lies_elsewhere(x, result), lambda: k.loop(length, [], copy))

    def update(j, _):
        def one(i, _):
            line = first + i
            target = wrapped_index(k, k.read(indices, [outer, j, k.ix(0) if is_shared else line]), length)
            value = k.read(updates, [outer, j, line])
            if reduce != "none":
                value = _joined(reduce, k.load_out(result, [outer, target, line]), value)
            k.write(result, [outer, target, line], value)
            return []

        return k.loop(count, [], one)

    k.loop(k.shape(indices)[1], [], update)


def _joined(reduce: str, old, new):
    if reduce == "add":
        return old + new if not old.is_bool else old | new
    if reduce == "mul":
        return old * new if not old.is_bool else old & new
    return old.maximum(new) if reduce == "max" else old.minimum(new)


@op("composite")
def scatter_elements(x: T, indices: I, updates: T, *, axis: int, reduce: str = "none") -> T:
    """`x` with updates[i, j, k] written at [i, indices[i, j, k], k], for axis 1, one after the other.

    `indices` and `updates` have one shape, whose sizes are at most those of `x` but along `axis`. reduce: "none" (last
    wins), "add", "mul", "max", "min", or "mean" of what was there and all updates. Source: ONNX ScatterElements-18;
    ATen scatter, scatter_reduce.
    """
    where = list(np.ogrid[tuple(slice(0, n) for n in indices.shape)])
    where[axis] = indices.astype(np.int64)
    if reduce != "mean":
        return _write(x.copy(), tuple(where), updates, reduce)
    wide = x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)
    total = _write(wide, tuple(where), updates.astype(wide.dtype), "add")
    count = _write(np.ones(x.shape, np.int64), tuple(where), np.ones(updates.shape, np.int64), "add")
    return (np.floor_divide(total, count) if x.dtype.kind in "iu" else total / count).astype(x.dtype)


@scatter_elements.rule("infer")
def _(x, indices, updates, *, axis, reduce):
    _check_reduce(reduce, (*REDUCTIONS, "mean"))
    check_axis(axis, x.rank)
    if indices.shape != updates.shape or indices.rank != x.rank:
        raise ValueError(f"x is {x}, indices are {indices}, updates {updates}: one shape for both, and the rank of x")
    for d, (size, count) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if d != axis and isinstance(count - size, int) and count - size > 0:
            raise ValueError(f"indices have size {count} in dimension {d}, x only {size}")
    return x


def _cut(g, x, starts: dict, limits: dict):
    """`x` with some dimensions cut to [start, limit)."""
    rank = len(x.shape)
    return g.slice(
        x, starts=[starts.get(d, 0) for d in range(rank)], limits=[limits.get(d, x.shape[d]) for d in range(rank)],
        steps=[1] * rank,
    )


@scatter_elements.rule("lower")
def _(g, x, indices, updates, *, axis, reduce):
    if reduce == "mean":
        # Summed and counted in f32 or wider: the op's own narrow type may hold neither.
        counts = "i64" if DTYPES[x.dtype].kind in "iu" else ("f64" if x.dtype == "f64" else "f32")
        start, more = g.cast(x, dtype=counts), g.cast(updates, dtype=counts)
        total = g.scatter_elements(start, indices, more, axis=axis, reduce="add")
        ones = g.full(shape=list(x.shape), value=1.0, dtype=counts)
        one_each = g.full(shape=list(updates.shape), value=1.0, dtype=counts)
        count = g.scatter_elements(ones, indices, one_each, axis=axis, reduce="add")
        divide = g.floor_div if counts == "i64" else g.div
        return g.cast(divide(total, count), dtype=x.dtype)
    smaller = [d for d in range(len(x.shape)) if d != axis and indices.shape[d] != x.shape[d]]
    if smaller:
        # Only a corner of `x` has lines that are written: write there, and put the rest back around it.
        inner = _cut(g, x, {}, {d: indices.shape[d] for d in smaller})
        result = g.scatter_elements(inner, indices, updates, axis=axis, reduce=reduce)
        for at, d in enumerate(smaller):
            rest = _cut(g, x, {d: indices.shape[d]}, {e: indices.shape[e] for e in smaller[at + 1 :]})
            result = g.concat(result, rest, axis=d)
        return result
    lines = [dims.product(x.shape[:axis]), x.shape[axis], dims.product(x.shape[axis + 1 :])]
    written = [lines[0], indices.shape[axis], lines[2]]
    result = g.scatter_lines(
        g.reshape(x, shape=lines), g.reshape(indices, shape=written), g.reshape(updates, shape=written), reduce=reduce
    )
    return g.reshape(result, shape=list(x.shape))


@op("composite")
def scatter_nd(x: T, indices: I, updates: T, *, reduce: str = "none") -> T:
    """`x` with updates[i, ...] written at x[indices[i, :], ...], one after the other.

    `indices` is [*R, depth], `updates` [*R, the sizes of x after the first depth]; negative indices count from the end.
    Source: ONNX ScatterND-18; ATen index_put.
    """
    where = tuple(indices[..., d].astype(np.int64) for d in range(indices.shape[-1]))
    return _write(x.copy(), where, updates, reduce)


@scatter_nd.rule("infer")
def _(x, indices, updates, *, reduce):
    _check_reduce(reduce, REDUCTIONS)
    if indices.rank == 0 or not isinstance(indices.shape[-1], int) or indices.shape[-1] > x.rank:
        raise ValueError(f"indices are {indices}: the last size must be a number up to {x.rank}, the rank of x")
    expected = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    if updates.shape != expected:
        raise ValueError(f"updates are {updates}, expected sizes {list(expected)}")
    return x


@scatter_nd.rule("lower")
def _(g, x, indices, updates, *, reduce):
    depth = indices.shape[-1]
    count, inner = dims.product(indices.shape[:-1]), dims.product(x.shape[depth:])
    rows = g.reshape(g.cast(indices, dtype="i64"), shape=[count, depth])
    row = g.full(shape=[count, 1], value=0.0, dtype="i64")
    for d in range(depth):
        size = g.dim_value(value=x.shape[d], dtype="i64")
        one = _cut(g, rows, {1: d}, {1: d + 1})
        zero = g.scalar(0, "i64")
        one = g.where(g.lt(one, zero), g.add(one, size), one)
        one = g.minimum(g.maximum(one, zero), g.sub(size, g.scalar(1, "i64")))
        row = g.add(g.mul(row, size), one)
    result = g.scatter_lines(
        g.reshape(x, shape=[1, dims.product(x.shape[:depth]), inner]), g.reshape(row, shape=[1, count, 1]),
        g.reshape(updates, shape=[1, count, inner]), reduce=reduce,
    )
    return g.reshape(result, shape=list(x.shape))
