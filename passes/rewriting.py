"""Small graph edits that several passes share: users, replacing and erasing ops, functions by name."""

from __future__ import annotations

from collections.abc import Iterator

from mlc.dialects.build import definition_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir


def functions(module: ir.Module) -> dict[str, ir.Operation]:
    """`func.func` ops by name, in program order."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "func.func":
            found[ir.StringAttr(op.operation.attributes["sym_name"]).value] = op.operation
    return found


def body_of(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def kernels(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions that fusion outlined, by name."""
    return {n: f for n, f in functions(module).items() if "mlc.hero" in f.attributes}


def users_of(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def replace_op(operation: ir.Operation, values: list[ir.Value]) -> None:
    """Uses of `operation`'s results become `values`; the op goes."""
    for old, new in zip(operation.results, values, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def lower_in_place(operation: ir.Operation) -> None:
    """Replaces a composite by what its `lower` rule builds."""
    from mlc.dialects.build import attrs_of, operands_of

    definition = definition_of(operation)
    assert definition is not None and "lower" in definition.rules
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    operands = [
        [Value(v) for v in o] if isinstance(o, list) else (None if o is None else Value(o))
        for o in operands_of(operation)
    ]
    flat = [v for o in operands for v in (o if isinstance(o, list) else [o])]
    result = definition.rules["lower"](builder, *flat, **attrs_of(operation))
    results = result if isinstance(result, tuple) else (result,)
    replace_op(operation, [r.ir for r in results])


def mlc_ops(block: ir.Block) -> Iterator[ir.Operation]:
    """The mlc ops of a block, collected first so that the block may change meanwhile."""
    yield from [op.operation for op in block.operations if op.operation.name.startswith("mlc.")]
