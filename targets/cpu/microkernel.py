"""The register tile: rows of A against a packed panel of B, all sums in registers.

matmul, conv and attention are this loop with different row pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import load_scalar, load_vector, multiply_add, offset_ptr, prefetch, splat, sum_dtype, zero_vector

Sums = list[list[ir.Value]]  # [row][vector]

# Multiply-adds in flight that keep two units busy over a latency of four cycles.
_CHAINS = 8


@dataclass(frozen=True)
class Rows:
    """The rows of A under a tile: where each begins, and how far apart its elements are along k."""

    pointers: Sequence[ir.Value]
    dtype: str
    k_stride: Size = 1


@dataclass(frozen=True)
class Panel:
    """`vecs` registers wide slice of B: element (k, column) is at ptr + k * row_stride + column."""

    ptr: ir.Value
    dtype: str
    row_stride: Size
    vecs: int
    is_aligned: bool = False
    next_ptr: ir.Value | None = (
        None  # fetched towards the second-level cache meanwhile, as many rows as are read of this one
    )


def zero_sums(isa: Isa, row_count: int, vecs: int, dtype: str) -> Sums:
    return [[zero_vector(isa, dtype) for _ in range(vecs)] for _ in range(row_count)]


def accumulate(isa: Isa, rows: Rows, panel: Panel, k_count: Size, sums: Sums) -> Sums:
    """`sums` plus the product of `rows` and `panel` over k in 0..k_count.

    Summed in f32 where the elements are narrower. A tile with few sums takes several steps of k at once, each into sums
    of its own, as one chain of additions would wait for itself.
    """
    row_count = len(rows.pointers)
    steps = max(1, -(-_CHAINS // (row_count * panel.vecs)))
    if steps > 1 and isinstance(k_count, int) and k_count < 2 * steps:
        steps = 1
    state = [value for row in sums for value in row]
    width = len(state)
    if steps > 1:
        extra = [zero_vector(isa, sum_dtype(rows.dtype)) for _ in range(width * (steps - 1))]
        rest = index.remainder(k_count, steps)
        main = index.sub(k_count, rest)

        def several(k: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            parts = [state[s * width : (s + 1) * width] for s in range(steps)]
            return [v for s in range(steps) for v in _step(isa, rows, panel, index.add(k, s), parts[s])]

        parts = index.loop(0, main, steps, state + extra, several)
        state = _add_parts(parts, width, rows.dtype)
        if isinstance(rest, int) and rest == 0:
            return _fold(state, panel.vecs)
        start: Size = main
    else:
        start = 0
    state = index.loop(start, k_count, 1, state, lambda k, values: _step(isa, rows, panel, k, values))
    return _fold(state, panel.vecs)


def _fold(state: list[ir.Value], vecs: int) -> Sums:
    return [state[i : i + vecs] for i in range(0, len(state), vecs)]


def _add_parts(values: list[ir.Value], width: int, dtype: str) -> list[ir.Value]:
    """Sums the parts pairwise."""
    parts = [[Val(v, sum_dtype(dtype)) for v in values[i : i + width]] for i in range(0, len(values), width)]
    while len(parts) > 1:
        pairs = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return [v.value for v in parts[0]]


def _step(isa: Isa, rows: Rows, panel: Panel, k: Size, state: Sequence[ir.Value]) -> list[ir.Value]:
    """One k: the panel's vectors against each row's element."""
    total = sum_dtype(rows.dtype)
    lanes = isa.lanes(total)
    base = offset_ptr(panel.ptr, index.mul(k, panel.row_stride), panel.dtype)
    alignment = lanes * DTYPES[panel.dtype].bytes if panel.is_aligned else 0
    vectors = [
        load_vector(isa, offset_ptr(base, v * lanes, panel.dtype), panel.dtype, alignment=alignment, like=total)
        for v in range(panel.vecs)
    ]
    if panel.next_ptr is not None:
        prefetch(offset_ptr(panel.next_ptr, index.mul(k, panel.row_stride), panel.dtype))
    result = []
    for r, pointer in enumerate(rows.pointers):
        element = load_scalar(offset_ptr(pointer, index.mul(k, rows.k_stride), rows.dtype), rows.dtype)
        factor = splat(isa, element, total)
        for v, vector in enumerate(vectors):
            result.append(multiply_add(factor, vector, state[r * panel.vecs + v], total))
    return result
