"""Channels last: convolutions, pools and the like run on [N, *S, C], and transposes sink past what is elementwise until
they meet.

Each op with a `layout` attribute is wrapped in two transposes; an elementwise op (or concat, pad, slice, reduction)
whose operand is such a transpose is computed before it. Where two transposes meet they cancel, so that a convolutional
network keeps one at its entry and one at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.weights import WeightStore, store_of
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .fold import array_of, constant_source, make_constant
from .rewriting import body_of, functions, mlc_ops, replace_op
from .simplify import Simplify, producer


def to_last(rank: int) -> list[int]:
    """Permutation from [N, C, *S] to [N, *S, C]."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """Permutation from [N, *S, C] to [N, C, *S]."""
    return [0, rank - 1, *range(1, rank - 1)]


# Marks the transposes that this pass may move: in rank 3 the two directions look the same, and a model has its own.
_MARK = "mlc.from_channels_last"


def _back(builder: OpBuilder, value: Value, rank: int) -> ir.Value:
    """`value` with the channels second again, marked."""
    result = builder.transpose(value, perm=to_first(rank)).ir
    result.owner.attributes[_MARK] = ir.UnitAttr.get()
    return result


def _convert(operation: ir.Operation) -> list[ir.Value] | None:
    """The op in channels-last layout between transposes."""
    attrs = attrs_of(operation)
    rank = type_of(operation.operands[0]).rank
    if attrs.get("layout") != "nchw" or rank < 3:
        return None
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    x, *others = operands_of(operation)
    last = builder.transpose(Value(x), perm=to_last(rank))
    attrs["layout"] = "nhwc"
    results = builder.op(
        definition_of(operation).name, last, *[None if o is None else Value(o) for o in others], **attrs
    )
    results = results if isinstance(results, tuple) else (results,)
    return [_back(builder, r, rank) for r in results]


def _is_layout_transpose(value: ir.Value) -> ir.Operation | None:
    operation = producer(value, "transpose")
    return operation if operation is not None and _MARK in operation.attributes else None


def _sink(operation: ir.Operation, store: WeightStore) -> list[ir.Value] | None:
    """The op computed channels last, and one transpose after it; None where it has to stay."""
    definition = definition_of(operation)
    rank = type_of(operation.results[0]).rank
    if rank < 3 or not any(_is_layout_transpose(v) for v in operation.operands):
        return None
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    attrs = attrs_of(operation)
    if "emit" in definition.rules:
        operands = [_last_operand(builder, v, rank, store) for v in operation.operands]
        if any(o is None for o in operands):
            return None
    elif definition.name in ("concat", "pad", "slice") or definition.kind == "reduce":
        if definition.kind == "reduce" and not attrs.get("keepdims"):
            return None
        operands = [_last_operand(builder, v, rank, store) for v in operation.operands]
        attrs = _permuted_attrs(definition.name, attrs, rank)
    else:
        return None
    result = builder.op(definition.name, *operands, **attrs)
    return [_back(builder, result, rank)]


def _permuted_attrs(name: str, attrs: dict, rank: int) -> dict:
    last = to_last(rank)
    if "axes" in attrs:
        return attrs | {"axes": sorted(last.index(a) for a in attrs["axes"])}
    if name == "concat":
        return attrs | {"axis": last.index(attrs["axis"])}
    return {k: [v[p] for p in last] if isinstance(v, list) and len(v) == rank else v for k, v in attrs.items()}


def _last_operand(builder: OpBuilder, value: ir.Value, rank: int, store: WeightStore) -> Value | None:
    """`value` with the channels last: what is beneath a transpose, a constant turned now, or a new transpose."""
    beneath = _is_layout_transpose(value)
    type_ = type_of(value)
    if beneath is not None and type_.rank == rank:
        return Value(beneath.operands[0])
    if all(s == 1 for s in type_.shape):
        return Value(value) if type_.rank <= 1 else builder.reshape(Value(value), shape=[1] * rank)
    padded = [1] * (rank - type_.rank) + list(type_.shape)
    if constant_source(value) is not None:
        turned = np.transpose(array_of(value, store).reshape(padded), to_last(rank))
        return make_constant(builder, store, "constant", np.ascontiguousarray(turned))
    wide = Value(value) if type_.rank == rank else builder.reshape(Value(value), shape=padded)
    return builder.transpose(wide, perm=to_last(rank))


@dataclass(frozen=True)
class InferLayout(Pass):
    """Converts every op with a layout attribute to channels last.

    Before: ops in "nchw". After: none is, and transposes stand only where data enters or leaves the region.
    """

    def run(self, module: ir.Module) -> None:
        store = store_of(module)
        block = body_of(functions(module)["forward"])
        for operation in mlc_ops(block):
            values = _convert(operation) if "layout" in [a.name for a in definition_of(operation).attributes] else None
            if values is not None:
                replace_op(operation, values)
        changed = True
        while changed:
            Simplify().run(module)
            changed = False
            for operation in mlc_ops(block):
                values = _sink(operation, store)
                if values is not None:
                    replace_op(operation, values)
                    changed = True
            drop_dead(block)
