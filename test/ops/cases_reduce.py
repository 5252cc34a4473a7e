"""Rows of the reductions and the scans."""

from __future__ import annotations

from case import ALL, FLOATS, INTS, SIGNED, Case, Shape, values

_NUMBERS = FLOATS + INTS
_TORCH_INTS = (*SIGNED, "u8")

# shape, axes: inner, outer, middle, all, one element, several apart, vector sizes and odd ones
_OVER: tuple[tuple[Shape, list[int]], ...] = (
    ((5,), [0]), ((3, 64), [1]), ((3, 37), [0]), ((2, 5, 7), [1]), ((2, 3, 131), [0, 2]), ((4, 1, 9), [0, 1, 2]),
    ((1, 1), [1]), ((3, 0, 2), [0]), ((2, 17, 3), [1, 2]),
)


def _length(shape: Shape, axes: list[int]) -> int:
    count = 1
    for axis in axes:
        count *= shape[axis]
    return count


def _rows(op: str, oracle, **row) -> list[Case]:
    return [
        Case(op, [shape], attrs={"axes": axes, "keepdims": keepdims}, length=_length(shape, axes), oracle=oracle, **row)
        for shape, axes in _OVER
        for keepdims in (False, True)
    ]


def _extreme(name: str):
    return lambda t, x, axes, keepdims: getattr(t, name)(x, axes, keepdim=keepdims)


def _sum(t, x, axes, keepdims):
    return t.sum(x, axes, keepdim=keepdims, dtype=x.dtype)


def _product(t, x, axes, keepdims):
    total = x
    for axis in sorted(axes, reverse=True):
        total = t.prod(total, axis, keepdim=keepdims, dtype=x.dtype)
    return total


def _logical(name: str):
    return lambda t, x, axes, keepdims: getattr(t, name)(x, axes, keepdim=keepdims)


def _scan(name: str):
    def oracle(t, x, axis, exclusive=False, reverse=False):
        y = t.flip(x, [axis]) if reverse else x
        if exclusive:
            first = t.full_like(y.narrow(axis, 0, 1), 0 if name == "cumsum" else 1)
            y = t.cat([first, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
        y = getattr(t, name)(y, axis) if name in ("cummax", "cummin") else getattr(t, name)(y, axis, dtype=x.dtype)
        y = y if isinstance(y, t.Tensor) else y[0]
        return t.flip(y, [axis]) if reverse else y

    return oracle


CASES: list[Case] = [
    *_rows("sum", _sum, dtypes=_NUMBERS, magnitude=4.0),
    *_rows("prod", _product, dtypes=FLOATS, domain=(0.9, 1.1), ulps=64.0),
    *_rows("prod", _product, dtypes=INTS),
    *_rows("mean", lambda t, x, axes, keepdims: t.mean(x, axes, keepdim=keepdims), magnitude=1.0),
    *_rows("max", _extreme("amax"), dtypes=_NUMBERS),
    *_rows("min", _extreme("amin"), dtypes=_NUMBERS),
    *_rows("any", _logical("any"), dtypes=("bool",)),
    *_rows("all", _logical("all"), dtypes=("bool",)),
    Case("mean", [(4, 9)], SIGNED, {"axes": [1]}, domain=(-99, 99), name="integers"),
    *[
        Case(op, [(40, 3)], FLOATS, {"axes": [1]}, special=True, length=3, magnitude=4.0, oracle=oracle, name="special")
        for op, oracle in (
            ("sum", lambda t, x, axes: t.sum(x, axes)), ("max", lambda t, x, axes: t.amax(x, axes)),
            ("min", lambda t, x, axes: t.amin(x, axes)),
        )
    ],
    Case("sum", [(2, 4099)], FLOATS, {"axes": [1]}, length=4099, magnitude=1.0, domain=(0.0, 1.0), name="long",
         oracle=lambda t, x, axes: t.sum(x, axes)),
    Case("max", [(3, 0)], _NUMBERS, {"axes": [1]}, name="empty"),
    Case("mean", [(3, 0)], FLOATS, {"axes": [1]}, name="empty", oracle=lambda t, x, axes: t.mean(x, axes)),
    # positions
    *[
        Case(op, [shape], (*FLOATS, *_TORCH_INTS), {"axis": axis, "keepdims": keepdims}, special=is_special,
             oracle=lambda t, x, axis, keepdims, name=op: _first(t, x, axis, keepdims, name))
        for op in ("argmax", "argmin")
        for shape, axis in (((5,), 0), ((3, 64), 1), ((37, 3), 0), ((2, 5, 7), 1))
        for keepdims in (False, True)
        for is_special in (False, True)
    ],
    Case("argmax", [(3, 8)], ALL, {"axis": 1}, make={0: values(0, 1, 1, 0, 1, 0, 0, 0)}, name="ties"),
    # scans
    *[
        Case(op, [shape], dtypes, {"axis": axis, "exclusive": exclusive, "reverse": reverse}, length=shape[axis],
             magnitude=magnitude, domain=domain, ulps=ulps,
             oracle=_scan(op) if shape[axis] and not (exclusive and op in ("cummax", "cummin")) else None)
        for op, dtypes, domain, magnitude, ulps in (
            ("cumsum", (*FLOATS, *_TORCH_INTS), (-4.0, 4.0), 4.0, 4.0),
            ("cumprod", FLOATS, (0.9, 1.1), 0.0, 64.0),
            ("cumprod", _TORCH_INTS, (-3, 3), 0.0, 4.0),
            ("cummax", (*FLOATS, *_TORCH_INTS), (-4.0, 4.0), 0.0, 4.0),
            ("cummin", (*FLOATS, *_TORCH_INTS), (-4.0, 4.0), 0.0, 4.0),
        )
        for shape, axis in (((5,), 0), ((3, 37), 1), ((3, 4, 2), 1), ((2, 0), 1))
        for exclusive in (False, True)
        for reverse in (False, True)
    ],
    *[
        Case(op, [(60, 2)], FLOATS, {"axis": 1}, special=True, oracle=_scan(op), name="special")
        for op in ("cumsum", "cummax", "cummin")
    ],
]


def _first(t, x, axis: int, keepdims: bool, name: str):
    """torch leaves open which of equal extremes it gives; equality with the extreme settles it."""
    wanted = (t.amax if name == "argmax" else t.amin)(x, axis, keepdim=True)
    is_extreme = (x == wanted) | (x != x)
    position = t.argmax(is_extreme.to(t.int8), axis, keepdim=keepdims)
    return position


