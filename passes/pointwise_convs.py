"""Convolutions of a single tap are products: [pixels, inputs] x [inputs, outputs].

Transposed ones whose taps do not overlap are too: each input pixel makes a block of output pixels of its own.
"""

from __future__ import annotations

import math
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


def _is_upsampling(operation: ir.Operation) -> bool:
    """Whether a transposed convolution has a tap for each output pixel and no more."""
    if operation.name != "mlc.conv_transpose":
        return False
    attrs, x, w = attrs_of(operation), type_of(operation.operands[0]), type_of(operation.operands[1])
    source = operation.operands[1].owner
    if isinstance(source, ir.Block) or source.operation.name != "mlc.weight" or attrs["layout"] != "nhwc":
        return False
    if attrs["groups"] != 1 or any(d != 1 for d in attrs["dilations"]) or list(w.shape[2:]) != list(attrs["strides"]):
        return False
    return x.dtype == w.dtype and not any((*attrs["pads_low"], *attrs["pads_high"], *attrs["output_pads"]))


def _upsampled(builder: OpBuilder, operation: ir.Operation) -> Value:
    """A product with [inputs, taps x outputs], its blocks of pixels put beside each other."""
    x, w, bias = operands_of(operation)
    inputs, outputs, *taps = type_of(w).shape
    rank = len(taps)
    batch, *sizes, _ = type_of(x).shape
    turned = builder.transpose(Value(w), perm=[0, *range(2, 2 + rank), 1])
    matrix = builder.reshape(turned, shape=[inputs, math.prod(taps) * outputs])
    blocks = builder.reshape(builder.matmul(Value(x), matrix), shape=[batch, *sizes, *taps, outputs])
    order = [place for d in range(rank) for place in (1 + d, 1 + rank + d)]
    pixels = builder.transpose(blocks, perm=[0, *order, 1 + 2 * rank])
    result = builder.reshape(pixels, shape=list(type_of(operation.results[0]).shape))
    return result if bias is None else builder.add(result, Value(bias))


@dataclass(frozen=True)
class PointwiseConvs(Pass):
    """Rewrites conv of one tap, channels last, as matmul, and conv_transpose of taps that do not overlap.

    Before: layouts are chosen. After: products of one tensor can be merged, and rows of pixels are one dimension.
    """

    def run(self, module: ir.Module) -> None:
        for operation in mlc_ops(body_of(functions(module)["forward"])):
            if _is_upsampling(operation):
                builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
                replace_op(operation, [_upsampled(builder, operation).ir])
                continue
            if not _is_product(operation):
                continue
            x, w, bias = operands_of(operation)
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            matrix = builder.reshape(Value(w), shape=list(type_of(w).shape[:2]))
            result = builder.matmul(Value(x), matrix, transpose_b=True)
            replace_op(operation, [(result if bias is None else builder.add(result, Value(bias))).ir])
