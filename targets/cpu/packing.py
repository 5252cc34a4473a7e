"""Packs constant operands at compile time, and non-constant ones into stack panels.

A panel is `columns` wide: [K][columns], so that the register tile reads it front to back. The last panel is padded with zeros.
"""

from __future__ import annotations

import numpy as np
from mlir import ir
from mlir.dialects import vector

from mlc.dialects.val import compute_type, constant_of

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import lane_mask, load_scalar, load_vector, offset_ptr, store_scalar, store_vector, sum_dtype


def pack_b(array: np.ndarray, columns: int, is_transposed: bool = False) -> np.ndarray:
    """[*B, K, N] (or [*B, N, K]) as panels [*B, ceil(N / columns), K, columns]."""
    if is_transposed:
        array = np.swapaxes(array, -1, -2)
    *batch, depth, width = array.shape
    panels = -(-width // columns)
    packed = np.zeros((*batch, panels, depth, columns), array.dtype)
    whole = width // columns
    split = array[..., : whole * columns].reshape(*batch, depth, whole, columns)
    packed[..., :whole, :, :] = np.moveaxis(split, -3, -2)
    if whole < panels:
        packed[..., whole, :, : width - whole * columns] = array[..., whole * columns :]
    return packed


def emit_pack(
    isa: Isa, source: ir.Value, k_stride: Size, column_stride: Size, dtype: str, k_count: Size, column_count: Size,
    target: ir.Value, columns: int,
) -> None:  # fmt: skip
    """Copies k_count x min(column_count, columns) elements into one panel at `target`, zeros in the other columns. The panel is of `sum_dtype(dtype)`.

    Reads whole vectors where columns or k are consecutive in memory, one element at a time otherwise.
    """
    lanes = isa.lanes(dtype)
    if isinstance(column_stride, int) and column_stride == 1:
        for v in range(columns // lanes):
            _pack_rows(isa, source, k_stride, dtype, k_count, column_count, target, columns, v * lanes)
    elif isinstance(k_stride, int) and k_stride == 1 and not isa.is_scalable:
        _pack_transposed(isa, source, column_stride, dtype, k_count, column_count, target, columns)
    else:
        _pack_elements(source, k_stride, column_stride, dtype, 0, k_count, column_count, target, columns)
        _clear_columns(sum_dtype(dtype), k_count, column_count, target, columns)


def _pack_rows(
    isa: Isa, source: ir.Value, k_stride: Size, dtype: str, k_count: Size, column_count: Size, target: ir.Value, columns: int,
    column: int,
) -> None:  # fmt: skip
    """One vector of columns. `source` has column_count columns of which those from `column` on are copied."""
    lanes, total = isa.lanes(dtype), sum_dtype(dtype)

    def copy(mask: ir.Value | None) -> None:
        def row(k: ir.Value) -> None:
            address = offset_ptr(offset_ptr(source, index.mul(k, k_stride), dtype), column, dtype)
            value = load_vector(isa, address, dtype, mask)
            store_vector(value, offset_ptr(target, index.add(index.mul(k, columns), column), total), total)

        index.each(0, k_count, 1, row)

    left = index.sub(column_count, column)
    index.when(index.less(left, lanes), lambda: copy(lane_mask(isa, dtype, left)), lambda: copy(None))


def _pack_elements(
    source: ir.Value, k_stride: Size, column_stride: Size, dtype: str, k_start: Size, k_count: Size, column_count: Size,
    target: ir.Value, columns: int,
) -> None:  # fmt: skip
    total = sum_dtype(dtype)

    def element(column: ir.Value, k: ir.Value) -> None:
        offset = index.add(index.mul(column, column_stride), index.mul(k, k_stride))
        value = load_scalar(offset_ptr(source, offset, dtype), dtype)
        store_scalar(value, offset_ptr(target, index.add(index.mul(k, columns), column), total), total)

    count = index.minimum(column_count, columns)
    index.each(0, count, 1, lambda column: index.each(k_start, k_count, 1, lambda k: element(column, k)))


def _clear_columns(dtype: str, k_count: Size, column_count: Size, target: ir.Value, columns: int) -> None:
    def clear() -> None:
        zero = constant_of(compute_type(dtype), 0)

        def element(column: ir.Value, k: ir.Value) -> None:
            store_scalar(zero, offset_ptr(target, index.add(index.mul(k, columns), column), dtype), dtype)

        index.each(column_count, columns, 1, lambda column: index.each(0, k_count, 1, lambda k: element(column, k)))

    index.when(index.less(column_count, columns), clear)


def _pack_transposed(
    isa: Isa, source: ir.Value, column_stride: Size, dtype: str, k_count: Size, column_count: Size, target: ir.Value, columns: int
) -> None:  # fmt: skip
    """Squares of lanes x lanes turned in registers; the last k, fewer than a vector, one element at a time."""
    lanes, total = isa.lanes(dtype), sum_dtype(dtype)
    rest = index.remainder(k_count, lanes)
    whole = index.sub(k_count, rest)

    def square(column: ir.Value, k: ir.Value) -> None:
        rows = []
        for c in range(lanes):
            # Past the last column its neighbour is read again: in bounds, and cleared below.
            position = index.minimum(index.add(column, c), index.sub(column_count, 1))
            rows.append(load_vector(isa, offset_ptr(source, index.add(index.mul(position, column_stride), k), dtype), dtype))
        for j, row in enumerate(transpose_square(rows)):
            place = index.add(index.mul(index.add(k, j), columns), column)
            store_vector(row, offset_ptr(target, place, total), total)

    end = index.mul(index.ceil_div(index.minimum(column_count, columns), lanes), lanes)
    index.each(0, end, lanes, lambda column: index.each(0, whole, lanes, lambda k: square(column, k)))
    if not (isinstance(rest, int) and rest == 0):
        _pack_elements(source, 1, column_stride, dtype, whole, k_count, column_count, target, columns)
    _clear_columns(total, k_count, column_count, target, columns)


def transpose_square(rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of as many registers as one has lanes (fixed length, a power of two)."""
    count = len(rows)
    rows = list(rows)
    step = 1
    while step < count:
        low = [j if not j & step else j - step + count for j in range(count)]
        high = [j + step if not j & step else j + count for j in range(count)]
        for i in range(count):
            if not i & step:
                top, bottom = rows[i], rows[i + step]
                rows[i] = vector.shuffle(top, bottom, low)
                rows[i + step] = vector.shuffle(top, bottom, high)
        step *= 2
    return rows
