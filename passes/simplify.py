"""Algebra on L0 that needs no values: views of views, views that change nothing, transposes taken into contractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .reshapes import reshaped_product
from .rewriting import body_of, functions, mlc_ops, replace_op


def producer(value: ir.Value, name: str) -> ir.Operation | None:
    """The op that made `value` if it is `mlc.<name>`."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != f"mlc.{name}":
        return None
    return owner.operation


def _builder(operation: ir.Operation) -> OpBuilder:
    return OpBuilder(ir.InsertionPoint(operation), operation.location)


def _same_type(operation: ir.Operation) -> bool:
    return operation.results[0].type == operation.operands[0].type


def _reshape(op: ir.Operation) -> list[ir.Value] | None:
    if _same_type(op):
        return [op.operands[0]]
    before = producer(op.operands[0], "reshape")
    if before is not None:
        return [_builder(op).reshape(Value(before.operands[0]), shape=attrs_of(op)["shape"]).ir]
    return reshaped_product(op)


def _transpose(op: ir.Operation) -> list[ir.Value] | None:
    perm = attrs_of(op)["perm"]
    if perm == sorted(perm):
        return [op.operands[0]]
    shape = type_of(op.operands[0]).shape
    if [p for p in perm if shape[p] != 1] == [p for p in range(len(perm)) if shape[p] != 1]:
        return [_builder(op).reshape(Value(op.operands[0]), shape=[shape[p] for p in perm]).ir]
    before = producer(op.operands[0], "transpose")
    if before is not None:
        inner = attrs_of(before)["perm"]
        return [_builder(op).transpose(Value(before.operands[0]), perm=[inner[p] for p in perm]).ir]
    return None


def _unchanged(op: ir.Operation) -> list[ir.Value] | None:
    return [op.operands[0]] if _same_type(op) else None


def _slice(op: ir.Operation) -> list[ir.Value] | None:
    attrs = attrs_of(op)
    is_whole = _same_type(op) and all(s == 1 for s in attrs["steps"]) and all(s == 0 for s in attrs["starts"])
    return [op.operands[0]] if is_whole else None


def _concat(op: ir.Operation) -> list[ir.Value] | None:
    return [op.operands[0]] if len(op.operands) == 1 else None


def _pad(op: ir.Operation) -> list[ir.Value] | None:
    attrs = attrs_of(op)
    return [op.operands[0]] if all(s == 0 for s in (*attrs["low"], *attrs["high"])) else None


def _conv(op: ir.Operation) -> list[ir.Value] | None:
    """Zeros put around the input before a convolution are its own padding."""
    pad = producer(op.operands[0], "pad")
    if pad is None:
        return None
    around, attrs, rank = attrs_of(pad), attrs_of(op), type_of(op.operands[0]).rank
    spatial = slice(1, rank - 1) if attrs["layout"] == "nhwc" else slice(2, rank)
    low, high = list(around["low"]), list(around["high"])
    if around["mode"] != "constant" or around["value"] != 0 or not all(isinstance(n, int) for n in (*low, *high)):
        return None
    if any(low[d] or high[d] for d in range(rank) if d not in range(rank)[spatial]):
        return None
    attrs["pads_low"] = [a + b for a, b in zip(attrs["pads_low"], low[spatial], strict=True)]
    attrs["pads_high"] = [a + b for a, b in zip(attrs["pads_high"], high[spatial], strict=True)]
    _, *factors = (None if v is None else Value(v) for v in operands_of(op))
    return [_builder(op).op("conv", Value(pad.operands[0]), *factors, **attrs).ir]


def _matmul(op: ir.Operation) -> list[ir.Value] | None:
    """transpose of the last two dimensions of an operand is the product's own attribute."""
    attrs, operands, changed = attrs_of(op), [Value(v) for v in op.operands], False
    for position, name in enumerate(("transpose_a", "transpose_b")):
        before = producer(op.operands[position], "transpose")
        if before is None:
            continue
        perm = attrs_of(before)["perm"]
        rank = len(perm)
        if perm == [*range(rank - 2), rank - 1, rank - 2]:
            operands[position], attrs[name], changed = Value(before.operands[0]), not attrs[name], True
    return [_builder(op).matmul(*operands, **attrs).ir] if changed else None


def _broadcast(op: ir.Operation) -> list[ir.Value] | None:
    """A broadcast that only elementwise ops of the same result shape read is implicit there."""
    if _same_type(op):
        return [op.operands[0]]
    wide = type_of(op.results[0]).shape
    users = [u.owner.operation for u in op.results[0].uses]
    for user in users:
        definition = definition_of(user)
        if definition is None or "emit" not in definition.rules or type_of(user.results[0]).shape != wide:
            return None
        others = [v for v in user.operands if v != op.results[0]]
        if not any(type_of(v).shape == wide for v in others):
            return None
    return [op.operands[0]] if users else None


_RULES: dict[str, Callable[[ir.Operation], list[ir.Value] | None]] = {
    "mlc.reshape": _reshape,
    "mlc.transpose": _transpose,
    "mlc.broadcast_to": _broadcast,
    "mlc.cast": _unchanged,
    "mlc.slice": _slice,
    "mlc.concat": _concat,
    "mlc.pad": _pad,
    "mlc.matmul": _matmul,
    "mlc.conv": _conv,
}


@dataclass(frozen=True)
class Simplify(Pass):
    """Applies the rules above until none fits, and drops what became dead.

    Before: any L0 module. After: no view of the same kind on a view, no identity view, no transpose of the last two
    dimensions into a matmul, no reshape of a product's rows after it.
    """

    def run(self, module: ir.Module) -> None:
        for function in functions(module).values():
            block = body_of(function)
            changed = True
            while changed:
                changed = False
                for operation in mlc_ops(block):
                    rule = _RULES.get(operation.name)
                    values = rule(operation) if rule is not None else None
                    if values is not None and values[0].owner != operation:
                        replace_op(operation, values)
                        changed = True
                drop_dead(block)
