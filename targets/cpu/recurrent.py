"""Recurrent layers at the speed of their weights: one pass over the packed recurrent matrix a step.

A tile is one direction of one block of batch rows. Its register tile holds all gates of the same hidden units, so that
a unit is updated from registers and nothing but the states is kept between steps: the state before is the row of `y`
written last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from mlc.dialects import dims, pointwise, recurrent
from mlc.dialects.build import attrs_of, operands_of, type_of
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
_BLOCK_ROWS_MIN = 8  # batch rows that share a step's pass over the weights


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

    def tile_rows(self, isa: Isa) -> int:
        """Rows of the register tile: sums, a panel's row and two more registers fit."""
        return max(1, (isa.register_count - 2 - self.vecs) // self.vecs)


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


# start(row, gate, unit, mask): what a sum begins with.
_Start = Callable[[Size, int, Size, "ir.Value | None"], ir.Value]
# update(row, unit, mask, gates): one register of hidden units of one row, from the sums of its gates.
_Update = Callable[[Size, Size, "ir.Value | None", list[Val]], None]


@dataclass(frozen=True)
class _Scan:
    """What the cells share: sizes, memory, and the loops over time, hidden units and rows."""

    isa: Isa
    panels: GatePanels
    dtype: str
    steps: Size
    batch: Size
    known_batch: int | None
    gates: StridedBuffer
    weights: ir.Value
    start: StridedBuffer
    y: StridedBuffer
    last: StridedBuffer
    stage: ir.Value
    way: str

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
        return self.load(self.gates.at([step.time, index.add(step.batch, row), step.direction, column]), mask)

    def state(self, states: _States, row: Size, unit: Size) -> ir.Value:
        return offset_ptr(states.row(row, self.dtype), unit, self.dtype)

    def states_at(self, buffer: StridedBuffer, place: Sequence[Size]) -> _States:
        return _States(buffer.at([*place, 0]), buffer.strides[-2])

    def emit_tile(self, direction: Size, batch: Size, row_count: Size, body: Callable[[_Step], None]) -> None:
        """`body` for each time step; then the last state is copied out."""
        begin = self.states_at(self.start, [direction, batch])
        final = index.sub(self.steps, 1)

        def one(number: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            time: Size = number
            if self.way == "reverse":
                time = index.sub(final, number)
            elif self.way == "bidirectional":
                back = index.sub(final, index.mul(number, 2))
                time = index.add(number, index.mul(direction, back))
            after = self.states_at(self.y, [time, direction, batch])
            body(_Step(time, direction, batch, row_count, _States(*carried), after))
            return [after.ptr, index.to_value(after.row_stride)]

        ended = index.loop(0, self.steps, 1, [begin.ptr, index.to_value(begin.row_stride)], one)
        self.copy_states(_States(*ended), self.states_at(self.last, [direction, batch]), row_count)

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
        tail = None if self.known_batch is None else self.known_batch % self.rows

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
        following = offset_ptr(ptr, panels.panel_elements, self.dtype)
        panel = Panel(ptr, self.dtype, panels.vecs * panels.lanes, panels.vecs, is_aligned=True, next_ptr=following)
        sums: Sums = []
        pointers = []
        for r in range(units.height):
            row = index.add(units.first_row, r)
            pointers.append(states.row(row, self.dtype))
            sums.append([self._start(units, row, vec, start) for vec in range(panels.vecs)])
        return accumulate(self.isa, Rows(pointers, self.dtype), panel, panels.hidden, sums)

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
def _lstm_step(scan: _Scan, cells: StridedBuffer, step: _Step) -> None:
    cell_rows = scan.states_at(cells, [step.direction, step.batch])

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        i, o, f = (_sigmoid(v) for v in gates[:3])
        place = scan.state(cell_rows, row, unit)
        cell = f.fma(scan.load(place, mask), i * _tanh(gates[3]))
        scan.store(cell, place, mask)
        scan.store(o * _tanh(cell), scan.state(step.after, row, unit), mask)

    def block(units: _Units) -> None:
        sums = scan.products(step, units, 0, step.before, lambda *at: scan.gate(step, *at).value)
        scan.update(units, [sums], update)

    scan.each_units(step, block)


def _rnn_step(scan: _Scan, activation: str, step: _Step) -> None:
    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        out = _tanh(gates[0]) if activation == "tanh" else pointwise.relu.rules["emit"](gates[0])
        scan.store(out, scan.state(step.after, row, unit), mask)

    def block(units: _Units) -> None:
        sums = scan.products(step, units, 0, step.before, lambda *at: scan.gate(step, *at).value)
        scan.update(units, [sums], update)

    scan.each_units(step, block)


def _gru_step(scan: _Scan, hidden_bias: StridedBuffer, step: _Step) -> None:
    """The reset gate scales the hidden product: all gates meet the same state."""

    def start(row: Size, gate: int, unit: Size, mask: ir.Value | None) -> ir.Value:
        if gate == 2:
            return scan.load(hidden_bias.at([step.direction, unit]), mask).value
        return scan.gate(step, row, gate, unit, mask).value

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        new = _tanh(_sigmoid(gates[1]).fma(gates[2], scan.gate(step, row, 2, unit, mask)))
        _store_blend(scan, step, row, unit, mask, _sigmoid(gates[0]), new)

    def block(units: _Units) -> None:
        scan.update(units, [scan.products(step, units, 0, step.before, start)], update)

    scan.each_units(step, block)


def _store_blend(
    scan: _Scan, step: _Step, row: Size, unit: Size, mask: ir.Value | None, kept: Val, new: Val
) -> None:  # fmt: skip
    before = scan.load(scan.state(step.before, row, unit), mask)
    scan.store(kept.fma(before - new, new), scan.state(step.after, row, unit), mask)


def _gru_reset_first_step(scan: _Scan, hidden_bias: StridedBuffer, step: _Step) -> None:
    """The reset gate scales the state, so its product waits for all of it: the scaled state is kept in `last`."""
    scaled = scan.states_at(scan.last, [step.direction, step.batch])

    def start(gate: int, row: Size, _: int, unit: Size, mask: ir.Value | None) -> ir.Value:
        value = scan.gate(step, row, gate, unit, mask)
        return (value + scan.load(hidden_bias.at([step.direction, unit]), mask) if gate == 2 else value).value

    def reset(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        before = scan.load(scan.state(step.before, row, unit), mask)
        scan.store(_sigmoid(gates[0]) * before, scan.state(scaled, row, unit), mask)

    def update(row: Size, unit: Size, mask: ir.Value | None, gates: list[Val]) -> None:
        _store_blend(scan, step, row, unit, mask, _sigmoid(gates[0]), _tanh(gates[1]))

    def first(units: _Units) -> None:
        scan.update(units, [scan.products(step, units, 1, step.before, partial(start, 1))], reset)

    def second(units: _Units) -> None:
        kept = scan.products(step, units, 0, step.before, partial(start, 0))
        scan.update(units, [kept, scan.products(step, units, 2, scaled, partial(start, 2))], update)

    scan.each_units(step, first)
    scan.each_units(step, second)


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
    attrs = attrs_of(operation)
    if r not in k.packed:
        return None
    memory = [_memory(k, value) for value in (gates, *others)]
    shape = type_of(gates).shape
    group_gates = int(k.packed[r].removeprefix("gates-"))
    panels = GatePanels.of(type_of(r).shape, group_gates, k.isa, type_of(r).dtype)
    rows = panels.tile_rows(k.isa)
    known = shape[1] if isinstance(shape[1], int) else None
    block_rows = -(-_BLOCK_ROWS_MIN // rows) * rows
    starts = memory[2] if operation.name == "mlc.gru_steps" else memory[1]
    outs = [_strided(k, buffer) for buffer in body.buffers]
    total = sum_dtype(type_of(gates).dtype)
    stage = stack_array(total, rows * panels.lanes * panels.vecs * (2 if panels.group_count > 1 else 1))
    scan = _Scan(
        k.isa, panels, type_of(gates).dtype, k.size(shape[0]), k.size(shape[1]), known, memory[0],
        k.buffers[r].pointer, starts, outs[0], outs[1], stage, attrs["direction"],
    )  # fmt: skip
    blocks = dims.ceildiv(shape[1], block_rows)

    def tile(number: ir.Value) -> None:
        direction, block = index.delinearize(number, [shape[2], k.size(blocks)])
        batch = index.mul(block, block_rows)
        row_count = known if known is not None and known <= block_rows else None
        if row_count is None:
            row_count = index.minimum(block_rows, index.sub(scan.batch, batch))
        _emit_tile(scan, operation.name, attrs, memory, outs, (direction, batch, row_count))

    index.each(begin, end, 1, tile)
    return shape[2] * blocks


def _emit_tile(
    scan: _Scan, name: str, attrs: dict, memory: list[StridedBuffer], outs: list[StridedBuffer],
    place: tuple[Size, Size, Size],
) -> None:  # fmt: skip
    if name == "mlc.lstm_steps":
        direction, batch, row_count = place
        target = scan.states_at(outs[2], [direction, batch])
        scan.copy_states(scan.states_at(memory[2], [direction, batch]), target, row_count)
        scan.emit_tile(*place, partial(_lstm_step, scan, outs[2]))
    elif name == "mlc.gru_steps":
        step = _gru_step if attrs["linear_before_reset"] else _gru_reset_first_step
        scan.emit_tile(*place, partial(step, scan, memory[1]))
    else:
        scan.emit_tile(*place, partial(_rnn_step, scan, attrs["activation"]))


for _definition in (recurrent.lstm_steps, recurrent.gru_steps, recurrent.rnn_steps):
    _definition.rule("kernel:cpu")(_emit)
