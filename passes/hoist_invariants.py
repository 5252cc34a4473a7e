"""Moves what a loop computes anew in each iteration, though no state is in it, in front of the loop."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import loop_marker
from mlir import ir

from .base import Pass
from .rewriting import body_of, functions


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Loop-invariant code motion over calls; also puts there what code behind the loop reads, which may run no
    iteration.

    Before: fuse ran. After: of the calls in a loop, only markers do not depend on its states.
    """

    def run(self, module: ir.Module) -> None:
        everything = functions(module)
        calls = [op.operation for op in body_of(everything["forward"]).operations if op.operation.name == "func.call"]
        marked = [loop_marker(everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]) for call in calls]
        starts: dict[int, int] = {}
        for step, marker in enumerate(marked):
            if marker is not None:
                starts.setdefault(marker[1], step)
        # An inner loop starts after the one around it, and hands on what does not vary in either.
        for loop, start in sorted(starts.items(), key=lambda item: -item[1]):
            self._hoist(calls, marked, loop, start)

    def _hoist(self, calls: list[ir.Operation], marked: list, loop: int, start: int) -> None:
        stop = max(step for step, marker in enumerate(marked) if marker is not None and marker[1] == loop)
        varying: set[ir.Value] = set()
        first = calls[start]
        for step in range(start, stop + 1):
            call = calls[step]
            if marked[step] is not None or any(v in varying for v in call.operands):
                varying.update(call.results)
            else:
                call.move_before(first)
