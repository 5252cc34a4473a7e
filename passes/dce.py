"""Removes ops whose results nobody reads."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import loop_marker
from mlir import ir

from .base import Pass
from .rewriting import body_of, functions, mlc_ops


def drop_dead(block: ir.Block) -> int:
    """Erases unread mlc ops from the last to the first; returns how many."""
    dropped = 0
    for operation in reversed(list(mlc_ops(block))):
        has_effect = operation.name == "mlc.read_size" or loop_marker(operation) is not None
        if not has_effect and not any(True for r in operation.results for _ in r.uses):
            operation.erase()
            dropped += 1
    return dropped


@dataclass(frozen=True)
class Dce(Pass):
    """Removes mlc ops without users. mlc.read_size stays: sizes are read from its symbol, not from its result;
    so do loops.

    Before: any module. After: each mlc op has a use.
    """

    def run(self, module: ir.Module) -> None:
        for function in functions(module).values():
            drop_dead(body_of(function))
