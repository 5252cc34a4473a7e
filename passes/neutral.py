"""Ops that known values make superfluous: a mask of only true, plus zero, times one, a gather of every row in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir

# Reads a value that is known, None for one that is not.
Read = Callable[[ir.Value], np.ndarray | None]

def without_neutral(operation: ir.Operation, read: Read) -> Value | None:
    """What `operation` gives where a known operand leaves another as it is; None where none does."""
    definition = definition_of(operation)
    if definition is not None and "neutral" in definition.rules:
        return _other(operation, read, definition.rules["neutral"]())
    if operation.name == "mlc.where":
        return _chosen(operation, read)
    if operation.name == "mlc.gather":
        return _all_in_order(operation, read)
    return None


def _spread(operation: ir.Operation, value: ir.Value) -> Value | None:
    """`value` in the result's shape; None where it is of another element type."""
    wanted, found = type_of(operation.results[0]), type_of(value)
    if wanted.dtype != found.dtype:
        return None
    if wanted.shape == found.shape:
        return Value(value)
    return OpBuilder(ir.InsertionPoint(operation), operation.location).broadcast_to(
        Value(value), shape=list(wanted.shape)
    )


def _is_all(array: np.ndarray, number: float) -> bool:
    if array.dtype == np.bool_:
        return bool((array == number).all())
    if isinstance(number, bool):
        return False
    if not (array == number).all():
        return False
    return number != 0 or array.dtype.kind != "f" or bool((np.signbit(array) == np.signbit(number)).all())


def _other(operation: ir.Operation, read: Read, neutral: tuple[tuple[int, float], ...]) -> Value | None:
    """`neutral`: operand positions, each with the number that changes nothing there."""
    for position, number in neutral:
        known = read(operation.operands[position])
        if known is not None and known.size and _is_all(known, number):
            return _spread(operation, operation.operands[1 - position])
    return None


def _chosen(operation: ir.Operation, read: Read) -> Value | None:
    condition = read(operation.operands[0])
    if condition is None or not condition.size or (condition != condition.flat[0]).any():
        return None
    return _spread(operation, operation.operands[1 if condition.flat[0] else 2])


def _all_in_order(operation: ir.Operation, read: Read) -> Value | None:
    x, indices = operation.operands
    axis, shape, known = attrs_of(operation)["axis"], type_of(x).shape, read(indices)
    if known is None or known.size != shape[axis] or (known.reshape(-1) != np.arange(known.size)).any():
        return None
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    return builder.reshape(Value(x), shape=list(type_of(operation.results[0]).shape))
