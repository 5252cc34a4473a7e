"""The CPU family: L1 modules to a flat code image and packed weights."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mlc.dialects import dims
from mlc.dialects.build import attrs_of, loop_marker, symbol_ranges
from mlc.dialects.machine import Machine
from mlc.dialects.state import state_offsets
from mlc.dialects.weights import WeightStore, store_of
from mlir import ir

from .layouts import pack_weight
from .lower import LoweredKernel, isa_of, lower_kernel
from .objects import ObjectBuilder, header_ir, lower_to_llvm
from .program import Launch, emit_forward, emit_plan, program_shape, size_read

# Kernels a clang process gets: few enough to keep both cores busy, enough that starting processes costs little.
_KERNELS_AN_OBJECT = 6
_WEIGHT_ALIGN_BYTES = 64


@dataclass(frozen=True)
class PlacedWeight:
    """A weight at `offset` of the weights section, made by `array()` when written."""

    name: str
    layout: str
    offset: int
    size_bytes: int
    array: Callable[[], np.ndarray]


@dataclass(frozen=True)
class KernelReport:
    """One launch of `forward`, for profiles and `inspect`."""

    name: str
    hero: str
    source: str


@dataclass
class CpuCode:
    """What a CPU target gives the artifact."""

    image: bytes
    weights: list[PlacedWeight]
    launches: list[KernelReport]
    kernel_count: int
    seconds: dict[str, float] = field(default_factory=dict)  # by pass and step, for reports


class Weights:
    """Places each (weight, layout) once, for one program or for several that share them.

    `is_shared`: weights of other programs are the same where their bytes are, whatever they are called.
    """

    def __init__(self, machine: Machine, *, is_shared: bool = False) -> None:
        self.isa, self.is_shared = isa_of(machine), is_shared
        self.placed: dict[tuple[str, str], PlacedWeight] = {}
        self.sizes: dict[tuple[str, str], int] = {}
        self.end = 0

    def _identity(self, store: WeightStore, name: str) -> str:
        if not self.is_shared:
            return name
        array = np.ascontiguousarray(store.get(name))
        digest = hashlib.blake2b(array.data.cast("B"), digest_size=16).hexdigest()
        return f"{array.dtype}{array.shape}{digest}"

    def place(self, store: WeightStore, name: str, layout: str, type_: str) -> int:
        """Its offset. A weight is packed here only where none of its type and layout was: for the size it comes to."""
        key = (self._identity(store, name), layout)
        if key not in self.placed:
            def array() -> np.ndarray:
                return pack_weight(layout, store.get(name), self.isa)

            if (type_, layout) not in self.sizes:
                self.sizes[type_, layout] = array().nbytes
            size_bytes = self.sizes[type_, layout]
            self.placed[key] = PlacedWeight(name, layout, self.end, size_bytes, array)
            self.end += -(-size_bytes // _WEIGHT_ALIGN_BYTES) * _WEIGHT_ALIGN_BYTES
        return self.placed[key].offset


def compile_cpu(
    module: ir.Module, machine: Machine, *, keep_dir: Path | None = None, jobs: int | None = None,
    watch: Callable[[str, int, int], None] | None = None, weights: Weights | None = None,
) -> CpuCode:
    """Compiles an L1 module with a memory plan for `machine`.

    `weights` has those of other programs of the same file. `keep_dir` keeps L2 IR, LLVM IR and objects.
    `watch(what, done, total)` hears of progress.
    Raises: EmitError, LayoutError, ToolError.
    """
    with tempfile.TemporaryDirectory(prefix="mlc-") as scratch:
        folder = keep_dir or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        builder = ObjectBuilder(machine, folder, jobs or max(os.cpu_count() or 1, 1))
        lowered = _lower_kernels(module, machine, builder, folder if keep_dir else None, watch)
        weights = weights or Weights(machine)
        launches, reports = _launches(module, lowered, weights)
        symbols = symbol_ranges(module)
        shape = program_shape(module, _function(module, "forward"), symbols)

        def emit_program(target: ir.Module) -> None:
            emit_plan(target, shape)
            emit_forward(target, shape, launches)

        _add_module(builder, "program", emit_program)
        builder.add_ir("header", header_ir(max(len(launches), 1), len(symbols), 65536))
        builder.add_support()
        image = builder.link_image()
    return CpuCode(image, list(weights.placed.values()), reports, len(lowered))


def _place(loc: ir.Location) -> str:
    return f"{loc.filename}:{loc.start_line}" if loc.start_line else loc.filename


def source_of(location: ir.Location) -> str:
    """The user's lines of a location: "model.py:47 (layers.3, layers.4)"."""
    places: dict[str, dict[str, None]] = {}

    def visit(loc: ir.Location, name: str) -> None:
        if loc.is_a_fused():
            for part in loc.locations:
                visit(part, name)
        elif loc.is_a_name():
            visit(loc.child_loc, loc.name_str)
        else:
            place = _place(loc) if loc.is_a_file() else ""
            places.setdefault(place, {})[name] = None

    visit(location, "")
    texts = []
    for place, names in places.items():
        listed = ", ".join(n for n in names if n)
        texts.append(f"{place} ({listed})" if place and listed else place or listed)
    return "; ".join(t for t in texts if t) or "unknown"


