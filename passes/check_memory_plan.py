"""Judges the memory plan from the IR alone: no two values alive together may share a byte. Shares no code with
plan_memory."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, loop_marker, sizes_from_data, type_of
from mlc.dialects.state import state_count
from mlir import ir

from .base import Pass, PassError
from .rewriting import body_of, functions

# Values tried for each symbol, cut to its range: small, odd, large.
_SAMPLES = (1, 2, 7, 64, 1000)


@dataclass(frozen=True)
class _Placed:
    value: ir.Value
    start: int
    stop: int


def peak_live_bytes(module: ir.Module, symbols: dict[str, int]) -> int:
    """The arena's lower bound: most bytes alive at one call, at these symbol values."""
    calls, ends = _calls_and_ends(module)
    peak = 0
    for step, call in enumerate(calls):
        alive = [v for c in calls[: step + 1] for v in c.results if v in ends and ends[v] >= step]
        peak = max(peak, sum(_bytes(v, symbols) for v in alive))
        del call
    return peak


def _bytes(value: ir.Value, symbols: dict[str, int]) -> int:
    """0 where the sampled symbols make a size negative, as compiled code refuses them."""
    type_ = type_of(value)
    is_possible = all(dims.evaluate(size, symbols) >= 0 for size in type_.shape)
    return dims.evaluate(type_.bytes, symbols) if is_possible else 0


def _calls_and_ends(module: ir.Module) -> tuple[list[ir.Operation], dict[ir.Value, int]]:
    block = body_of(functions(module)["forward"])
    calls = [op.operation for op in block.operations if op.operation.name == "func.call"]
    returned = set(block.operations[len(block.operations) - 1].operation.operands)
    ends: dict[ir.Value, int] = {}
    for step, call in enumerate(calls):
        for value in call.results:
            if value not in returned:
                ends[value] = step
        for value in call.operands:
            if value in ends:
                ends[value] = step
    _keep_for_loops(module, calls, ends)
    return calls, ends


def _marker(module: ir.Module, call: ir.Operation) -> tuple[str, int] | None:
    return loop_marker(functions(module)[ir.FlatSymbolRefAttr(call.attributes["callee"]).value])


def _keep_for_loops(module: ir.Module, calls: list[ir.Operation], ends: dict[ir.Value, int]) -> None:
    """What the next iteration reads of this one's beginning is alive to the end of the loop."""
    opened: dict[int, set[ir.Value]] = {}  # by loop: what was there when its first iteration began
    so_far: set[ir.Value] = set()
    spans: dict[int, tuple[int, int]] = {}
    for step, call in enumerate(calls):
        marker = _marker(module, call)
        so_far.update(call.results)
        if marker is not None:
            if marker[0] == "loop_begin":
                opened[marker[1]] = set(so_far)
                spans[marker[1]] = (step + 1, step)
            elif marker[1] in spans:
                spans[marker[1]] = (spans[marker[1]][0], step)
    for loop, (start, stop) in spans.items():
        read = {value for call in calls[start : stop + 1] for value in call.operands}
        for value in read & opened[loop] & ends.keys():
            ends[value] = max(ends[value], stop)


def _reads_in_place(kernel: ir.Operation, position: int) -> bool:
    """Whether every path from the argument to the result is elementwise on the result's shape."""
    block = body_of(kernel)
    if _is_changed_by_its_only_reader(block.arguments[position]):
        return True
    result = type_of(block.operations[len(block.operations) - 1].operation.operands[0])
    pending, seen = [block.arguments[position]], set()
    while pending:
        value = pending.pop()
        if type_of(value).shape != result.shape or value in seen:
            if value in seen:
                continue
            return False
        seen.add(value)
        for use in value.uses:
            user = use.owner.operation
            if user.name != "func.return":
                if "emit" not in definition_of(user).rules:
                    return False
                pending.append(user.results[0])
    return type_of(block.arguments[position]) == result


def _is_changed_by_its_only_reader(value: ir.Value) -> bool:
    """Whether an op that says so writes its result over the value, reshaped perhaps, and no other op reads it."""
    uses = list(value.uses)
    if len(uses) != 1:
        return False
    user = uses[0].owner.operation
    if user.name in ("mlc.reshape", "mlc.copy"):
        return _is_changed_by_its_only_reader(user.results[0])
    definition = definition_of(user)
    rule = None if definition is None else definition.rules.get("in_place")
    return rule is not None and rule(**attrs_of(user)) == uses[0].operand_number


