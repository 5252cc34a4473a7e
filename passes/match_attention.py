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


def _match(operation: ir.Operation) -> Value | None:
    """`operation` is the second matmul; its replacement, or None."""
    attrs = attrs_of(operation)
    softmax = producer(operation.operands[0], "softmax")
    if softmax is None or attrs["transpose_a"] or attrs["transpose_b"] or not _is_private(operation.operands[0]):
        return None
    rank = type_of(operation.results[0]).rank
    if rank < 4 or attrs_of(softmax)["axis"] != rank - 1:
        return None
    scores = _scores(softmax.operands[0])
    if scores is None or attrs_of(scores.product)["transpose_a"]:
        return None
    q, k, v = scores.product.operands[0], scores.product.operands[1], operation.operands[1]
    batch = type_of(q).shape[:-2]
    if any(type_of(x).shape[:-2] != batch for x in (k, v)):
        return None
    builder = OpBuilder(
        ir.InsertionPoint(operation), ir.Location.fused([scores.product.location, softmax.location, operation.location])
    )
    key = Value(k)
    if not attrs_of(scores.product)["transpose_b"]:
        key = builder.transpose(key, perm=_swap_last(rank))
    mask = None if scores.mask is None else Value(scores.mask)
    return builder.attention(Value(q), key, Value(v), mask, scale=scores.scale, is_causal=False)


@dataclass(frozen=True)
class MatchAttention(Pass):
    """Replaces matmul, scale, mask, softmax, matmul by `mlc.attention`, which never holds all scores.

    Before: simplify ran. After: no such chain between values that nothing else reads.
    """

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        for operation in mlc_ops(block):
            if operation.name == "mlc.matmul":
                found = _match(operation)
                if found is not None:
                    replace_op(operation, [found.ir])
        drop_dead(block)
