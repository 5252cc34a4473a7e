"""The softmax of a block of scores: powers in place, and each query's largest score, total and factor so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlc.dialects.vecmath import exp2_floored, exp2_nonpositive
from mlir import ir
from mlir.dialects import llvm, vector

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import load_vector, offset_ptr, stack_array, store_vector, zero_vector

# Registers of scores taken through the exponential side by side: one alone waits for itself, and with more than two the
# constants do not stay in registers (Zen 3, 2026-12: 5.1 cycles a register with two, 6.9 with four).
_SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class Powers:
    """Scores [key][width queries], in powers of two, and a lane a query of each statistic, all on the stack."""

    isa: Isa
    total: str
    width: int
    vecs: int
    scores: ir.Value
    peaks: ir.Value  # the largest score, up to the block at hand
    settled: ir.Value  # the same up to the block before
    shifts: ir.Value  # what is taken from the block's scores
    totals: ir.Value
    factors: ir.Value  # what the block makes of earlier sums

    @staticmethod
    def make(isa: Isa, total: str, width: int, vecs: int, scores: ir.Value) -> Powers:
        return Powers(isa, total, width, vecs, scores, *(stack_array(total, width) for _ in range(5)))

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.total)

    def _load(self, ptr: ir.Value, at: Size) -> Val:
        return Val(load_vector(self.isa, offset_ptr(ptr, at, self.total), self.total), self.total)

    def _store(self, value: Val, ptr: ir.Value, at: Size) -> None:
        store_vector(value.value, offset_ptr(ptr, at, self.total), self.total)

    # Volatile: as values they would be kept in registers where the loop over panels is unrolled, and spill the sums.
    def peak(self, column: Size) -> Val:
        """The largest scores so far of queries `column`.. ."""
        ptr, type_ = offset_ptr(self.peaks, column, self.total), self.isa.compute_vector(self.total)
        return Val(llvm.LoadOp(type_, ptr, alignment=DTYPES[self.total].bytes, volatile_=True).result, self.total)

    def set_peak(self, value: Val, column: Size) -> None:
        ptr = offset_ptr(self.peaks, column, self.total)
        llvm.StoreOp(value.value, ptr, alignment=DTYPES[self.total].bytes, volatile_=True)

    def begin(self) -> None:
        """Statistics of no key at all."""
        zero = Val(zero_vector(self.isa, self.total), self.total)
        for lane in range(0, self.width, self.lanes):
            self._store(zero.like(-np.inf), self.peaks, lane)
            self._store(zero.like(-np.inf), self.settled, lane)
            self._store(zero, self.totals, lane)

    def settle(self, query_count: Size) -> None:
        """After all peaks of a block: what scores are taken from, and the factor of earlier sums."""

        def lane(column: ir.Value) -> None:
            before, peak = self._load(self.settled, column), self._load(self.peaks, column)
            safe = peak.eq(-np.inf).select(peak.like(0), peak)  # all masked so far: -inf - -inf would be NaN
            # Floored where nothing counted before: those sums are zeros.
            self._store(Val(exp2_floored((before - safe).value), self.total), self.factors, column)
            self._store(safe, self.shifts, column)
            self._store(peak, self.settled, column)

        index.each(0, query_count, self.lanes, lane)

    def emit(self, query_count: Size, key_count: Size, is_masked: bool) -> None:
        """Scores become powers, exactly 0 where `is_masked` hid them; totals are brought up to date."""
        vecs, power = self.vecs, exp2_nonpositive if is_masked else exp2_floored
        keys = 1 if self.isa.is_scalable else max(1, _SIDE_BY_SIDE // vecs)

        def panel(column: ir.Value) -> None:
            columns = [index.add(column, v * self.lanes) for v in range(vecs)]
            shifts = [self._load(self.shifts, at) for at in columns]

            def several(key: Size, state: list[ir.Value], count: int) -> list[ir.Value]:
                rows = [index.mul(index.add(key, n), self.width) for n in range(count)]
                places = [index.add(row, at) for row in rows for at in columns]
                scores = [(self._load(self.scores, at) - shifts[n % vecs]).value for n, at in enumerate(places)]
                powers = [Val(value, self.total) for value in self._side_by_side(power, scores)]
                for value, at in zip(powers, places, strict=True):
                    self._store(value, self.scores, at)
                return [(Val(s, self.total) + p).value for s, p in zip(state, powers, strict=True)]

            whole = index.mul(index.floor_div(key_count, keys), keys)
            zeros = [zero_vector(self.isa, self.total)] * (keys * vecs)
            state = index.loop(0, whole, keys, zeros, lambda key, values: several(key, values, keys))
            sums = [Val(value, self.total) for value in state]
            while len(sums) > vecs:
                sums = [a + b for a, b in zip(sums[: len(sums) // 2], sums[len(sums) // 2 :], strict=True)]
            rest = [value.value for value in sums]
            if keys > 1:
                rest = index.loop(whole, key_count, 1, rest, lambda key, values: several(key, values, 1))
            for at, added in zip(columns, rest, strict=True):
                total = self._load(self.totals, at).fma(self._load(self.factors, at), Val(added, self.total))
                self._store(total, self.totals, at)

        index.each(0, query_count, vecs * self.lanes, panel)

    def _side_by_side(self, function, values: list[ir.Value]) -> list[ir.Value]:
        """`function` of each register, instruction by instruction over all of them."""
        if self.isa.is_scalable or len(values) & (len(values) - 1):
            return [function(value) for value in values]
        wide = list(values)
        while len(wide) > 1:
            length = 2 * ir.VectorType(wide[0].type).shape[0]
            wide = [vector.shuffle(a, b, list(range(length))) for a, b in zip(wide[::2], wide[1::2], strict=True)]
        result = function(wide[0])
        type_ = values[0].type
        return [
            vector.extract_strided_slice(type_, result, [n * self.lanes], [self.lanes], [1]) for n in range(len(values))
        ]
