"""Ops with a `kernel` rule: sequential or multi-result code, one tile at a time."""

from __future__ import annotations

from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.dims import Size, product
from mlc.dialects.types import DTYPES
from mlc.dialects.val import memory_type
from mlc.dialects.views import contiguous
from mlir import ir
from mlir.dialects import llvm

from .index import Ix
from .kernel import Buffer, EmitError, Kernel, pointer_type
from .loops import KernelBody, for_tiles

# What the scratch arrays of one tile may take of a thread's stack.
SCRATCH_BYTES_MAX = 65536


def emit_special(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """Runs the hero's `kernel` rule for each tile; its `tiles` rule says how many there are.

    A rule `kernel:cpu`, where there is one, emits the loop over tiles itself and gives their count, or None where it
    cannot take these operands.
    """
    operation = body.results[0].owner.operation
    definition, attrs = definition_of(operation), attrs_of(operation)
    if "kernel:cpu" in definition.rules:
        count = definition.rules["kernel:cpu"](k, body, operation, begin, end)
        if count is not None:
            return count
    operands = [v for o in operands_of(operation) for v in (o if isinstance(o, list) else [o])]
    types = [None if v is None else type_of(v) for v in operands]
    rule = definition.rules["kernel"]
    tiles = definition.rules["tiles"](*types, **attrs)
    outs = list(body.buffers)
    for result in body.results:
        k.buffers.pop(result, None)
    if "scratch" in definition.rules:
        outs += [_scratch(dtype, shape, operation) for dtype, shape in definition.rules["scratch"](*types, **attrs)]

    def tile_body(tile: ir.Value) -> None:
        rule(k, Ix(k, tile), operands, outs, **attrs)

    for_tiles(k, begin, end, tile_body)
    return tiles


def _scratch(dtype: str, shape: tuple[Size, ...], operation: ir.Operation) -> Buffer:
    """A stack array of one tile. Its size must be known and small."""
    elements = product(shape)
    if not isinstance(elements, int) or elements * DTYPES[dtype].bytes > SCRATCH_BYTES_MAX:
        raise EmitError(f"{operation.name} needs {elements} elements of scratch, more than a stack holds ({operation.location})")
    from mlir.dialects import arith

    count = arith.constant(ir.IntegerType.get_signless(64), max(elements, 1))
    pointer = llvm.alloca(pointer_type(), count, memory_type(dtype), alignment=64)
    return Buffer(pointer, dtype, contiguous(shape))
