"""Rows of the markers of loops, each by itself, where they copy; whole loops are in test/frontend/test_loops.py."""

from __future__ import annotations

from case import ALL, Case

_SHAPES = ((), (37,), (3, 5, 2))


def _same(t, *operands, **_):
    return operands[-1]


CASES: list[Case] = [
    *[
        Case(op, [shape] * operands, ALL, {"loop": number, "state": 0}, oracle=_same)
        for number, (op, operands) in enumerate((("loop_begin", 1), ("loop_next", 1), ("loop_end", 2)))
        for shape in _SHAPES
    ],
    Case("loop_test", [()], ("bool",), {"loop": 9}, oracle=_same),
]
