"""Products and convolutions with weights take their factors in fewer bits; sums and all else stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlc.dialects.build import attrs_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.machine import Machine
from mlc.dialects.types import DTYPES
from mlc.dialects.views import VIEW_OPS
from mlir import ir

from .base import Pass, PassError
from .dce import drop_dead
from .rewriting import body_of, functions, mlc_ops, replace_op

# Products as large as their weights: a channel a group has no sum over channels, and waits for memory.
_GROUP_MIN = 8


def _is_weight(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "mlc.weight"


def _takes_narrow(operation: ir.Operation, has_dot: bool) -> bool:
    """Whether the op is a product with a weight, in f32, that gains by narrow factors."""
    if operation.name != "mlc.matmul" and not (has_dot and operation.name == "mlc.conv"):
        return False
    factors = list(operation.operands)[:2]
    if any(type_of(f).dtype != "f32" for f in factors) or not _is_weight(factors[1]):
        return False
    if operation.name == "mlc.matmul":
        return not attrs_of(operation)["transpose_a"]
    attrs, w = attrs_of(operation), type_of(factors[1])
    return attrs["layout"] == "nhwc" and (attrs["groups"] == 1 or w.shape[1] >= _GROUP_MIN)


def _narrowed(value: ir.Value, dtype: str) -> Value:
    """`value` in `dtype`: what is beneath its views is converted, where it is made, and the views are taken again."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        builder = OpBuilder(ir.InsertionPoint.at_block_begin(owner), ir.Location.unknown())
        return builder.cast(Value(value), dtype=dtype)
    operation = owner.operation
    builder = OpBuilder(ir.InsertionPoint.after(operation), operation.location)
    if operation.name.removeprefix("mlc.") in VIEW_OPS and type_of(operation.operands[0]).bytes == type_of(value).bytes:
        view: Callable[..., Value] = getattr(builder, operation.name.removeprefix("mlc."))
        return view(_narrowed(operation.operands[0], dtype), **attrs_of(operation))
    return builder.cast(Value(value), dtype=dtype)


@dataclass(frozen=True)
class ReducePrecision(Pass):
    """Rounds both factors of products with weights to `dtype`; sums and results are f32.

    Where no instruction multiplies pairs of it, only weights of matmul are rounded: they are widened when loaded, which
    costs less than their bytes would; the other factor, and convolutions, would lose time and accuracy. Grouped
    convolutions of few channels, attention and recurrent layers keep f32.

    Before: L0, weights folded. After: narrow weights are casts for `fold` to compute; equal casts are for `cse`.
    """

    dtype: str = "bf16"

    def run(self, module: ir.Module) -> None:
        if self.dtype not in DTYPES or not DTYPES[self.dtype].is_narrow_float or DTYPES[self.dtype].is_stored_only:
            raise PassError(f"factors of products are f16 or bf16, not {self.dtype}")
        has_dot = Machine.of(module).has_dot(self.dtype)
        block = body_of(functions(module)["forward"])
        for operation in list(mlc_ops(block)):
            if not _takes_narrow(operation, has_dot):
                continue
            first, weight, *others = operands_of(operation)
            factor = _narrowed(first, self.dtype) if has_dot else Value(first)
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            product = getattr(builder, operation.name.removeprefix("mlc."))
            rest = [None if value is None else Value(value) for value in others]
            attrs = {**attrs_of(operation), "wide": True}
            result = product(factor, builder.cast(Value(weight), dtype=self.dtype), *rest, **attrs)
            replace_op(operation, [result.ir])
        drop_dead(block)
