"""Gives every intermediate a place in one arena, so that values never alive together share memory.

Static models are packed by offset (greedy by size, best fit). With symbolic sizes the arena is a row of slots: buffers
whose lives do not meet share one, a slot is as large as its largest member, and offsets are sums of slot sizes,
computed at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, loop_marker, sizes_from_data, symbol_ranges, type_of
from mlc.dialects.dims import Size
from mlir import ir

from .base import Pass
from .rewriting import body_of, functions, users_of

ALIGN_BYTES = 64
# What an unbounded symbol is taken as when buffers are ranked by size; any value gives a right plan.
TYPICAL_SIZE = 128


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes` (a multiple of 64), written at step `first` and last read at step `last`."""

    first: int
    last: int
    bytes: Size

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def aligned(size: Size) -> Size:
    return dims.ceildiv(size, ALIGN_BYTES) * ALIGN_BYTES


def plan(lifetimes: Sequence[Lifetime], typical: Mapping[str, int]) -> tuple[list[Size], Size]:
    """Offsets of the buffers, and the arena's bytes. `typical` gives each symbol a number to rank sizes by."""
    if all(isinstance(life.bytes, int) for life in lifetimes):
        return _pack(lifetimes)
    return _slots(lifetimes, typical)


def _pack(lifetimes: Sequence[Lifetime]) -> tuple[list[Size], Size]:
    offsets: list[Size] = [0] * len(lifetimes)
    placed: list[int] = []
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].first, i))
    for index in order:
        life = lifetimes[index]
        taken = sorted(
            (offsets[j], offsets[j] + lifetimes[j].bytes) for j in placed if lifetimes[j].meets(life)
        )
        best, best_gap, end = None, None, 0
        for start, stop in taken:
            gap = start - end
            if gap >= life.bytes and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[index] = end if best is None else best
        placed.append(index)
    total = max((offsets[i] + life.bytes for i, life in enumerate(lifetimes)), default=0)
    return offsets, total


def _slots(lifetimes: Sequence[Lifetime], typical: Mapping[str, int]) -> tuple[list[Size], Size]:
    def rank(size: Size) -> int:
        return dims.evaluate(size, typical)

    slots: list[list[int]] = []
    slot_of: dict[int, int] = {}
    order = sorted(range(len(lifetimes)), key=lambda i: (-rank(lifetimes[i].bytes), lifetimes[i].first, i))
    for index in order:
        free = [s for s, members in enumerate(slots) if not any(lifetimes[m].meets(lifetimes[index]) for m in members)]
        if free:
            # The slot whose size grows least, and among those the tightest.
            wanted = rank(lifetimes[index].bytes)
            best = min(free, key=lambda s: max(wanted - rank(_slot_bytes(slots[s], lifetimes)), 0) * 2**20 + s)
            slots[best].append(index)
            slot_of[index] = best
        else:
            slot_of[index] = len(slots)
            slots.append([index])
    starts: list[Size] = []
    total: Size = 0
    for members in slots:
        starts.append(total)
        total = total + _slot_bytes(members, lifetimes)
    return [starts[slot_of[i]] for i in range(len(lifetimes))], total


def _slot_bytes(members: Sequence[int], lifetimes: Sequence[Lifetime]) -> Size:
    return dims.maximum(*(lifetimes[m].bytes for m in members))


def in_place_arguments(kernel: ir.Operation) -> list[int]:
    """Arguments whose memory the (only) result may take: each element is read just when the result's same element is
    written."""
    block = body_of(kernel)
    returned = block.operations[len(block.operations) - 1].operation.operands
    emitter = ir.StringAttr(kernel.attributes["mlc.emitter"]).value
    if len(returned) == 1 and emitter == "special":
        return _written_argument(returned[0])
    if len(returned) != 1 or emitter not in ("pointwise", "contract"):
        return []
    result = type_of(returned[0])
    found = []
    for position, argument in enumerate(block.arguments):
        if type_of(argument) == result and _only_elementwise(argument, result):
            found.append(position)
    return found


def _written_argument(result: ir.Value) -> list[int]:
    """The argument whose lines the special op that makes `result` changes in place, by its `in_place` rule."""
    operation = _before_reshapes(result).owner
    definition = None if isinstance(operation, ir.Block) else definition_of(operation.operation)
    if definition is None or "in_place" not in definition.rules:
        return []
    changed = operation.operation.operands[definition.rules["in_place"](**attrs_of(operation.operation))]
    argument = _before_reshapes(changed)
    readers = users_of(argument) if isinstance(argument.owner, ir.Block) else []
    return [ir.BlockArgument(argument).arg_number] if len(readers) == 1 else []


