"""Rows of sort and topk."""

from __future__ import annotations

from case import FLOATS, INTS, SIGNED, Case, integers

_TORCH_INTS = (*SIGNED, "u8")


def _sort(t, x, axis, descending):
    return t.sort(x, dim=axis, descending=descending, stable=True)


def _topk(t, x, k, axis, largest):
    """The head of a stable sort: torch.topk leaves the order of equal elements open."""
    values, positions = t.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), positions.narrow(axis, 0, k)


_TIES = {0: integers(0, 4)}

CASES: list[Case] = [
    *[
        Case("sort", [shape], (*FLOATS, *INTS, "bool"), {"axis": axis, "descending": descending}, make=make, name=name,
             oracle=_sort)
        for shape, axis in (((1,), 0), ((37,), 0), ((3, 64), 1), ((5, 2, 3), 0), ((2, 0), 1))
        for descending in (False, True)
        for make, name in (({}, ""), (_TIES, "ties"))
    ],
    *[
        Case("sort", [(4, 29)], FLOATS, {"axis": 1, "descending": descending}, special=True, oracle=_sort, name="nan")
        for descending in (False, True)
    ],
    *[
        Case("topk", [shape], (*FLOATS, *_TORCH_INTS), {"k": k, "axis": axis, "largest": largest}, make=make, name=name,
             oracle=_topk)
        for shape, axis, k in (
            ((7,), 0, 1), ((37,), 0, 5), ((3, 64), 1, 64), ((3, 64), 1, 63), ((9, 2, 3), 0, 4), ((5,), 0, 0),
        )
        for largest in (False, True)
        for make, name in (({}, ""), (_TIES, "ties"))
    ],
    *[
        Case("topk", [(4, 29)], FLOATS, {"k": 6, "axis": 1, "largest": largest}, special=True, oracle=_topk, name="nan")
        for largest in (False, True)
    ],
]
