"""What a row program keeps from one pass over a row to the next: the output row holds it until the result is
written."""

from __future__ import annotations

from collections.abc import Iterable

from mlc.dialects.build import definition_of
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir

from .index import Ix
from .kernel import Buffer, Kernel


class RowSlot:
    """The output row as memory for a transcendental that two passes want.

    `passes` are the values that the row's passes compute, reductions' operands first and the stored value last.
    """

    def __init__(self, k: Kernel, passes: list[ir.Value], reduced: Iterable[ir.Value], target: Buffer) -> None:
        self.k, self.passes, self.target = k, passes, target
        self.reduced = set(reduced)
        self.held: ir.Value | None = None

    def keeps(self, number: int) -> bool:
        """Whether pass `number` leaves its value in the slot: a later one wants it, and what it replaces is done
        with."""
        value = self.passes[number]
        if value == self.passes[-1] or not self._fits(value) or not self.is_expensive(value):
            return False
        later = self._reached(self.passes[number + 1 :], {value})
        return value in later and (self.held is None or self.held not in later)

    def write(self, index: list[Ix], value: Val) -> None:
        self.k.store(self.target, index, value)

    def hold(self, value: ir.Value) -> None:
        """From here on `value` is read from the slot."""
        self.release()
        self.held = value
        self.k.bound[value] = lambda index: self.k.load(self.target, index)

    def release(self) -> None:
        if self.held is not None:
            del self.k.bound[self.held]
        self.held = None

    def _fits(self, value: ir.Value) -> bool:
        dtype = self.k.dtype(value)
        is_exact = DTYPES[dtype].is_float and not DTYPES[dtype].is_narrow_float
        same = self.k.shape(value) == self.k.shape(self.passes[-1])
        return is_exact and same and dtype == self.target.dtype and self.target.view.strides[-1] == 1

    def is_expensive(self, value: ir.Value) -> bool:
        """Whether a transcendental is evaluated for `value` as things stand."""
        stops = set() if self.held is None else {self.held}
        computed = [v for v in self._reached([value], stops) - stops if not isinstance(v.owner, ir.Block)]
        families = (definition_of(v.owner.operation).family for v in computed if v not in self.reduced)
        return any(family == "pointwise_math" for family in families)

    def _reached(self, roots: list[ir.Value], stops: set[ir.Value]) -> set[ir.Value]:
        """What is evaluated for `roots`, up to `stops`, reductions and arguments, these included."""
        pending, seen = list(roots), set(roots)
        while pending:
            value = pending.pop()
            if isinstance(value.owner, ir.Block) or value in stops or value in self.reduced:
                continue
            for operand in value.owner.operation.operands:
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return seen