def _before_reshapes(value: ir.Value) -> ir.Value:
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in ("mlc.reshape", "mlc.copy"):
        value = value.owner.operation.operands[0]
    return value


def _only_elementwise(value: ir.Value, result) -> bool:
    """Whether `value` reaches the end through ops that keep every element in its place."""
    for user in users_of(value):
        if user.name == "func.return":
            continue
        definition = definition_of(user)
        if "emit" not in definition.rules or type_of(user.results[0]).shape != result.shape:
            return False
        if not _only_elementwise(user.results[0], result):
            return False
    return True


def _room(bytes_: Size, ranges: Mapping[str, tuple[int, int]]) -> Size:
    """A size is never below 0 when the model runs, but its expression may be at some symbols, and offsets are sums of
    sizes."""
    return bytes_ if dims.bounds(bytes_, ranges)[0] >= 0 else dims.maximum(0, bytes_)


def lifetimes_of(module: ir.Module) -> tuple[dict[ir.Value, int], list[Lifetime]]:
    """The buffer of each intermediate of `@forward`, and the buffers' lives in calls.

    A result that may overwrite an argument dying at its call takes over that argument's buffer.
    """
    everything, ranges, highest = functions(module), symbol_ranges(module), sizes_from_data(module)
    block = body_of(everything["forward"])
    calls = [op.operation for op in block.operations if op.operation.name == "func.call"]
    returned = set(block.operations[len(block.operations) - 1].operation.operands)
    markers = [loop_marker(everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]) for call in calls]
    last_use = _last_uses(calls, markers)
    buffer_of: dict[ir.Value, int] = {}
    lives: list[Lifetime] = []
    for step, call in enumerate(calls):
        callee = everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        for result in call.results:
            if result in returned:
                continue
            last, marker = last_use.get(result, step), markers[step]
            if marker is not None and marker[0] == "loop_end":
                reused = buffer_of.get(call.operands[0])
            else:
                reused = _overwritten(call, callee, step, last_use, buffer_of)
            if reused is not None:
                life = lives[reused]
                lives[reused] = Lifetime(life.first, max(life.last, last), life.bytes)
                buffer_of[result] = reused
            else:
                buffer_of[result] = len(lives)
                bytes_ = aligned(dims.most(type_of(result).bytes, highest))
                lives.append(Lifetime(step, last, _room(bytes_, ranges)))
    return buffer_of, lives


def _last_uses(calls: Sequence[ir.Operation], markers: Sequence[tuple[str, int] | None]) -> dict[ir.Value, int]:
    """The step of each value's last use. What a loop reads and did not compute in the same iteration is read again."""
    last_use = {v: step for step, call in enumerate(calls) for v in call.operands}
    made = {v: step for step, call in enumerate(calls) for v in call.results}
    for loop in {marker[1] for marker in markers if marker is not None}:
        steps = [step for step, marker in enumerate(markers) if marker is not None and marker[1] == loop]
        first = sum(markers[step] == ("loop_begin", loop) for step in steps) + steps[0]
        for call in calls[first : steps[-1] + 1]:
            for value in call.operands:
                if made.get(value, -1) < first:
                    last_use[value] = max(last_use[value], steps[-1])
    return last_use


def _overwritten(call, callee, step: int, last_use: dict, buffer_of: dict[ir.Value, int]) -> int | None:
    operands = list(call.operands)
    for position in in_place_arguments(callee):
        value = operands[position]
        if value in buffer_of and last_use[value] == step and operands.count(value) == 1:
            return buffer_of[value]
    return None


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Writes `mlc.offsets` on each call and `mlc.arena_bytes` on `@forward`.

    Before: `@forward` of weights and calls. After: every result that is not returned has an offset expression, a
    multiple of 64; results that are returned have "out".
    """

    def run(self, module: ir.Module) -> None:
        buffer_of, lives = lifetimes_of(module)
        symbols = {s for life in lives for s in dims.symbols(life.bytes)}
        offsets, total = plan(lives, {s: TYPICAL_SIZE for s in symbols})
        where = {value: offsets[buffer] for value, buffer in buffer_of.items()}
        forward = functions(module)["forward"]
        for op in body_of(forward).operations:
            if op.operation.name == "func.call":
                texts = [str(where[r]) if r in where else "out" for r in op.operation.results]
                op.operation.attributes["mlc.offsets"] = ir.ArrayAttr.get([ir.StringAttr.get(t) for t in texts])
        forward.attributes["mlc.arena_bytes"] = ir.StringAttr.get(str(total))
