"""Packs right operands of products at run time, where enough rows meet them; weights are packed when compiled."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import attrs_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.machine import Machine
from mlc.dialects.types import DTYPES
from mlir import ir

from .base import Pass
from .rewriting import body_of, functions, mlc_ops, replace_op

# A panel is written and read once more, and read from then on by whole lines instead of lines a row apart: measured on
# Zen 3, it pays from a few tiles of rows on.
_ROWS_MIN = 192
_ELEMENTS_MIN = 64 * 64


def _pays(operation: ir.Operation) -> bool:
    a, b = (type_of(value) for value in operation.operands)
    owner = operation.operands[1].owner
    if not isinstance(owner, ir.Block) and owner.operation.name in ("mlc.weight", "mlc.constant"):
        return False
    # Panels hold what sums are made of; narrow types would have to be widened on the way.
    if not a.is_static or not b.is_static or not DTYPES[b.dtype].is_float or DTYPES[b.dtype].bits < 32:
        return False
    rows = a.shape[-1] if attrs_of(operation)["transpose_a"] else a.shape[-2]
    return rows >= _ROWS_MIN and b.shape[-1] * b.shape[-2] >= _ELEMENTS_MIN


@dataclass(frozen=True)
class PackOperands(Pass):
    """Rewrites matmul(a, b) as packed_matmul(a, pack_panels(b)) where b is no weight and many rows meet it.

    Before: L0, all rewrites of products done. After: panels are as wide as the machine's register tile.
    """

    def run(self, module: ir.Module) -> None:
        machine = Machine.of(module)
        for operation in mlc_ops(body_of(functions(module)["forward"])):
            if operation.name != "mlc.matmul" or not _pays(operation):
                continue
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            a, b = (Value(value) for value in operation.operands)
            attrs, width = attrs_of(operation), machine.panel_columns(type_of(b.ir).dtype)
            panels = builder.pack_panels(b, width=width, is_transposed=attrs["transpose_b"])
            columns = type_of(operation.results[0]).shape[-1]
            product = builder.packed_matmul(a, panels, columns=columns, transpose_a=attrs["transpose_a"])
            replace_op(operation, [product.ir])
