"""Recurrent layers at the speed of their weights: one pass over the packed recurrent matrix a step.

A tile is one direction of one block of batch rows. Its register tile holds all gates of the same hidden units, so that
a unit is updated from registers and nothing but the states is kept between steps: the state before is the row of `y`
written last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mlc.dialects import dims, pointwise, recurrent
from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.val import Val
from mlc.dialects.vecmath import sigmoid, tanh
from mlir import ir

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_vector,
    offset_ptr,
    stack_array,
    store_vector,
    sum_dtype,
    zero_vector,
)
from .kernel import Buffer, EmitError, Kernel
from .loops import KernelBody
from .matmul import each_row_tile
from .microkernel import Panel, Rows, Sums, accumulate

_LONE_GATE_PIECES = 4  # registers of hidden units in a panel of one gate
_TILES = 2  # wanted at least, as matmul's plans do: one a thread
_BLOCK_ROWS_MAX = 48  # whose states stay in the first-level cache beside a panel


@dataclass(frozen=True)
class GatePanels:
    """How r [D, G, H] lies packed: [D, group, block, H, gate of the group, unit of the block]; past H are zeros.

    Gates that meet the same state form a group: one panel holds all of them for a block of hidden units.
    """

    hidden: int
    group_count: int
    group_gates: int
    lanes: int

    @staticmethod
    def of(shape: Sequence[int], group_gates: int, isa: Isa, dtype: str) -> GatePanels:
        _, width, hidden = shape
        return GatePanels(hidden, width // hidden // group_gates, group_gates, isa.lanes(sum_dtype(dtype)))

    @property
    def pieces(self) -> int:
        """Registers of one gate in a panel."""
        return _LONE_GATE_PIECES if self.group_gates == 1 else 1

    @property
    def vecs(self) -> int:
        return self.group_gates * self.pieces

    @property
    def units(self) -> int:
        """Hidden units of a block."""
        return self.pieces * self.lanes

    @property
    def blocks(self) -> int:
        return -(-self.hidden // self.units)

    @property
    def panel_elements(self) -> int:
        return self.hidden * self.vecs * self.lanes

    def whole_rows(self, isa: Isa) -> int:
        """Rows of a register tile as wide as a panel: sums, a row of the panel and one more register fit.

        No more sums than the tile of a matrix product has: the microkernel has room for their totals.
        """
        rows, vecs = isa.tile
        return max(1, min(rows * vecs, isa.register_count - 1 - self.vecs) // self.vecs)

    def tile_rows(self, isa: Isa) -> int:
        """Batch rows whose sums are made together.

        Where a tile as wide as a panel holds few sums, the second-level cache's bandwidth would bound it: panels are
        then read in slices, each for more rows.
        """
        rows, vecs = isa.tile
        is_full = 4 * self.whole_rows(isa) * self.vecs >= 3 * rows * vecs or self.vecs % vecs
        return self.whole_rows(isa) if is_full else rows

    def block_rows(self, isa: Isa, batch: Size | dims.Size, directions: Size | dims.Size) -> int:
        """Batch rows of a tile: all share one pass over the weights a step."""
        rows = self.tile_rows(isa)
        if not isinstance(batch, int):
            return 2 * rows
        shares = -(-_TILES // directions) if isinstance(directions, int) and directions else 1
        share = min(_BLOCK_ROWS_MAX, -(-batch // shares))
        return max(1, -(-share // rows)) * rows


def pack_gates(layout: str, array: np.ndarray, isa: Isa, dtype: str) -> np.ndarray:
    """r [D, G, H] as `GatePanels` says; `layout` is "gates-<gates of a group>"."""
    panels = GatePanels.of(array.shape, int(layout.removeprefix("gates-")), isa, dtype)
    count = array.shape[0]
    split = array.reshape(count, panels.group_count, panels.group_gates, panels.hidden, panels.hidden)
    missing = panels.blocks * panels.units - panels.hidden
    split = np.pad(split, [(0, 0), (0, 0), (0, 0), (0, missing), (0, 0)])
    split = split.reshape(*split.shape[:3], panels.blocks, panels.units, panels.hidden)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 5, 2, 4))


@dataclass(frozen=True)
class _States:
    """Rows of states, one a batch row, consecutive in themselves."""

    ptr: ir.Value
    row_stride: Size

    def row(self, number: Size, dtype: str) -> ir.Value:
        return offset_ptr(self.ptr, index.mul(number, self.row_stride), dtype)


@dataclass(frozen=True)
class _Step:
    """One time step of one tile; batch rows count from the tile's first."""

    time: Size
    direction: Size
    batch: Size
    row_count: Size
    before: _States
    after: _States


