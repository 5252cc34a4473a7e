"""Recomputes every mlc op's result types from its declaration; IRDL checks only operand and result counts."""

from __future__ import annotations

from typing import Any

from mlir import ir

from .build import attrs_of, definition_of, operands_of, type_of
from .op import OpError

# Ops found right: name, types and attributes. Kept while one module is worked on: its entries belong to its context.
Verified = set[tuple[Any, ...]]


def verify_module(module: ir.Module, verified: Verified | None = None) -> None:
    """Raises OpError with the op, its location, what was found and what the declaration gives.

    Most ops are equal to one that an earlier pass left, or another layer holds: those in `verified` are passed over.
    """
    verified = set() if verified is None else verified
    operations: list[ir.Operation] = []

    def collect(operation: ir.Operation) -> ir.WalkResult:
        if operation.name.startswith("mlc."):
            operations.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for operation in operations:
        key = (
            operation.name,
            tuple(v.type for v in operation.operands),
            tuple(r.type for r in operation.results),
            tuple(operation.attributes.items()),
        )
        if key not in verified:
            verify_op(operation)
            verified.add(key)


def verify_op(operation: ir.Operation) -> None:
    definition = definition_of(operation)
    if definition is None:
        raise OpError(f"{operation.name}: there is no such op in the mlc dialect")
    try:
        grouped = [
            [type_of(v) for v in g] if isinstance(g, list) else (None if g is None else type_of(g))
            for g in operands_of(operation)
        ]
        expected = definition.infer(grouped, attrs_of(operation))
        found = [type_of(r) for r in operation.results]
    except (OpError, ValueError, KeyError) as error:
        raise OpError(f"{error} ({operation.location})") from error
    if expected != found:
        wanted, got = ", ".join(map(str, expected)), ", ".join(map(str, found))
        raise OpError(f"{operation.name}: result is {got}, expected {wanted} ({operation.location})")
