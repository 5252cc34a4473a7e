"""Rows of the ops that read or write at computed index."""

from __future__ import annotations

import numpy as np
from case import FLOATS, Case, Shape, integers

_MOVED = ("f32", "f64", "bf16", "f16", "i64", "i8", "bool")
_JOINED = ("f32", "f64", "bf16", "f16", "i64", "i32", "u8")
_TORCH_NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin", "mean": "mean"}


def _indices(low: int, high: int, dtype: str = "i64"):
    return lambda rng, shape, _: integers(low, high)(rng, shape, dtype)


def _distinct(size: int, axis: int):
    """Indices below `size` that are distinct along `axis`, some of them negative."""

    def make(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
        full = list(shape)
        full[axis] = size
        found = np.take(np.argsort(rng.random(full), axis=axis), np.arange(shape[axis]), axis=axis)
        return (found - size * (rng.random(shape) < 0.3)).astype(np.int64)

    return make


def _rows(low: int, sizes: tuple[int, ...]):
    """Positions of several dimensions, negative ones among them."""

    def make(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
        return np.stack([rng.integers(-size if low else 0, size, shape[:-1]) for size in sizes], axis=-1)

    return make


def _gather(t, x, indices, axis):
    picked = x.index_select(axis, (indices.long() % x.shape[axis]).reshape(-1))
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _gather_nd(t, x, indices, batch_dims=0):
    where = tuple(indices[..., d] for d in range(indices.shape[-1]))
    if batch_dims:
        spread = indices.dim() - 2
        where = (t.arange(x.shape[0]).reshape(-1, *[1] * spread), *where)
    return x[where]


def _scatter(t, x, indices, updates, axis, reduce="none"):
    indices = indices % x.shape[axis]
    if reduce == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, _TORCH_NAMES[reduce])


def _scatter_nd(t, x, indices, updates, reduce="none"):
    where = tuple(indices[..., d] for d in range(indices.shape[-1]))
    return x.index_put(where, updates, accumulate=reduce == "add") if reduce in ("none", "add") else None


def _scatter_rows(reduce: str) -> list[Case]:
    return [
        Case(
            "scatter_elements", [shape, written, written], _JOINED, {"axis": axis, "reduce": reduce},
            make={1: _distinct(shape[axis], axis) if reduce == "none" else _indices(-shape[axis], shape[axis])},
            length=written[axis], magnitude=4.0 ** (written[axis] if reduce == "mul" else 1), oracle=_scatter,
        )
        for shape, axis, written in (
            ((9,), 0, (4,)), ((5, 37), 0, (3, 37)), ((3, 40), 1, (3, 7)), ((4, 5, 6), 1, (3, 2, 4)),
            ((2, 3, 65), 0, (2, 2, 65)), ((3, 4), 1, (3, 0)),
        )
    ]


CASES: list[Case] = [
    *(
        Case(
            "gather", [shape, at], _MOVED, {"axis": axis}, make={1: _indices(-shape[axis], shape[axis])}, oracle=_gather
        )
        for shape, at, axis in (
            ((9,), (4,), 0), ((7, 37), (3,), 0), ((7, 64), (2, 3), 0), ((5, 9), (12,), 1), ((5, 9), (), 1),
            ((3, 4, 5), (2, 2), 1), ((6, 8), (0,), 0),
        )
    ),
    Case("gather", [(11, 3), (5,)], ("f32",), {"axis": 0}, make={1: _indices(-11, 11, "i32")}, oracle=_gather),
    *(
        Case(
            "gather_elements", [shape, at], _MOVED, {"axis": axis}, make={1: _indices(0, shape[axis])},
            oracle=lambda t, x, indices, axis: t.gather(x, axis, indices),
        )
        for shape, at, axis in (
            ((9,), (4,), 0), ((5, 37), (3, 37), 0), ((5, 37), (5, 64), 1), ((4, 5, 6), (3, 9, 2), 1),
        )
    ),
    *(
        Case(
            "gather_nd", [shape, at], _MOVED, {"batch_dims": batch}, make={1: _rows(-1, shape[batch : batch + at[-1]])},
            oracle=_gather_nd,
        )
        for shape, at, batch in (
            ((9,), (4, 1), 0), ((5, 37), (3, 1), 0), ((5, 7), (3, 2), 0), ((4, 5, 6), (2, 3, 2), 0),
            ((3, 5, 6), (3, 4, 1), 1), ((3, 5, 6), (3, 2), 1),
        )
    ),
    *(case for reduce in ("none", *_TORCH_NAMES) for case in _scatter_rows(reduce)),
    *(
        Case(
            "scatter_nd", [shape, at, (*at[:-1], *shape[at[-1] :])], _JOINED, {"reduce": "add"},
            make={1: _rows(-1, shape[: at[-1]])}, length=at[0], magnitude=4.0, oracle=_scatter_nd,
        )
        for shape, at in (
            ((9,), (4, 1)), ((5, 37), (3, 1)), ((5, 7), (6, 2)), ((4, 5, 6), (2, 3, 2)), ((3, 70), (2, 1)),
        )
    ),
    Case(
        "scatter_nd", [(8, 5), (3, 1), (3, 5)], _MOVED, make={1: lambda rng, shape, dtype: np.array([[6], [-7], [3]])},
        oracle=_scatter_nd,
    ),
    *(
        Case(
            "scatter_nd", [(5, 7), (6, 2), (6,)], _JOINED, {"reduce": reduce}, make={1: _rows(-1, (5, 7))}, length=6,
            magnitude=4.0**6,
        )
        for reduce in ("mul", "max", "min")
    ),
    Case(
        "scatter_lines", [(2, 5, 70), (2, 3, 70), (2, 3, 70)], FLOATS, {"reduce": "add"}, make={1: _indices(-5, 5)},
        length=3, magnitude=4.0,
    ),
    Case("scatter_lines", [(2, 5, 70), (2, 3, 1), (2, 3, 70)], FLOATS, {"reduce": "none"}, make={1: _indices(-5, 5)}),
]