def _function(module: ir.Module, name: str) -> ir.Operation:
    return next(
        op.operation for op in module.body.operations
        if "sym_name" in op.operation.attributes and ir.StringAttr(op.operation.attributes["sym_name"]).value == name
    )


def _add_module(
    builder: ObjectBuilder, name: str, emit: Callable[[ir.Module], object], keep: Path | None = None
) -> None:
    target = ir.Module.create(ir.Location.unknown())
    emit(target)
    if keep is not None:
        (keep / f"{name}.mlir").write_text(str(target))
    builder.add_ir(name, lower_to_llvm(target))


def _lower_kernels(module, machine, builder, keep, watch) -> dict[str, LoweredKernel]:
    kernels = [op.operation for op in module.body.operations if "mlc.hero" in op.operation.attributes]
    lowered: dict[str, LoweredKernel] = {}
    for start in range(0, len(kernels), _KERNELS_AN_OBJECT):
        part = kernels[start : start + _KERNELS_AN_OBJECT]

        def emit(target: ir.Module, part=part) -> None:
            for kernel in part:
                info = lower_kernel(kernel, machine, target)
                lowered[info.name] = info

        _add_module(builder, f"kernels{start // _KERNELS_AN_OBJECT:03d}", emit, keep)
        if watch is not None:
            watch("kernels", min(start + len(part), len(kernels)), len(kernels))
    return lowered


def _with_states(kind: str, values: list[ir.Value], states: list[int]) -> dict[ir.Value, tuple[str, dims.Size]]:
    """Places of arguments or results, of which the last ones are states."""
    first = len(values) - len(states)
    found: dict[ir.Value, tuple[str, dims.Size]] = {value: (kind, i) for i, value in enumerate(values[:first])}
    return found | {value: ("state", at) for value, at in zip(values[first:], states, strict=True)}


def _launches(module: ir.Module, lowered: Mapping[str, LoweredKernel], weights: Weights):
    """The calls of `@forward` as launches, with every operand's place."""
    forward, store = _function(module, "forward"), store_of(module)
    block = forward.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    states = state_offsets(forward)
    outputs = _with_states("output", list(operations[-1].operands), states)
    places = _with_states("input", list(block.arguments), states)
    names: dict[ir.Value, str] = {}
    launches: list[Launch] = []
    reports: list[KernelReport] = []
    for op in operations[:-1]:
        if op.name == "mlc.weight":
            names[op.results[0]] = attrs_of(op)["name"]
            continue
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        function = _function(module, callee)
        for result, offset in zip(op.results, op.attributes["mlc.offsets"], strict=True):
            text = ir.StringAttr(offset).value
            places[result] = outputs[result] if text == "out" else ("arena", dims.parse(text))
        operands = [
            ("weight", weights.place(store, names[v], layout, str(v.type))) if v in names else places[v]
            for v, layout in zip(op.operands, lowered[callee].layouts, strict=True)
        ]
        results = [places[r] for r in op.results]
        marker, size = loop_marker(function), size_read(function)
        launches.append(Launch(lowered[callee], len(launches), (*operands, *results), marker, size))
        hero = ir.StringAttr(function.attributes["mlc.hero"]).value
        reports.append(KernelReport(callee, hero, source_of(op.location)))
    return launches, reports