@dataclass(frozen=True)
class CheckMemoryPlan(Pass):
    """Fails when two values that are alive at the same call overlap, or one lies outside the arena or off alignment.

    Before: plan-memory ran. After: unchanged.
    """

    def run(self, module: ir.Module) -> None:
        _check_states(module)
        ranges, of_data = _ranges(module), sizes_from_data(module)
        for sample in _SAMPLES if ranges else (1,):
            at = {n: min(max(sample + i, low), high) for i, (n, (low, high)) in enumerate(ranges.items())}
            self._check(module, at | {n: dims.evaluate(most, at) for n, most in of_data.items()})

    def _check(self, module: ir.Module, symbols: dict[str, int]) -> None:
        everything = functions(module)
        total = dims.evaluate(
            dims.parse(ir.StringAttr(everything["forward"].attributes["mlc.arena_bytes"]).value), symbols
        )
        calls, ends = _calls_and_ends(module)
        alive: list[_Placed] = []
        for step, call in enumerate(calls):
            alive = [p for p in alive if ends[p.value] >= step]
            new = []
            for value, offset in zip(call.results, call.attributes["mlc.offsets"], strict=True):
                text = ir.StringAttr(offset).value
                if text == "out":
                    continue
                start = dims.evaluate(dims.parse(text), symbols)
                placed = _Placed(value, start, start + _bytes(value, symbols))
                if start % 64 or placed.stop > total or start < 0:
                    raise PassError(
                        f"a value at {start}..{placed.stop} is off alignment or outside {total} bytes ({call.location})"
                    )
                new.append(placed)
            callee = everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
            self._check_pairs(call, callee, alive, new, ends, step)
            alive.extend(new)

    def _check_pairs(self, call, callee, alive, new, ends, step) -> None:
        marker = loop_marker(callee)
        for placed in new:
            for other in [*alive, *(p for p in new if p is not placed)]:
                if placed.start < other.stop and other.start < placed.stop:
                    operands = list(call.operands)
                    if marker is not None and marker[0] == "loop_end" and _is_own_state(call, other, placed):
                        continue
                    is_last = ends[other.value] == step and operands.count(other.value) == 1
                    if not (
                        is_last and other.start == placed.start and _reads_in_place(callee, operands.index(other.value))
                    ):
                        raise PassError(f"two live values overlap at {placed.start}..{placed.stop} ({call.location})")


def _check_states(module: ir.Module) -> None:
    """Fails where the call that writes a state's new value leaves its old one for others to read, or reads it in
    another order than it writes."""
    everything = functions(module)
    forward = everything["forward"]
    count = state_count(forward)
    block = body_of(forward)
    calls, _ = _calls_and_ends(module)
    results = list(block.operations[len(block.operations) - 1].operation.operands)
    for state, value in zip(list(block.arguments)[-count:], results[-count:], strict=True) if count else ():
        writer = next((step for step, call in enumerate(calls) if value in list(call.results)), None)
        if writer is None:
            raise PassError("a state's new value is the result of no call")
        call = calls[writer]
        is_late = any(state in list(other.operands) for other in calls[writer + 1 :])
        places = [position for position, operand in enumerate(call.operands) if operand == state]
        callee = everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        is_apart = any(not _reads_in_place(callee, position) for position in places) or len(places) > 1
        if is_late or is_apart:
            raise PassError(f"a state is overwritten before all that read it have done so ({call.location})")


def _is_own_state(call: ir.Operation, other: _Placed, placed: _Placed) -> bool:
    """Whether a loop's end writes its state in just the state's place."""
    return other.value == call.operands[0] and (other.start, other.stop) == (placed.start, placed.stop)


def _ranges(module: ir.Module) -> dict[str, tuple[int, int]]:
    attributes = module.operation.attributes
    if "mlc.symbols" not in attributes:
        return {}
    return {n.name: tuple(ir.DenseI64ArrayAttr(n.attr)) for n in ir.DictAttr(attributes["mlc.symbols"])}
