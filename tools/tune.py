"""Measures schedules of a model's products, convolutions and attentions on this machine, and keeps the fastest.

Every distinct kernel is compiled once with its default and all neighbouring schedules side by side, and each is timed
alone, in turns. A schedule that is faster by more than noise is put on the kernel and written to a file, which later
compilations read; so a second run costs nothing, and a budget of 0 seconds only reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlc.dialects.build import definition_of, type_of
from mlc.dialects.machine import Machine
from mlc.dialects.weights import store_of
from mlc.targets.cpu import compile_cpu
from mlc.targets.cpu.isa.memory import STACK_BYTES_MAX
from mlc.targets.cpu.lower import LoweredKernel, isa_of, lower_kernel, stack_bytes
from mlc.targets.cpu.schedule import Numbers, attach, neighbours
from mlir import ir
from mlir.dialects import func

_GAIN = 1.03  # a schedule that is faster by less is noise
_ROUNDS = 12
_ARENA_ALIGN_BYTES = 64


@dataclass
class Kernel:
    """A distinct kernel function of a model, what it is known by in the file, and how often the model calls it."""

    function: ir.Operation
    call: ir.Operation
    key: str
    calls: int = 1


def default_file(machine: Machine) -> Path:
    """Where tuned schedules of a machine are kept unless told otherwise."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mlc" / f"schedules-{machine.name}.json"


def tune(
    module: ir.Module, machine: Machine, seconds: float, file: Path, watch: Callable[[str], None] | None = None
) -> dict[str, int]:
    """Puts the fastest known schedules on the kernels of an L1 module with a memory plan.

    Measures kernels that `file` does not know, those with most work first, until `seconds` are over; writes `file`.
    Returns counts: kernels known, measured, left for lack of time, and changed from the default. Kernels whose sizes
    are symbols keep their defaults, as no one size could speak for the others.
    """
    say = watch or (lambda _: None)
    end = time.monotonic() + seconds
    known = _read(file)
    counts = {"known": 0, "measured": 0, "left": 0, "changed": 0}
    kernels = sorted(_kernels(module), key=lambda kernel: -_work(kernel))
    for position, kernel in enumerate(kernels):
        if kernel.key in known:
            counts["known"] += 1
        elif time.monotonic() >= end:
            counts["left"] += 1
            continue
        else:
            say(f"tuning kernel {position + 1} of {len(kernels)}")
            known[kernel.key] = _fastest(module, kernel, machine)
            counts["measured"] += 1
            _write(file, known)
        if known[kernel.key]["schedule"]:
            attach(kernel.function, known[kernel.key]["schedule"])
            counts["changed"] += 1
    return counts


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return {key: row for key, row in found.items() if isinstance(row, dict) and "schedule" in row}
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{file} holds no schedules ({error}); remove it, or name another with --tune-file") from error


def _write(file: Path, known: dict[str, Any]) -> None:
    """In one step, so that a run that is stopped leaves a whole file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(known, indent=1, sort_keys=True))
    fresh.replace(file)


def _kernels(module: ir.Module) -> list[Kernel]:
    """Distinct kernels with a register-tile emitter and static sizes."""
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation for op in module.body.operations
    }
    found: dict[str, Kernel] = {}
    for op in functions["forward"].regions[0].blocks[0].operations:
        if op.operation.name != "func.call":
            continue
        function = functions[ir.FlatSymbolRefAttr(op.operation.attributes["callee"]).value]
        if ir.StringAttr(function.attributes["mlc.emitter"]).value != "contract" or not _is_static(function):
            continue
        key = _key(function)
        if key in found:
            found[key].calls += 1
        else:
            found[key] = Kernel(function, op.operation, key)
    return list(found.values())


def _is_static(function: ir.Operation) -> bool:
    values = [*function.regions[0].blocks[0].arguments]
    values += [result for op in function.regions[0].blocks[0].operations for result in op.operation.results]
    return all(type_of(value).is_static for value in values)


def _key(function: ir.Operation) -> str:
    """A hash of the kernel's code without its name and its lines in the user's model."""
    text = function.get_asm(enable_debug_info=False)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    return hashlib.sha256(text.replace(f"@{name}(", "@k(").encode()).hexdigest()[:32]


def _work(kernel: Kernel) -> float:
    """Elements of the hero's operands multiplied: enough to rank kernels by."""
    hero = next(
        op.operation
        for op in kernel.function.regions[0].blocks[0].operations
        if definition_of(op) is not None and definition_of(op).kind == "contract"
    )
    product = float(type_of(hero.results[0]).elements)
    for operand in list(hero.operands)[:2]:
        product *= max(type_of(operand).elements, 1)
    return kernel.calls * product**0.5


