"""Recognises attention that an exporter spelt out: softmax(q k^T * scale + mask) v."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import attrs_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .rewriting import body_of, functions, mlc_ops, replace_op, users_of
from .simplify import producer


@dataclass(frozen=True)
class _Scores:
    """q k^T as found: its operands, what it is multiplied by, what is added."""

    product: ir.Operation
    scale: float
    mask: ir.Value | None


def _scalar(value: ir.Value) -> float | None:
    constant = producer(value, "constant")
    if constant is None:
        return None
    array = attrs_of(constant)["value"]
    return float(array.reshape(-1)[0]) if array.size == 1 else None


def _is_private(value: ir.Value) -> bool:
    return len(users_of(value)) == 1


def _scaled_product(value: ir.Value) -> tuple[ir.Operation, float] | None:
    """matmul, or matmul times or over a constant."""
    scale = 1.0
    while True:
        product = producer(value, "matmul")
        if product is not None:
            return (product, scale) if _is_private(value) else None
        owner = producer(value, "mul") or producer(value, "div")
        if owner is None or not _is_private(value):
            return None
        left, right = _scalar(owner.operands[0]), _scalar(owner.operands[1])
        if owner.name == "mlc.div":
            if right is None:
                return None
            scale, value = scale / right, owner.operands[0]
        elif right is not None:
            scale, value = scale * right, owner.operands[0]
        elif left is not None:
            scale, value = scale * left, owner.operands[1]
        else:
            return None


def _scores(value: ir.Value) -> _Scores | None:
    found = _scaled_product(value)
    if found is not None:
        return _Scores(*found, mask=None)
    add = producer(value, "add")
    if add is None or not _is_private(value):
        return None
    for position in range(2):
        found = _scaled_product(add.operands[position])
        if found is not None and type_of(add.operands[position]).shape == type_of(value).shape:
            return _Scores(*found, mask=add.operands[1 - position])
    return None


def _swap_last(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _softmax(value: ir.Value) -> ir.Operation | None:
    """The softmax that `value` is, if nothing else reads it; perhaps with zeros where it is NaN.

    Exporters write those for queries that see no key, where the op gives 0 anyway.
    """
    where = producer(value, "where")
    if where is None:
        return producer(value, "softmax") if _is_private(value) else None
    test, zero, kept = where.operands
    isnan = producer(test, "isnan")
    if isnan is None or not _is_private(value) or not _is_private(test) or _scalar(zero) != 0:
        return None
    return producer(kept, "softmax") if isnan.operands[0] == kept and len(users_of(kept)) == 2 else None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """`value` as a tensor times a number."""
    scale = 1.0
    while (product := producer(value, "mul")) is not None:
        pairs = [(x, _scalar(y)) for x, y in (product.operands, reversed(list(product.operands)))]
        found = [(x, n) for x, n in pairs if n is not None and type_of(x).shape == type_of(value).shape]
        if not found:
            break
        value, scale = found[0][0], scale * found[0][1]
    return value, scale


def _untransposed(builder: OpBuilder, value: ir.Value) -> Value:
    """`value` with its last two dimensions swapped: what it was made of, where that is so."""
    shape = type_of(value).shape
    transpose = producer(value, "transpose")
    if transpose is not None and attrs_of(transpose)["perm"] == _swap_last(len(shape)):
        return Value(transpose.operands[0])
    reshape = producer(value, "reshape")
    if reshape is not None and type_of(reshape.operands[0]).shape[-2:] == shape[-2:]:
        inner = producer(reshape.operands[0], "transpose")
        if inner is not None and attrs_of(inner)["perm"] == _swap_last(type_of(inner.results[0]).rank):
            return builder.reshape(Value(inner.operands[0]), shape=[*shape[:-2], shape[-1], shape[-2]])
    return builder.transpose(Value(value), perm=_swap_last(len(shape)))


def _ungrouped(builder: OpBuilder, value: ir.Value) -> Value | None:
    """The heads of which `value` [*batch, heads, keys, depth] repeats each a number of times, side by side."""
    *batch, heads, keys, depth = type_of(value).shape
    source = value
    while (reshape := producer(source, "reshape")) is not None:
        source = reshape.operands[0]
    repeat = producer(source, "broadcast_to")
    if repeat is None:
        return None
    narrow, wide = type_of(repeat.operands[0]).shape, type_of(source).shape
    if len(narrow) != len(wide) or len(wide) < 4 or wide[-2:] != (keys, depth):
        return None
    *lead, groups, count = wide[:-2]
    is_repeat = narrow == (*lead, groups, 1, keys, depth) and count != 1
    if not is_repeat or groups * count != heads or [s for s in lead if s != 1] != [s for s in batch if s != 1]:
        return None
    return builder.reshape(Value(repeat.operands[0]), shape=[*batch, groups, keys, depth])


def _share_heads(operation: ir.Operation) -> None:
    """Keys and values that were repeated for the heads of a group are read as they are."""
    q, k, v, *mask = operation.operands
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    key, value = (_ungrouped(builder, x) for x in (k, v))
    if key is None or value is None or key.shape[-3] != value.shape[-3]:
        return
    given = [Value(m) for m in mask] or [None]
    replace_op(operation, [builder.attention(Value(q), key, value, *given, **attrs_of(operation)).ir])


def _match(operation: ir.Operation) -> Value | None:
    """`operation` is the second matmul; its replacement, or None."""
    attrs = attrs_of(operation)
    softmax = _softmax(operation.operands[0])
    if softmax is None or attrs["transpose_a"] or attrs["transpose_b"]:
        return None
    rank = type_of(operation.results[0]).rank
    if rank < 4 or attrs_of(softmax)["axis"] != rank - 1:
        return None
    scores = _scores(softmax.operands[0])
    if scores is None or attrs_of(scores.product)["transpose_a"]:
        return None
    (q, q_scale), (k, k_scale) = map(_unscaled, scores.product.operands)
    v = operation.operands[1]
    batch = type_of(q).shape[:-2]
    if any(type_of(x).shape[:-2] != batch for x in (k, v)):
        return None
    builder = OpBuilder(
        ir.InsertionPoint(operation), ir.Location.fused([scores.product.location, softmax.location, operation.location])
    )
    key = Value(k) if attrs_of(scores.product)["transpose_b"] else _untransposed(builder, k)
    scale = scores.scale * q_scale * k_scale
    mask = None if scores.mask is None else Value(scores.mask)
    return builder.attention(Value(q), key, Value(v), mask, scale=scale, is_causal=False)


@dataclass(frozen=True)
class MatchAttention(Pass):
    """Replaces matmul, scale, mask, softmax, matmul by `mlc.attention`, which never holds all scores.

    Before: simplify ran. After: no such chain between values that nothing else reads, no attention over keys and values
    that are repeated for groups of heads.
    """

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        for operation in mlc_ops(block):
            if operation.name == "mlc.matmul":
                found = _match(operation)
                if found is not None:
                    replace_op(operation, [found.ir])
        for operation in mlc_ops(block):
            if operation.name == "mlc.attention":
                _share_heads(operation)
        drop_dead(block)
