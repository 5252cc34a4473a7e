"""Lowers composites that no fused emitter takes, and gives reductions a plain form."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir

from .base import Pass
from .heroes import is_tiled
from .rewriting import body_of, functions, lower_in_place, mlc_ops, replace_op

# Composites whose parts form one row program when the axis is the last: kept whole until kernels are cut.
_ROW_COMPOSITES = ("softmax", "log_softmax", "layer_norm", "rms_norm")


def is_row_composite(operation: ir.Operation) -> bool:
    """Whether the op reduces trailing dimensions only, so that one kernel can hold all of it."""
    definition = definition_of(operation)
    if definition is None or definition.name not in _ROW_COMPOSITES:
        return False
    axis = attrs_of(operation)["axis"]
    return definition.name in ("layer_norm", "rms_norm") or axis == type_of(operation.operands[0]).rank - 1


@dataclass(frozen=True)
class Decompose(Pass):
    """Replaces composites by their parts, and reductions that drop dimensions by one that keeps them and a reshape.

    Before: any L0 module. After: the composites left are softmax, log_softmax over the last axis, layer_norm and
    rms_norm; every `reduce` op has keepdims.
    """

    def run(self, module: ir.Module) -> None:
        for function in functions(module).values():
            block = body_of(function)
            changed = True
            while changed:
                changed = False
                for operation in mlc_ops(block):
                    changed |= self._rewrite(operation)

    def _rewrite(self, operation: ir.Operation) -> bool:
        definition = definition_of(operation)
        is_composite = definition.kind == "composite" or (definition.kind == "contract" and "lower" in definition.rules)
        if is_composite and not is_row_composite(operation) and not is_tiled(operation):
            lower_in_place(operation)
            return True
        if definition.kind == "reduce" and attrs_of(operation).get("keepdims") is False:
            _keep_dims(operation)
            return True
        return False


def _keep_dims(operation: ir.Operation) -> None:
    definition = definition_of(operation)
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    attrs = attrs_of(operation) | {"keepdims": True}
    kept = builder.op(definition.name, *[Value(v) for v in operation.operands], **attrs)
    shape = list(type_of(operation.results[0]).shape)
    replace_op(operation, [builder.reshape(kept, shape=shape).ir])
