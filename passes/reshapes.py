"""Reshapes moved to where they cost nothing: before a product, so that what follows it can be its epilogue."""

from __future__ import annotations

from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.dims import Size
from mlir import ir

from .rewriting import users_of


def reshaped_product(operation: ir.Operation) -> list[ir.Value] | None:
    """reshape(a x b + c) to reshape(a) x b + c, for a reshape that regroups rows of a product and leaves its columns.

    Exporters flatten rows before a linear layer and restore them after it; the two reshapes then meet and cancel.
    """
    shape = type_of(operation.results[0]).shape
    if len(shape) < 2 or not _is_movable(operation.operands[0], shape[-1]):
        return None
    return [_moved(operation, operation.operands[0], shape).ir]


def _is_movable(value: ir.Value, columns: Size) -> bool:
    """Whether `value` can be computed by a product on reshaped rows."""
    if isinstance(value.owner, ir.Block):
        return False
    operation = value.owner.operation
    is_product = operation.name == "mlc.matmul"
    if (not is_product and not _is_elementwise(operation)) or len(users_of(value)) != 1:
        return False
    shape = type_of(value).shape
    if len(shape) < 2 or shape[-1] != columns:
        return False
    if is_product:
        return type_of(operation.operands[1]).rank == 2 and not attrs_of(operation)["transpose_a"]
    wide = [v for v in operation.operands if not _is_row(v)]
    return all(type_of(v).shape == shape for v in wide) and any(_is_movable(v, columns) for v in wide)


def _is_elementwise(operation: ir.Operation) -> bool:
    definition = definition_of(operation)
    if definition is None or len(operation.operands) != len(definition.operands):
        return False
    return "emit" in definition.rules


def _is_row(value: ir.Value) -> bool:
    """A number, or one a column: the same for every way to group rows."""
    return type_of(value).rank <= 1


def _moved(reshape: ir.Operation, value: ir.Value, shape: tuple[Size, ...]) -> Value:
    """`value` in `shape`: one product on the way takes the reshape, other operands are reshaped as they are."""
    operation = value.owner.operation
    builder = OpBuilder(ir.InsertionPoint(reshape), operation.location)
    if operation.name == "mlc.matmul":
        a, b = operation.operands
        rows = builder.reshape(Value(a), shape=[*shape[:-1], type_of(a).shape[-1]])
        return builder.matmul(rows, Value(b), **attrs_of(operation))
    operands: list[Value] = []
    for operand in operation.operands:
        if _is_row(operand):
            operands.append(Value(operand))
        elif _is_movable(operand, shape[-1]):
            operands.append(_moved(reshape, operand, shape))
        else:
            operands.append(builder.reshape(Value(operand), shape=list(shape)))
    return builder.op(definition_of(operation).name, *operands, **attrs_of(operation))
