"""Packs constant operands at compile time, and non-constant ones into stack panels.

A panel is `columns` wide: [K][columns], so that the register tile reads it front to back. The last panel is padded with
zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from mlc.dialects.val import compute_type, constant_of
from mlir import ir
from mlir.dialects import vector

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import lane_mask, load_scalar, load_vector, offset_ptr, store_scalar, store_vector, sum_dtype

PAIRED = "-pairs"  # at the end of a layout's name: pairs of k, see microkernel_dot.py


def pack_b(array: np.ndarray, columns: int, is_transposed: bool = False, is_paired: bool = False) -> np.ndarray:
    """[*B, K, N] (or [*B, N, K]) as panels [*B, ceil(N / columns), K, columns]; paired, [*B, .., K / 2, columns, 2]."""
    if is_transposed:
        array = np.swapaxes(array, -1, -2)
    if is_paired:
        return _paired(pack_b(array, columns))
    *batch, depth, width = array.shape
    panels = -(-width // columns)
    packed = np.zeros((*batch, panels, depth, columns), array.dtype)
    whole = width // columns
    split = array[..., : whole * columns].reshape(*batch, depth, whole, columns)
    packed[..., :whole, :, :] = np.moveaxis(split, -3, -2)
    if whole < panels:
        packed[..., whole, :, : width - whole * columns] = array[..., whole * columns :]
    return packed


def _paired(panels: np.ndarray) -> np.ndarray:
    """[.., K, columns] as [.., ceil(K / 2), columns, 2], zeros after an odd K."""
    *lead, depth, columns = panels.shape
    if depth % 2:
        panels = np.concatenate([panels, np.zeros((*lead, 1, columns), panels.dtype)], axis=-2)
    return np.ascontiguousarray(np.swapaxes(panels.reshape(*lead, -1, 2, columns), -1, -2))


@dataclass(frozen=True)
class PanelCopy:
    """A copy of k_count x min(column_count, columns) strided elements into one panel of `sum_dtype(dtype)`.

    The panel's other columns become zeros. Whole vectors are read where columns or k are consecutive in memory, single
    elements otherwise.
    """

    isa: Isa
    source: ir.Value
    dtype: str
    k_stride: Size
    column_stride: Size
    k_count: Size
    column_count: Size
    target: ir.Value
    columns: int

    def emit(self) -> None:
        """Emits the loops."""
        lanes = self.isa.lanes(self.dtype)
        if isinstance(self.column_stride, int) and self.column_stride == 1:
            for column in range(0, self.columns, lanes):
                left = index.sub(self.column_count, column)
                index.when(index.less(left, lanes), partial(self._cut_rows, column, left), partial(self._rows, column))
        elif isinstance(self.k_stride, int) and self.k_stride == 1 and not self.isa.is_scalable:
            self._squares()
        else:
            self._elements(0)
            self._clear()

    def _from(self, k: Size, column: Size) -> ir.Value:
        offset = index.add(index.mul(column, self.column_stride), index.mul(k, self.k_stride))
        return offset_ptr(self.source, offset, self.dtype)

    def _to(self, k: Size, column: Size) -> ir.Value:
        return offset_ptr(self.target, index.add(index.mul(k, self.columns), column), sum_dtype(self.dtype))

    def _cut_rows(self, column: int, left: Size) -> None:
        self._rows(column, lane_mask(self.isa, self.dtype, left))

    def _rows(self, column: int, mask: ir.Value | None = None) -> None:
        def row(k: ir.Value) -> None:
            value = load_vector(self.isa, self._from(k, column), self.dtype, mask)
            store_vector(value, self._to(k, column), sum_dtype(self.dtype))

        index.each(0, self.k_count, 1, row)

    def _elements(self, k_start: Size) -> None:
        def element(column: ir.Value, k: ir.Value) -> None:
            store_scalar(load_scalar(self._from(k, column), self.dtype), self._to(k, column), sum_dtype(self.dtype))

        count = index.minimum(self.column_count, self.columns)
        index.each(0, count, 1, lambda column: index.each(k_start, self.k_count, 1, lambda k: element(column, k)))

    def _clear(self) -> None:
        total = sum_dtype(self.dtype)

        def column_of_zeros(column: ir.Value) -> None:
            zero = constant_of(compute_type(total), 0)
            index.each(0, self.k_count, 1, lambda k: store_scalar(zero, self._to(k, column), total))

        missing = index.less(self.column_count, self.columns)
        index.when(missing, lambda: index.each(self.column_count, self.columns, 1, column_of_zeros))

    def _squares(self) -> None:
        """Squares of lanes x lanes turned in registers; the last k, fewer than a vector, one element at a time."""
        lanes = self.isa.lanes(self.dtype)
        rest = index.remainder(self.k_count, lanes)
        whole = index.sub(self.k_count, rest)
        last = index.sub(self.column_count, 1)

        def square(column: ir.Value, k: ir.Value) -> None:
            # Past the last column its neighbour is read again: in bounds, and cleared below.
            places = [index.minimum(index.add(column, c), last) for c in range(lanes)]
            rows = [load_vector(self.isa, self._from(k, place), self.dtype) for place in places]
            for j, row in enumerate(transpose_square(rows)):
                store_vector(row, self._to(index.add(k, j), column), sum_dtype(self.dtype))

        end = index.minimum(self.column_count, self.columns)
        index.each(0, end, lanes, lambda column: index.each(0, whole, lanes, lambda k: square(column, k)))
        if not (isinstance(rest, int) and rest == 0):
            self._elements(whole)
        self._clear()


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
