"""Rows of the ops whose results are as long as data say; a row's size is what its data come to."""

from __future__ import annotations

import numpy as np
from case import ALL, FLOATS, Case
from mlc.dialects.types import DTYPES

_FOUND = 11


def _some(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """_FOUND elements other than 0."""
    flat = np.zeros(int(np.prod(shape)), DTYPES[dtype].numpy)
    flat[rng.choice(flat.size, _FOUND, replace=False)] = 1
    return flat.reshape(shape)


def _all_zero(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.zeros(shape, DTYPES[dtype].numpy)


def _nonzero(t, x, size):
    return t.argwhere(x), t.tensor(size)


def _number(value):
    return lambda rng, shape, dtype: np.full(shape, value, DTYPES[dtype].numpy)


def _grid_boxes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Unit boxes in a column, every second one a tenth above the one before it: their overlap is 0.9 / 1.1."""
    top = np.arange(shape[1]) // 2 * 2.0 + np.arange(shape[1]) % 2 * 0.125
    corners = np.stack([top, np.zeros_like(top), top + 1, np.ones_like(top)], -1)
    return np.broadcast_to(corners, shape).astype(DTYPES[dtype].numpy)


def _falling(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.broadcast_to(np.linspace(1, 0.25, shape[-1]), shape).astype(DTYPES[dtype].numpy)


def _in_order(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.broadcast_to(np.arange(shape[-1]), shape).astype(np.int64)


def _every_second(t, boxes, scores, order, most, iou, least, size):
    """Of each pair the first, up to `most` a class: what _grid_boxes must give."""
    batches, classes, count = scores.shape
    kept = range(0, count, 2)[: int(most)]
    rows = [(b, c, box) for b in range(batches) for c in range(classes) for box in kept]
    return t.tensor(rows, dtype=t.int64).reshape(-1, 3), t.tensor(len(rows))


CASES: list[Case] = [
    Case("read_size", [()], ("i64",), {"size": 7, "bound": 7}, make={0: _number(7)}, oracle=lambda t, x, **_: x),
    *[
        Case("nonzero", [shape], ALL, {"size": _FOUND}, make={0: _some}, oracle=_nonzero)
        for shape in ((37,), (5, 7), (3, 2, 9))
    ],
    Case("nonzero", [(4, 5)], ("f32", "bool"), {"size": 0}, make={0: _all_zero}, oracle=_nonzero, name="none"),
    Case("nonzero", [(4, 0)], ("f32",), {"size": 0}, oracle=_nonzero, name="empty"),
    *[
        Case(
            "non_max_suppression", [(2, 10, 4), (2, 3, 10), (2, 3, 10), (), (), ()], FLOATS,
            {"size": 6 * min(most, 5)}, oracle=_every_second, name=f"most{most}",
            make={
                0: _grid_boxes, 1: _falling, 2: _in_order, 3: _number(most), 4: _number(0.5), 5: _number(0.125),
            },
        )
        for most in (0, 3, 10)
    ],
]
