"""Code of `pack_panels`: blocks of rows of a few panels as tiles."""

from __future__ import annotations

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.matmul import pack_panels
from mlir import ir

from .contract import strided_operand, swapped
from .isa import index
from .isa.memory import offset_ptr
from .kernel import Kernel
from .loops import KernelBody
from .packing import PanelCopy

# Rows of a tile: their lines in the source stay in the first-level cache while neighbouring panels take their share.
_ROWS = 64
_PANELS = 8


@pack_panels.rule("kernel:cpu")
def emit_pack_panels(k: Kernel, body: KernelBody, operation: ir.Operation, begin: ir.Value, end: ir.Value) -> Size:
    """The loop over tiles [*batch, groups of panels, blocks of rows], and their count."""
    attrs, result = attrs_of(operation), type_of(operation.results[0])
    source = strided_operand(k, operation.operands[0])
    if attrs["is_transposed"]:
        source = swapped(source)
    *batch, count, depth, width = result.shape
    shape = type_of(operation.operands[0]).shape
    columns = k.size(shape[-2] if attrs["is_transposed"] else shape[-1])
    grid = [*batch, dims.ceildiv(count, _PANELS), dims.ceildiv(depth, _ROWS)]
    target = body.buffers[0].pointer

    def tile(number: ir.Value) -> None:
        *place, group, block = index.delinearize(number, [k.size(size) for size in grid])
        row = index.mul(block, _ROWS)
        rows = index.minimum(_ROWS, index.sub(k.size(depth), row))
        first = index.mul(group, _PANELS)
        stop = index.minimum(k.size(count), index.add(first, _PANELS))

        def panel(number: ir.Value) -> None:
            column = index.mul(number, width)
            flat: index.Size = 0
            for position, size in zip(place, batch, strict=True):
                flat = index.add(index.mul(flat, k.size(size)), position)
            offset = index.add(index.mul(flat, k.size(count)), number)
            offset = index.mul(index.add(index.mul(offset, k.size(depth)), row), width)
            PanelCopy(
                k.isa, source.at([*place, row, column]), source.dtype, source.strides[-2], source.strides[-1], rows,
                index.sub(columns, column), offset_ptr(target, offset, source.dtype), width,
            ).emit()  # fmt: skip

        index.each(first, stop, 1, panel)

    index.each(begin, end, 1, tile)
    return dims.product(grid)
