"""Merges equal ops: IRDL ops carry no purity trait, so upstream's cse leaves them."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from .base import Pass
from .rewriting import body_of, functions, mlc_ops, replace_op

# The same numbers only if asked once: two calls are two draws.
_NOT_EQUAL = ("mlc.random_uniform",)


@dataclass(frozen=True)
class Cse(Pass):
    """Replaces an op by an earlier one with the same name, operands and attributes.

    Before: any module. After: no two such ops in one function.
    """

    def run(self, module: ir.Module) -> None:
        for function in functions(module).values():
            seen: dict[tuple, ir.Operation] = {}
            for operation in mlc_ops(body_of(function)):
                if operation.name in _NOT_EQUAL:
                    continue
                attributes = tuple((n, str(operation.attributes[n])) for n in sorted(operation.attributes.keys()))
                key = (operation.name, tuple(operation.operands), attributes)
                first = seen.setdefault(key, operation)
                if first is not operation:
                    replace_op(operation, list(first.results))