def _fastest(module: ir.Module, kernel: Kernel, machine: Machine) -> dict[str, Any]:
    """The row of the file: the schedule ({} for the default), and both times in nanoseconds."""
    default = _lowered(kernel.function, machine, {})
    assert default is not None
    tried: list[Numbers] = [{}]
    for numbers in neighbours(default.schedule, isa_of(machine)):
        if _lowered(kernel.function, machine, numbers) is not None:
            tried.append(numbers)
    times = _measure(_side_by_side(module, kernel, tried), machine, len(tried))
    best = min(range(len(tried)), key=times.__getitem__)
    if times[best] * _GAIN > times[0]:
        best = 0
    return {"schedule": tried[best], "ns": times[best], "default_ns": times[0], "tried": len(tried)}


def _lowered(function: ir.Operation, machine: Machine, numbers: Numbers) -> LoweredKernel | None:
    """The kernel with a schedule; None where its emitter refuses, or its arrays outgrow the stack."""
    scratch = ir.Module.create(ir.Location.unknown())
    trial = function.clone(ir.InsertionPoint(scratch.body))
    attach(trial, numbers)
    target = ir.Module.create(ir.Location.unknown())
    try:
        lowered = lower_kernel(trial, machine, target)
    except ValueError:
        return None
    return lowered if stack_bytes(target) <= STACK_BYTES_MAX else None


def _side_by_side(module: ir.Module, kernel: Kernel, tried: Sequence[Numbers]) -> ir.Module:
    """A module whose `@forward` calls the kernel once with each schedule, on the same inputs and weights."""
    result = ir.Module.create(ir.Location.unknown())
    for name in ("mlc.machine", "mlc.symbols"):
        if name in module.operation.attributes:
            result.operation.attributes[name] = module.operation.attributes[name]
    store_of(module).attach(result)
    name = ir.StringAttr(kernel.function.attributes["sym_name"]).value
    for number, numbers in enumerate(tried):
        copy = kernel.function.clone(ir.InsertionPoint(result.body))
        copy.attributes["sym_name"] = ir.StringAttr.get(f"{name}_{number}")
        attach(copy, numbers)
    weights = {n: v for n, v in enumerate(kernel.call.operands) if _is_weight(v)}
    inputs = [v.type for n, v in enumerate(kernel.call.operands) if n not in weights]
    results = [r.type for r in kernel.call.results] * len(tried)
    with ir.InsertionPoint(result.body):
        forward = func.FuncOp("forward", (inputs, results))
    forward.attributes["mlc.arena_bytes"] = ir.StringAttr.get("0")
    block = forward.add_entry_block()
    with ir.InsertionPoint(block):
        arguments = iter(block.arguments)
        copies = {n: v.owner.operation.clone().results[0] for n, v in weights.items()}
        operands = [copies[n] if n in copies else next(arguments) for n in range(len(kernel.call.operands))]
        values = []
        for number in range(len(tried)):
            kinds = [r.type for r in kernel.call.results]
            call = func.CallOp(kinds, f"{name}_{number}", operands)
            call.operation.attributes["mlc.offsets"] = ir.ArrayAttr.get([ir.StringAttr.get("out")] * len(kinds))
            values += list(call.operation.results)
        func.ReturnOp(values)
    return result


def _is_weight(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "mlc.weight"


def _measure(module: ir.Module, machine: Machine, count: int) -> list[int]:
    """Nanoseconds of each launch, least of several rounds, on one thread."""
    from mlc import loader
    from mlc.tools import driver

    code = compile_cpu(module, machine)
    built = driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {})
    model = loader.load(built.to_bytes(), threads=1, verify="header")
    random = np.random.default_rng(0)
    feeds = [_random_input(random, info) for info in model.inputs]
    best = [1 << 62] * count
    for _ in range(_ROUNDS):
        for row in model.profile_flat(feeds):
            best[row.kernel_index] = min(best[row.kernel_index], row.time_ns)
    model.close()
    return best


def _random_input(random: np.random.Generator, info: Any) -> np.ndarray:
    from mlc import tensors
    from mlc.tools.running import numpy_dtype

    dtype = numpy_dtype(info.dtype)
    # Kernels count on the alignment of the arena, from which most of their operands come.
    array = tensors.empty(tuple(info.dims), dtype, _ARENA_ALIGN_BYTES)
    # Indices and masks: ones are in bounds of anything.
    array[...] = 1 if dtype.kind in "iub" else random.standard_normal(info.dims).astype(dtype)
    return array
