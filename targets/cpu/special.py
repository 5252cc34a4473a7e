"""Ops with a `kernel` rule: sequential or multi-result code, one tile at a time."""

from __future__ import annotations

from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.dims import Size
from mlir import ir

from .index import Ix
from .kernel import Kernel
from .loops import KernelBody, for_tiles


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

    def tile_body(tile: ir.Value) -> None:
        rule(k, Ix(k, tile), operands, outs, **attrs)

    for_tiles(k, begin, end, tile_body)
    return tiles
