"""Rows of the ops that move elements by position: views, concat, pad, flip."""

from __future__ import annotations

from case import ALL, FLOATS, INTS, Case

_MOVED = ("f32", "f64", "bf16", "f16", "i64", "i8", "u16", "bool")


def _pad(t, x, low, high, mode="constant", value=0.0):
    widths = [w for pair in reversed(list(zip(low, high, strict=True))) for w in pair]
    if mode == "constant":
        return t.nn.functional.pad(x, widths, value=value)
    # torch pads trailing dimensions only in these modes, after a batch and a channel dimension.
    moved = len(low) - 2
    return t.nn.functional.pad(x, widths[: 2 * moved], mode=mode)


def _slice(t, x, starts, limits, steps):
    for d, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
        x = x.index_select(d, t.arange(start, limit, step))
    return x


def _pads(shape, low, high, mode, dtypes=FLOATS) -> Case:
    return Case("pad", [shape], dtypes, {"low": low, "high": high, "mode": mode}, oracle=_pad)


CASES: list[Case] = [
    *(
        Case("reshape", [shape], _MOVED, {"shape": to}, oracle=lambda t, x, shape: x.reshape(shape))
        for shape, to in (((6, 4), [3, 8]), ((5,), [1, 5, 1]), ((), [1]), ((2, 0, 3), [0, 7]), ((4, 3, 5), [60]))
    ),
    *(
        Case("transpose", [shape], _MOVED, {"perm": perm}, oracle=lambda t, x, perm: x.permute(perm))
        for shape, perm in (
            ((5, 7), [1, 0]), ((64, 48), [1, 0]), ((2, 3, 37), [0, 2, 1]), ((2, 3, 5, 7), [0, 2, 3, 1]),
            ((2, 3, 4, 5), [3, 1, 0, 2]), ((1, 9), [1, 0]), ((3,), [0]),
        )
    ),
    *(
        Case("broadcast_to", [shape], _MOVED, {"shape": to}, oracle=lambda t, x, shape: x.expand(shape))
        for shape, to in (((), [3, 5]), ((1, 7), [4, 7]), ((5, 1), [2, 5, 37]), ((3, 1, 1), [3, 2, 64]), ((4,), [4]))
    ),
    *(
        Case("slice", [shape], _MOVED, {"starts": starts, "limits": limits, "steps": steps}, oracle=_slice)
        for shape, starts, limits, steps in (
            ((9,), [2], [7], [1]), ((9,), [1], [9], [3]), ((9,), [8], [-1], [-1]), ((9,), [7], [0], [-3]),
            ((4, 64), [1, 16], [3, 48], [1, 1]), ((4, 37), [0, 1], [4, 36], [2, 2]),
            ((3, 5), [2, 4], [-1, 1], [-1, -1]), ((6, 5), [2, 0], [2, 5], [1, 1]),
            ((2, 3, 40), [0, 1, 0], [2, 2, 40], [1, 1, 1]),
        )
    ),
    *(
        Case("concat", shapes, _MOVED, {"axis": axis}, oracle=lambda t, *xs, axis: t.cat(xs, axis))
        for shapes, axis in (
            ([(5,)], 0), ([(5,), (7,)], 0), ([(2, 3), (4, 3), (1, 3)], 0), ([(3, 5), (3, 64), (3, 1)], 1),
            ([(2, 3, 7), (2, 1, 7)], 1), ([(3, 0), (3, 2)], 1), ([(2, i + 1) for i in range(19)], 1),
        )
    ),
    Case("pad", [(5, 7)], ALL, {"low": [1, 0], "high": [0, 3], "mode": "constant", "value": 1.0}, oracle=_pad),
    _pads((3, 37), [0, 0], [0, 0], "constant"),
    _pads((2, 3, 9), [0, 2, 5], [1, 0, 4], "constant", INTS),
    *(
        _pads(shape, low, high, mode)
        for mode in ("reflect", "replicate", "circular")
        for shape, low, high in (
            ((2, 3, 9), [0, 0, 4], [0, 0, 3]), ((2, 3, 5, 37), [0, 0, 2, 1], [0, 0, 1, 8]),
            ((1, 1, 4), [0, 0, 0], [0, 0, 3]),
        )
    ),
    _pads((1, 2, 1), [0, 0, 4], [0, 0, 40], "replicate"),
    *(
        Case("flip", [shape], _MOVED, {"axes": axes}, oracle=lambda t, x, axes: x.flip(axes))
        for shape, axes in (((7,), [0]), ((3, 37), [1]), ((3, 64), [0]), ((2, 3, 5), [0, 2]), ((3, 4), []))
    ),
]