@dataclass(frozen=True)
class _Units:
    """A register tile of a step: rows and hidden units, and which lanes of each of its pieces are units."""

    first_row: Size
    height: int
    unit: Size
    masks: list[ir.Value | None]


_Place = tuple[Size, Size, Size]  # direction, first batch row and how many rows, of a tile
# start(row, gate, unit, mask): what a sum begins with.
_Start = Callable[[Size, int, Size, "ir.Value | None"], ir.Value]
# update(row, unit, mask, gates): one register of hidden units of one row, from the sums of its gates.
_Update = Callable[[Size, Size, "ir.Value | None", list[Val]], None]


@dataclass(frozen=True)
class Layer:
    """What the cells share: sizes, memory, and the loops over time, hidden units and rows.

    `operands` are those of the op without r, `outs` its results; `stage` is a stack array for the sums of a tile.
    """

    isa: Isa
    panels: GatePanels
    dtype: str
    steps: Size
    batch: Size
    directions: Size
    weights: ir.Value
    operands: tuple[StridedBuffer, ...]
    start: StridedBuffer
    outs: tuple[StridedBuffer, ...]
    stage: ir.Value
    attrs: dict[str, Any]

    @property
    def total(self) -> str:
        return sum_dtype(self.dtype)

    @property
    def rows(self) -> int:
        return self.panels.tile_rows(self.isa)

    def load(self, ptr: ir.Value, mask: ir.Value | None) -> Val:
        return Val(load_vector(self.isa, ptr, self.dtype, mask, like=self.total), self.total)

    def store(self, value: Val, ptr: ir.Value, mask: ir.Value | None) -> None:
        store_vector(value.cast(self.dtype).value, ptr, self.dtype, mask)

    def gate(self, step: _Step, row: Size, gate: int, unit: Size, mask: ir.Value | None) -> Val:
        """What the input gives one gate, before the recurrent product."""
        column = index.add(unit, gate * self.panels.hidden)
        return self.load(self.operands[0].at([step.time, index.add(step.batch, row), step.direction, column]), mask)

    def state(self, states: _States, row: Size, unit: Size) -> ir.Value:
        return offset_ptr(states.row(row, self.dtype), unit, self.dtype)

    def states_at(self, buffer: StridedBuffer, place: Sequence[Size]) -> _States:
        return _States(buffer.at([*place, 0]), buffer.strides[-2])

    def scan(self, place: _Place, body: Callable[[_Step], None]) -> None:
        """`body` for each time step; then the last state is copied out."""
        direction, batch, row_count = place
        begin = self.states_at(self.start, [direction, batch])
        final, way = index.sub(self.steps, 1), self.attrs["direction"]

        def one(number: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            time: Size = number
            if way == "reverse":
                time = index.sub(final, number)
            elif way == "bidirectional":
                back = index.sub(final, index.mul(number, 2))
                time = index.add(number, index.mul(direction, back))
            after = self.states_at(self.outs[0], [time, direction, batch])
            body(_Step(time, direction, batch, row_count, _States(*carried), after))
            return [after.ptr, index.to_value(after.row_stride)]

        ended = index.loop(0, self.steps, 1, [begin.ptr, index.to_value(begin.row_stride)], one)
        self.copy_states(_States(*ended), self.states_at(self.outs[1], [direction, batch]), row_count)

    def copy_states(self, source: _States, target: _States, row_count: Size) -> None:
        def one(row: ir.Value, unit: Size, mask: ir.Value | None) -> None:
            self.store(self.load(self.state(source, row, unit), mask), self.state(target, row, unit), mask)

        whole = self.panels.hidden // self.panels.lanes * self.panels.lanes

        def copy_row(row: ir.Value) -> None:
            index.each(0, whole, self.panels.lanes, lambda unit: one(row, unit, None))
            if whole < self.panels.hidden:
                one(row, whole, lane_mask(self.isa, self.total, self.panels.hidden - whole))

        index.each(0, row_count, 1, copy_row)

    def each_units(self, step: _Step, body: Callable[[_Units], None]) -> None:
        """`body` for every register tile; a panel of weights serves all rows before the next is read."""
        hidden, lanes = self.panels.hidden, self.panels.lanes
        tail = self.batch % self.rows if isinstance(self.batch, int) else None

        def block(unit: Size, counts: list[int]) -> None:
            masks = [None if c == lanes else lane_mask(self.isa, self.total, c) for c in counts]
            each_row_tile(step.row_count, self.rows, lambda row, height: body(_Units(row, height, unit, masks)), tail)

        whole = hidden // self.panels.units * self.panels.units
        if whole:
            index.each(0, whole, self.panels.units, lambda unit: block(unit, [lanes] * self.panels.pieces))
        if whole < hidden:
            block(whole, [min(lanes, hidden - unit) for unit in range(whole, hidden, lanes)])

    def products(self, step: _Step, units: _Units, group: int, states: _States, start: _Start) -> Sums:
        """`start` plus the rows of `states` times the group's panel: [row][gate * pieces + piece]."""
        panels = self.panels
        matrix = index.add(index.mul(step.direction, panels.group_count), group)
        block = index.add(index.mul(matrix, panels.blocks), index.floor_div(units.unit, panels.units))
        ptr = offset_ptr(self.weights, index.mul(block, panels.panel_elements), self.dtype)
        width = panels.vecs if units.height <= panels.whole_rows(self.isa) else self.isa.tile[1]
        row_numbers = [index.add(units.first_row, r) for r in range(units.height)]
        rows = Rows([states.row(row, self.dtype) for row in row_numbers], self.dtype)
        sums: Sums = [[] for _ in row_numbers]
        for first in range(0, panels.vecs, width):
            # Without prefetches: panels follow one another, and the hardware's own did 20% better (Zen 3, 2026-12).
            begin = offset_ptr(ptr, first * panels.lanes, self.dtype)
            panel = Panel(begin, self.dtype, panels.vecs * panels.lanes, width, is_aligned=True)
            starts = [[self._start(units, row, first + v, start) for v in range(width)] for row in row_numbers]
            for row_sums, found in zip(sums, accumulate(self.isa, rows, panel, panels.hidden, starts), strict=True):
                row_sums.extend(found)
        return sums

    def _start(self, units: _Units, row: Size, vec: int, start: _Start) -> ir.Value:
        gate, piece = divmod(vec, self.panels.pieces)
        if piece >= len(units.masks):
            return zero_vector(self.isa, self.total)
        return start(row, gate, index.add(units.unit, piece * self.panels.lanes), units.masks[piece])

    def update(self, units: _Units, sums: list[Sums], update: _Update) -> None:
        """`update` for each row and piece. Several rows go through the stack, so that one copy serves them."""
        pieces, lanes = self.panels.pieces, self.panels.lanes

        def one_row(row: Size, values: list[ir.Value]) -> None:
            for piece, mask in enumerate(units.masks):
                gates = [Val(v, self.total) for v in values[piece::pieces]]
                update(row, index.add(units.unit, piece * lanes), mask, gates)

        joined = [[value for part in sums for value in part[r]] for r in range(units.height)]
        if units.height == 1:
            one_row(units.first_row, joined[0])
            return
        width = len(joined[0])
        for r, values in enumerate(joined):
            for v, value in enumerate(values):
                store_vector(value, offset_ptr(self.stage, (r * width + v) * lanes, self.total), self.total)

        def staged_row(r: ir.Value) -> None:
            base = offset_ptr(self.stage, index.mul(r, width * lanes), self.total)
            values = [load_vector(self.isa, offset_ptr(base, v * lanes, self.total), self.total) for v in range(width)]
            one_row(index.add(units.first_row, r), values)

        index.each(0, units.height, 1, staged_row)


def _sigmoid(value: Val) -> Val:
    return Val(sigmoid(value.value), value.dtype)


def _tanh(value: Val) -> Val:
    return Val(tanh(value.value), value.dtype)


# cells: the body of a step -------------------------------------------------------------------------------------------
def _lstm(layer: Layer, place: _Place) -> None:
    direction, batch, row_count = place
    cells = layer.states_at(layer.outs[2], [direction, batch])
    layer.copy_states(layer.states_at(layer.operands[2], [direction, batch]), cells, row_count)
    layer.scan(place, partial(_lstm_step, layer, cells))


def _lstm_step(layer: Layer, cells: _States, step: _Step) -> None:

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        i, o, f = (_sigmoid(v) for v in gates[:3])
        place = layer.state(cells, row, unit)
        cell = f.fma(layer.load(place, mask), i * _tanh(gates[3]))
        layer.store(cell, place, mask)
        layer.store(o * _tanh(cell), layer.state(step.after, row, unit), mask)

    def block(units: _Units) -> None:
        sums = layer.products(step, units, 0, step.before, lambda *at: layer.gate(step, *at).value)
        layer.update(units, [sums], update)

    layer.each_units(step, block)


def _rnn(layer: Layer, place: _Place) -> None:
    layer.scan(place, partial(_rnn_step, layer))


def _rnn_step(layer: Layer, step: _Step) -> None:
    activation = layer.attrs["activation"]

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        out = _tanh(gates[0]) if activation == "tanh" else pointwise.relu.rules["emit"](gates[0])
        layer.store(out, layer.state(step.after, row, unit), mask)

    def block(units: _Units) -> None:
        sums = layer.products(step, units, 0, step.before, lambda *at: layer.gate(step, *at).value)
        layer.update(units, [sums], update)

    layer.each_units(step, block)


def _gru(layer: Layer, place: _Place) -> None:
    step = _gru_step if layer.attrs["linear_before_reset"] else _gru_reset_first_step
    layer.scan(place, partial(step, layer))


def _gru_step(layer: Layer, step: _Step) -> None:
    """The reset gate scales the hidden product: all gates meet the same state."""
    hidden_bias = layer.operands[1]

    def start(row: Size, gate: int, unit: Size, mask: ir.Value | None) -> ir.Value:
        if gate == 2:
            return layer.load(hidden_bias.at([step.direction, unit]), mask).value
        return layer.gate(step, row, gate, unit, mask).value

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        new = _tanh(_sigmoid(gates[1]).fma(gates[2], layer.gate(step, row, 2, unit, mask)))
        _store_blend(layer, step, row, unit, mask, _sigmoid(gates[0]), new)

    def block(units: _Units) -> None:
        layer.update(units, [layer.products(step, units, 0, step.before, start)], update)

    layer.each_units(step, block)


def _store_blend(
    layer: Layer, step: _Step, row: Size, unit: Size, mask: ir.Value | None, kept: Val, new: Val
) -> None:  # fmt: skip
    before = layer.load(layer.state(step.before, row, unit), mask)
    layer.store(kept.fma(before - new, new), layer.state(step.after, row, unit), mask)


def _gru_reset_first_step(layer: Layer, step: _Step) -> None:
    """The reset gate scales the state, so its product waits for all of it; kept where the last state will be."""
    hidden_bias = layer.operands[1]
    scaled = layer.states_at(layer.outs[1], [step.direction, step.batch])

    def start(gate: int, row: Size, _: int, unit: Size, mask: ir.Value | None) -> ir.Value:
        value = layer.gate(step, row, gate, unit, mask)
        return (value + layer.load(hidden_bias.at([step.direction, unit]), mask) if gate == 2 else value).value

    def reset(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        before = layer.load(layer.state(step.before, row, unit), mask)
        layer.store(_sigmoid(gates[0]) * before, layer.state(scaled, row, unit), mask)

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        _store_blend(layer, step, row, unit, mask, _sigmoid(gates[0]), _tanh(gates[1]))

    def first(units: _Units) -> None:
        layer.update(units, [layer.products(step, units, 1, step.before, partial(start, 1))], reset)

    def second(units: _Units) -> None:
        kept = layer.products(step, units, 0, step.before, partial(start, 0))
        layer.update(units, [kept, layer.products(step, units, 2, scaled, partial(start, 2))], update)

    layer.each_units(step, first)
    layer.each_units(step, second)


_CELLS = {"lstm_steps": _lstm, "gru_steps": _gru, "rnn_steps": _rnn}


# the layer -----------------------------------------------------------------------------------------------------------
def make_layer(
    isa: Isa, panels: GatePanels, sizes: tuple[Size, Size, Size], dtype: str, attrs: dict[str, Any],
    weights: ir.Value, operands: Sequence[StridedBuffer], outs: Sequence[StridedBuffer],
) -> Layer:  # fmt: skip
    """A layer of `sizes` steps, batch and directions; `operands` are the op's without r, `outs` its results."""
    start = operands[2 if "linear_before_reset" in attrs else 1]
    parts = 2 if panels.group_count > 1 else 1
    stage = stack_array(sum_dtype(dtype), panels.tile_rows(isa) * panels.lanes * panels.vecs * parts)
    return Layer(isa, panels, dtype, *sizes, weights, tuple(operands), start, tuple(outs), stage, attrs)


def emit_recurrent(layer: Layer, name: str, begin: Size, end: Size) -> None:
    """The loop over tiles begin..end of [directions, batch blocks] of the op `name`."""
    block_rows = layer.panels.block_rows(layer.isa, layer.batch, layer.directions)
    blocks = index.ceil_div(layer.batch, block_rows)

    def tile(number: ir.Value) -> None:
        direction, block = index.delinearize(number, [layer.directions, blocks])
        batch = index.mul(block, block_rows)
        count: Size = index.minimum(block_rows, index.sub(layer.batch, batch))
        if isinstance(layer.batch, int) and layer.batch <= block_rows:
            count = layer.batch
        _CELLS[name](layer, (direction, batch, count))

    index.each(begin, end, 1, tile)


# from the ops --------------------------------------------------------------------------------------------------------
def _memory(k: Kernel, value: ir.Value) -> StridedBuffer:
    """The operand's memory. Raises EmitError unless its rows are consecutive: fuse sees to that."""
    buffer = k.buffer_beneath(value)
    if buffer is None or buffer.view.strides[-1] != 1:
        raise EmitError(f"a recurrent layer reads a state or gates whose rows are not consecutive: {value}")
    return _strided(k, buffer)


def _strided(k: Kernel, buffer: Buffer) -> StridedBuffer:
    view = buffer.view
    return StridedBuffer(buffer.pointer, buffer.dtype, k.size(view.offset), tuple(k.size(s) for s in view.strides))


def _emit(k: Kernel, body: KernelBody, operation: ir.Operation, begin: ir.Value, end: ir.Value) -> dims.Size | None:
    """All tiles; None where r is no weight and so not packed."""
    gates, r, *others = operands_of(operation)
    if r not in k.packed:
        return None
    shape, dtype = type_of(gates).shape, type_of(gates).dtype
    panels = GatePanels.of(type_of(r).shape, int(k.packed[r].removeprefix("gates-")), k.isa, dtype)
    memory = [_memory(k, value) for value in (gates, *others)]
    outs = [_strided(k, buffer) for buffer in body.buffers]
    steps, batch, directions, _ = (k.size(s) for s in shape)
    layer = make_layer(
        k.isa, panels, (steps, batch, directions), dtype, attrs_of(operation), k.buffers[r].pointer, memory, outs
    )
    emit_recurrent(layer, definition_of(operation).name, begin, end)
    return shape[2] * dims.ceildiv(shape[1], panels.block_rows(k.isa, shape[1], shape[2]))


for _definition in (recurrent.lstm_steps, recurrent.gru_steps, recurrent.rnn_steps):
    _definition.rule("kernel:cpu")(_emit)
