"""Products of one tensor with several weights become one product: query, key and value projections, above all.

A is then read and the threads meet once instead of three times. Each reader sees its columns through a slice, which is
free where it is read through strides; so products that elementwise ops follow stay apart: those belong to their tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.views import VIEW_OPS
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .fold import constant_source
from .rewriting import body_of, functions, mlc_ops, users_of


@dataclass(frozen=True)
class _Linear:
    """x W, or x W + b: the product, and the value that others read."""

    product: ir.Operation
    bias: ir.Value | None
    result: ir.Value

    @property
    def columns(self) -> int:
        return type_of(self.result).shape[-1]


def _constant(value: ir.Value, rank: int) -> bool:
    return constant_source(value) is not None and type_of(value).rank == rank


def _linear(product: ir.Operation) -> _Linear | None:
    if not _constant(product.operands[1], 2) or attrs_of(product)["transpose_a"]:
        return None
    result = product.results[0]
    users = users_of(result)
    if len(users) == 1 and users[0].name == "mlc.add":
        add = users[0]
        other = add.operands[1 if add.operands[0] == result else 0]
        if not _constant(other, 1) or type_of(other).shape != type_of(result).shape[-1:]:
            return None
        return _Linear(product, other, add.results[0])
    return _Linear(product, None, result)


def _is_read_in_place(value: ir.Value) -> bool:
    """Whether views alone follow, and none of them is a result of the model, which would be one more copy."""
    users = users_of(value)
    return bool(users) and all(_is_view(u) and not _is_returned(u.results[0]) for u in users)


def _is_view(operation: ir.Operation) -> bool:
    definition = definition_of(operation)
    return definition is not None and definition.name in VIEW_OPS


def _is_returned(value: ir.Value) -> bool:
    return any(u.name == "func.return" or (_is_view(u) and _is_returned(u.results[0])) for u in users_of(value))


def _groups(block: ir.Block) -> Iterator[list[_Linear]]:
    """Linear layers over the same tensor, with the same form of weight and all with a bias or all without."""
    found: dict[tuple, list[_Linear]] = {}
    for operation in mlc_ops(block):
        linear = _linear(operation) if operation.name == "mlc.matmul" else None
        if linear is None or not _is_read_in_place(linear.result):
            continue
        weight = type_of(operation.operands[1])
        key = (operation.operands[0], attrs_of(operation)["transpose_b"], weight.dtype, linear.bias is None)
        found.setdefault(key, []).append(linear)
    yield from (group for group in found.values() if len(group) > 1)


def _move_to_front(source: ir.Operation) -> None:
    """A weight before everything: others may read it before the product, or it may come after."""
    front = source.block.operations[0].operation
    if front != source:
        source.move_before(front)


def _merge(group: list[_Linear]) -> None:
    first = group[0].product
    attrs = attrs_of(first)
    builder = OpBuilder(ir.InsertionPoint(first), ir.Location.fused([one.product.location for one in group]))
    for one in group:
        for value in filter(None, (one.product.operands[1], one.bias)):
            _move_to_front(value.owner.operation)
    axis = 0 if attrs["transpose_b"] else 1
    weights = builder.concat(*(Value(one.product.operands[1]) for one in group), axis=axis)
    merged = builder.matmul(Value(first.operands[0]), weights, **attrs)
    if group[0].bias is not None:
        merged = builder.add(merged, builder.concat(*(Value(one.bias) for one in group), axis=0))
    lead, start = list(merged.shape[:-1]), 0
    for one in group:
        stop = start + one.columns
        starts, limits = [*[0] * len(lead), start], [*lead, stop]
        part = builder.slice(merged, starts=starts, limits=limits, steps=[1] * (len(lead) + 1))
        one.result.replace_all_uses_with(part.ir)
        start = stop


@dataclass(frozen=True)
class MergeProducts(Pass):
    """Joins linear layers over the same tensor whose results are read as views.

    Before: simplify ran. After: no two such products; their weights are concatenations for `fold` to compute.
    """

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        for group in list(_groups(block)):
            _merge(group)
        drop_dead(block)
