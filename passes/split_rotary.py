"""Rotary embeddings piece by piece: x cos + rotate_half(x) sin, where rotate_half is a concat of two slices.

A concat is a kernel of its own, so the rotated halves would be written and read back. Pushed out of the arithmetic it
is the last step: each half is computed from slices, which are free, straight into its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.dims import Size
from mlc.dialects.views import VIEW_OPS
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .rewriting import body_of, functions, mlc_ops, replace_op, users_of
from .simplify import producer


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _is_elementwise(operation: ir.Operation | None) -> TypeGuard[ir.Operation]:
    definition = None if operation is None else definition_of(operation)
    if operation is None or definition is None or len(operation.operands) != len(definition.operands):
        return False
    return "emit" in definition.rules


def _is_private(value: ir.Value) -> bool:
    return len(users_of(value)) == 1


def _is_light(value: ir.Value) -> bool:
    """A view, or one elementwise op on a view: what may be computed again for a piece."""
    owner = _owner(value)
    if _is_elementwise(owner) and len(owner.operands) == 1:
        owner = _owner(owner.operands[0])
    definition = None if owner is None else definition_of(owner)
    return definition is not None and definition.name in VIEW_OPS


def _rotation(value: ir.Value) -> ir.Operation | None:
    """The concat along the last dimension that `value` is, if its pieces are light and of known size."""
    concat = producer(value, "concat")
    if concat is None or not _is_private(value) or attrs_of(concat)["axis"] != type_of(value).rank - 1:
        return None
    sizes = [type_of(piece).shape[-1] for piece in concat.operands]
    return concat if all(isinstance(s, int) for s in sizes) and all(map(_is_light, concat.operands)) else None


def _inner(value: ir.Value) -> ir.Operation | None:
    """The elementwise op that made `value` for one reader."""
    owner = _owner(value)
    return owner if _is_elementwise(owner) and _is_private(value) else None


def _find_rotation(operation: ir.Operation, shape: tuple[Size, ...]) -> ir.Operation | None:
    """The only rotation in the arithmetic above `operation`; None where there is none, or a product's tile is in it."""
    found = None
    for value in operation.operands:
        rotation, inner = _rotation(value), _inner(value)
        if rotation is None and inner is not None:
            rotation = _find_rotation(inner, shape)
        if rotation is not None and (found is not None or type_of(rotation.results[0]).shape[-1] != shape[-1]):
            return None
        found = found or rotation
    return found


def _piece(builder: OpBuilder, value: ir.Value, rotation: ir.Operation, number: int, start: int, stop: int) -> Value:
    """Elements [start, stop) of the last dimension of `value`."""
    if value == rotation.results[0]:
        return Value(rotation.operands[number])
    shape = type_of(value).shape
    if not shape or shape[-1] == 1:
        return Value(value)
    inner = _inner(value)
    if inner is not None:
        return _computed(builder, inner, rotation, number, start, stop)
    lead = list(shape[:-1])
    steps = [1] * len(shape)
    return builder.slice(Value(value), starts=[*[0] * len(lead), start], limits=[*lead, stop], steps=steps)


def _computed(
    builder: OpBuilder, operation: ir.Operation, rotation: ir.Operation, number: int, start: int, stop: int
) -> Value:
    operands = [_piece(builder, v, rotation, number, start, stop) for v in operation.operands]
    return builder.op(definition_of(operation).name, *operands, **attrs_of(operation))


def _split(operation: ir.Operation) -> ir.Value | None:
    shape = type_of(operation.results[0]).shape
    is_last = not any(_is_elementwise(u) for u in users_of(operation.results[0]))
    if not shape or not is_last or not _is_elementwise(operation):
        return None
    rotation = _find_rotation(operation, shape)
    if rotation is None:
        return None
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    pieces, start = [], 0
    for number, piece in enumerate(rotation.operands):
        stop = start + type_of(piece).shape[-1]
        pieces.append(_computed(builder, operation, rotation, number, start, stop))
        start = stop
    return builder.concat(*pieces, axis=len(shape) - 1).ir


@dataclass(frozen=True)
class SplitRotary(Pass):
    """Moves a concat of slices behind the arithmetic that reads it.

    Before: simplify ran. After: no elementwise op reads a private concat, along the last dimension, of views of one
    value or of a sign or the like of them.
    """

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        for operation in mlc_ops(block):
            result = _split(operation)
            if result is not None:
                replace_op(operation, [result])
        drop_dead(block)
