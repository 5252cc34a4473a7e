"""Convolutions of a single tap are products: [pixels, inputs] x [inputs, outputs]."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import attrs_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlir import ir

from .base import Pass
from .heroes import is_tiled
from .rewriting import body_of, functions, mlc_ops, replace_op


def _is_product(operation: ir.Operation) -> bool:
    if operation.name != "mlc.conv" or not is_tiled(operation):
        return False
    attrs, x, w = attrs_of(operation), type_of(operation.operands[0]), type_of(operation.operands[1])
    if attrs["groups"] != 1 or x.dtype != w.dtype or x.dtype != type_of(operation.results[0]).dtype:
        return False
    is_one_tap = all(n == 1 for n in (*w.shape[2:], *attrs["strides"]))
    return is_one_tap and not any((*attrs["pads_low"], *attrs["pads_high"]))


@dataclass(frozen=True)
class PointwiseConvs(Pass):
    """Rewrites conv of one tap, channels last, as matmul.

    Before: layouts are chosen. After: products of one tensor can be merged, and rows of pixels are one dimension.
    """

    def run(self, module: ir.Module) -> None:
        for operation in mlc_ops(body_of(functions(module)["forward"])):
            if not _is_product(operation):
                continue
            x, w, bias = operands_of(operation)
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            matrix = builder.reshape(Value(w), shape=list(type_of(w).shape[:2]))
            result = builder.matmul(Value(x), matrix, transpose_b=True)
            replace_op(operation, [(result if bias is None else builder.add(result, Value(bias))).ir])
