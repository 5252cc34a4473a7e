"""Convolutions of 3x3 by Winograd's F(2x2, 3x3), where the work saved is more than what its transforms take."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.dims import Size
from mlc.dialects.machine import Machine, register_tile
from mlc.dialects.winograd import POINTS, Slot
from mlir import ir

from .base import Pass
from .heroes import is_tiled
from .rewriting import body_of, functions, mlc_ops, replace_op

_CHANNELS_MIN = 32  # inputs and outputs: a transform costs about as much as 4 of them
_CHANNELS_MAX = 2048  # of which a row of zeros lies on the stack
_TILES_MIN = 12  # that share transformed weights, which cost about as much as 4
_STEP = 2  # outputs of a tile along a dimension
_THREADS = 2  # that kernel tiles are balanced for
_SHARES = 4  # kernel tiles a thread
_GROUP_ROWS = 24  # tiles whose sums stay in the first-level cache together


def _pays(operation: ir.Operation) -> bool:
    """Error of F(2x2): 1.3 to 2.5 times that of direct sums in slices of 128, 0.6 times that of plain ones."""
    if operation.name != "mlc.conv" or not is_tiled(operation):
        return False
    attrs, x, w = attrs_of(operation), type_of(operation.operands[0]), type_of(operation.operands[1])
    if x.dtype != "f32" or w.dtype != "f32" or x.rank != 4 or w.shape[2:] != (3, 3) or attrs["groups"] != 1:
        return False
    if any(n != 1 for n in (*attrs["strides"], *attrs["dilations"])):
        return False
    outputs, channels = w.shape[:2]
    return _CHANNELS_MIN <= channels <= _CHANNELS_MAX and outputs >= _CHANNELS_MIN


def _block(tiles: Size, room: int, rows: int) -> int:
    """Tiles of a block: as many as fit in the room, in whole register tiles, equal shares of a number known now."""
    most = max(rows, room // rows * rows)
    if not isinstance(tiles, int):
        return most
    blocks = -(-tiles // most)
    return -(-tiles // blocks // rows) * rows if blocks > 1 else -(-tiles // rows) * rows


@dataclass(frozen=True)
class Winograd(Pass):
    """Rewrites conv of 3x3 with steps of one as conv_winograd with scratch memory.

    Before: L0, convolutions channels last. After: kernel tiles fit this machine's caches.
    """

    def run(self, module: ir.Module) -> None:
        machine = Machine.of(module)
        for operation in mlc_ops(body_of(functions(module)["forward"])):
            if _pays(operation):
                _rewrite(operation, machine)


def _rewrite(operation: ir.Operation, machine: Machine) -> None:
    attrs, (x, w, bias) = attrs_of(operation), operands_of(operation)
    channels, outputs = type_of(x).shape[-1], type_of(w).shape[0]
    batch, *spatial, _ = type_of(operation.results[0]).shape
    rows, panel = register_tile(machine.registers, machine.vector_bits)[0], machine.panel_columns("f32")
    if channels % (machine.vector_bits // 32):
        return
    tiles = dims.product([batch, *(dims.ceildiv(size, _STEP) for size in spatial)])
    if isinstance(tiles, int) and tiles < _TILES_MIN:
        return
    block = _block(tiles, 2 * machine.l2_bytes // (POINTS * channels * 4), rows)
    panels = -(-outputs // panel)
    blocks = -(-tiles // block) if isinstance(tiles, int) else 2
    shares = min(panels, max(1, -(-_SHARES * _THREADS // blocks)))
    columns = -(-panels // shares) * panel
    group = max(1, _GROUP_ROWS // rows) * rows
    slot = Slot(channels, block, group, panel)
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    slots = dims.ceildiv(tiles, block) * -(-outputs // columns)
    memory = builder.scratch(shape=[slots, slot.elements], dtype="f32")
    result = builder.conv_winograd(
        Value(x), Value(w), memory, None if bias is None else Value(bias), pads_low=attrs["pads_low"],
        pads_high=attrs["pads_high"], block=block, columns=columns, group=group,
    )  # fmt: skip
    replace_op(operation, [result.ir])
