"""The numbers of a kernel's schedule: what its emitter chose, and what tuning (tools/tune.py) may put in their place.

A plan is a frozen dataclass of an emitter (`MatmulPlan`, `ConvPlan`, `AttentionPlan`). Tuned numbers lie on the kernel
function as `mlc.schedule = {tile_rows = 48 : i64, ...}`, so that dumps hold them; -1 stands for None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from mlir import ir

from .isa.facts import Isa

Numbers = dict[str, int | None]
_ATTRIBUTE = "mlc.schedule"
Plan = TypeVar("Plan")
# Fields that tuning varies, by name; all others (forms, flags) follow from the operands.
_STEPS = ("tile_rows", "tile_columns", "tile_queries", "block_keys")
_DEPTHS = (None, 256, 512, 1024)


def attached(function: ir.Operation) -> Numbers:
    """The tuned numbers on an L1 kernel function; empty on most."""
    if _ATTRIBUTE not in function.attributes:
        return {}
    found = {entry.name: ir.IntegerAttr(entry.attr).value for entry in ir.DictAttr(function.attributes[_ATTRIBUTE])}
    return {name: None if value < 0 else value for name, value in found.items()}


def attach(function: ir.Operation, numbers: Mapping[str, int | None]) -> None:
    """Puts tuned numbers on a kernel function, in place of those there."""
    kind = ir.IntegerType.get_signless(64)
    values = {name: ir.IntegerAttr.get(kind, -1 if value is None else value) for name, value in numbers.items()}
    function.attributes[_ATTRIBUTE] = ir.DictAttr.get(values)


def tuned(plan: Plan, numbers: Mapping[str, int | None]) -> Plan:
    """`plan` with the numbers given, where it has fields of those names."""
    fields = asdict(plan)  # type: ignore[call-overload]
    return replace(plan, **{name: value for name, value in numbers.items() if name in fields})  # type: ignore[type-var]


def numbers_of(plan: object) -> Numbers:
    """The numbers of a plan that tuning may vary."""
    fields: dict[str, Any] = asdict(plan)  # type: ignore[call-overload]
    return {name: value for name, value in fields.items() if name in (*_STEPS, "depth")}


def neighbours(numbers: Mapping[str, int | None], isa: Isa) -> Iterator[Numbers]:
    """Schedules that differ in one number: tiles half and twice as large in steps of the register tile, other depths.

    Not all of them can be emitted: whoever asks tries.
    """
    rows, vecs = isa.tile
    units = {
        "tile_rows": rows, "tile_columns": isa.panel_columns("f32"), "tile_queries": vecs * isa.lanes("f32"),
        "block_keys": rows,
    }  # fmt: skip
    seen = [dict(numbers)]

    def new(name: str, value: int | None) -> Iterator[Numbers]:
        found = {**numbers, name: value}
        if found not in seen:
            seen.append(found)
            yield found

    for name in _STEPS:
        value = numbers.get(name)
        if value is None:
            continue
        unit = units[name]
        for scaled in (value * 2, value // 2, value * 3 // 2):
            yield from new(name, max(unit, scaled // unit * unit))
    if "depth" in numbers:
        for depth in _DEPTHS:
            yield from new("depth", depth)
