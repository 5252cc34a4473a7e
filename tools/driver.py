"""From a model to an artifact: import, passes, one code image a target, one file."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlc import artifact as container
from mlc.dialects import dims
from mlc.dialects.build import sizes_from_data, symbol_ranges, type_of
from mlc.dialects.machine import Machine
from mlc.dialects.state import StateLayout, state_count
from mlc.dialects.types import TensorType
from mlc.dialects.weights import store_of
from mlc.passes.base import run_pipeline
from mlc.passes.check_memory_plan import peak_live_bytes
from mlc.passes.pipeline import pipeline
from mlc.passes.plan_memory import TYPICAL_SIZE
from mlc.targets.cpu import CpuCode, Weights, compile_cpu
from mlc.targets.cpu.objects import clang_flags
from mlc.targets.machines import find_machine
from mlc.targets.tools import run_tool
from mlir import ir

Watch = Callable[[str], None]
PRECISIONS = ("f32", "bf16", "f16")  # of the factors of products


class CompileError(ValueError):
    """The model or an option cannot be compiled; the message says what, where and what to do."""


@dataclass
class Source:
    """An imported model: its module and how callers' structures map to flat inputs and outputs."""

    module: ir.Module
    input_tree: dict[str, Any] | None = None
    output_tree: dict[str, Any] | None = None


@dataclass
class Tuning:
    """How long to measure schedules at most (0: only use those measured before), and the file that keeps them.

    `counts` says afterwards what came of it: see `tools.tune.tune`.
    """

    seconds: float
    file: Path | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Artifact:
    """A compiled model, ready to be saved or loaded. `seconds`: time by target and pass, not part of the file."""

    meta: container.Meta | dict[str, container.Meta]  # by method where there are several
    targets: list[container.Target]
    info: dict[str, Any]
    weights: list[container.Chunk] = field(default_factory=list)
    state: list[container.Chunk] = field(default_factory=list)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Writes the file; returns its bytes."""
        return container.write_artifact(path, self.meta, self.targets, self.info, self.weights, state=self.state)

    def to_bytes(self) -> bytes:
        """The file in memory."""
        return container.artifact_bytes(self.meta, self.targets, self.info, self.weights, state=self.state)


def import_model(
    model: Any, *, symbols: Mapping[str, Any] | None = None, values: Mapping[str, Any] | None = None,
    weights: Sequence[str | os.PathLike[str]] = (), watch: Watch | None = None,
) -> Source:  # fmt: skip
    """Imports a path (`.pt2`, `.onnx`), an ExportedProgram or an ONNX ModelProto.

    `symbols` gives ONNX dimensions ranges or numbers, `values` fixes ONNX inputs to constants. `weights`: files whose
    tensors take the places of a PyTorch model's own, by name (frontend/weight_files.py).
    Raises CompileError for another kind of object; readers raise theirs.
    """
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if path.suffix not in (".onnx", ".pt2"):
            raise CompileError(
                f"{path}: mlc reads .pt2 and .onnx files, not {path.suffix or 'files without an ending'}"
            )
        if not path.is_file():
            raise CompileError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")
        kind = "ModelProto" if path.suffix == ".onnx" else "ExportedProgram"
    else:
        path, kind = None, type(model).__name__
    if kind == "ModelProto":
        if weights:
            raise CompileError("weight files are for PyTorch models; an ONNX model names its own external data")
        from mlc.frontend.onnx import import_onnx

        return Source(import_onnx(model if path is None else path, dims=symbols, values=values))
    if kind != "ExportedProgram":
        raise CompileError(f"mlc compiles .pt2 and .onnx paths, ExportedPrograms and ONNX ModelProtos, not {kind}")
    if symbols or values:
        raise CompileError(
            "sizes and values are given for ONNX models only; a PyTorch model has them from torch.export"
        )
    from mlc.frontend.decompose_missing import rounds, take_apart
    from mlc.frontend.record import ReadError
    from mlc.frontend.report import UnsupportedError

    reported: UnsupportedError | None = None
    for _ in rounds():
        try:
            return _from_program(_read_program(model if path is None else path), weights, watch or (lambda _: None))
        except UnsupportedError as error:
            reported = reported or error
            model, path = take_apart(model if path is None else path, error), None
            if model is None:
                break
        except ReadError:  # of what torch made of it, where the model itself could be read
            if reported is None:
                raise
            break
    assert reported is not None
    raise reported


def _read_program(model: Any) -> Any:
    """The record of a .pt2's path, or of an ExportedProgram."""
    if isinstance(model, Path):
        from mlc.frontend.pt2 import read_pt2

        return read_pt2(model)
    from mlc.frontend.exported_program import read_exported_program

    return read_exported_program(model)


def _from_program(program: Any, weights: Sequence[str | os.PathLike[str]], say: Watch) -> Source:
    from mlc.frontend.aten import import_program

    if weights:
        from mlc.frontend.weight_files import read_weights, use_weights

        unused = use_weights(program, read_weights(map(Path, weights)))
        if unused:
            say(f"{len(unused)} tensors of the weight files are not in the model: {', '.join(unused[:5])}")
    imported = import_program(program)
    return Source(imported.module, imported.input_tree, imported.output_tree)


def compile(
    model: Any, target: str | Sequence[str] = "host", *, symbols: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None, dump_dir: str | os.PathLike[str] | None = None, watch: Watch | None = None,
    tune: Tuning | None = None, precision: str = "f32", weights: Sequence[str | os.PathLike[str]] = (),
) -> Artifact:
    """Compiles `model` for one target or several ("host" or names of `mlc targets`, best first).

    A dict of models by name makes them the methods of one file: weights that are equal are in it once, and states of
    one name are one state.

    Of an ONNX model, `symbols` gives named dimensions a number or a range (low, high), `values` fixes inputs to
    constants, which leave the signature. `dump_dir` gets the IR after every pass. `watch(sentence)` hears of progress.
    `weights` names files (.safetensors, its .index.json, .gguf) whose tensors take the places of a PyTorch model's.
    `tune` measures schedules on this machine, for a target that is this machine.
    `precision` "bf16" or "f16" rounds the weights of products, and on machines with a dot product of pairs what meets
    them; sums and all else stay f32 (passes/reduce_precision.py).
    Raises: CompileError, and the readers', passes' and emitters' own errors, all ValueErrors with a message for people.
    """
    names = [target] if isinstance(target, str) else list(target)
    machines = list({m.name: m for m in (find_machine(name) for part in names for name in part.split(","))}.values())
    if not machines:
        raise CompileError("no target is given; name one, as in target=\"host\"")
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    if not models:
        raise CompileError("no method is given")
    say = watch or (lambda _: None)
    built: list[container.Target] = []
    info: dict[str, Any] = {}
    seconds: dict[str, dict[str, float]] = {}
    metas: dict[str, container.Meta] = {}
    state: list[container.Chunk] = []
    for machine in machines:
        say(f"importing for {machine.name}")
        sources = {
            name: import_model(one, symbols=symbols, values=values, weights=weights, watch=say)
            for name, one in models.items()
        }
        states, state = share_states({name: source.module for name, source in sources.items()})
        placed = Weights(machine, is_shared=len(models) > 1)
        codes: dict[str, CpuCode] = {}
        for name, source in sources.items():
            folder = None if dump_dir is None else _folder(Path(dump_dir), machine.name, name, len(machines))
            codes[name] = compile_module(
                source.module, machine, dump_dir=folder, watch=say, tuning=tune, precision=precision, weights=placed
            )
            metas[name] = replace(describe(source.module), states=tuple(states))
        parts = [target_of(sources[name].module, machine, code) for name, code in codes.items()]
        built.append(_joined(parts))
        seconds[machine.name] = {
            f"{name} {step}".strip(): spent for name, code in codes.items() for step, spent in code.seconds.items()
        }
        info = info or {name: _info(sources[name], code) for name, code in codes.items()}
    if "" in metas:
        return Artifact(metas[""], built, info[""], state=state, seconds=seconds)
    return Artifact(metas, built, {"methods": info}, state=state, seconds=seconds)


def _folder(root: Path, machine: str, method: str, machine_count: int) -> Path:
    return root / (machine if machine_count > 1 else "") / method


def _joined(parts: Sequence[container.Target]) -> container.Target:
    """The target of all methods: their images, and the weights that the last one knows all of."""
    if len(parts) == 1:
        return parts[0]
    arenas = [part.info.arena_bytes for part in parts]
    most = None if None in arenas else max(arena for arena in arenas if arena is not None)
    images = [part.code for part in parts if isinstance(part.code, bytes)]
    return container.Target(replace(parts[0].info, arena_bytes=most), images, parts[-1].weights)


def share_states(modules: Mapping[str, ir.Module]) -> tuple[list[container.TensorInfo], list[container.Chunk]]:
    """Gives states of one name in several modules one place; returns all, and what they begin as where not zeros.

    Raises: CompileError for states of one name that differ in type or in what they begin as.
    """
    layout = StateLayout()
    for name, module in modules.items():
        with module.context:
            try:
                layout.add(_forward(module), store_of(module))
            except ValueError as error:
                raise CompileError(f"method {name}: {error}" if name else str(error)) from error
    infos = [_tensor_info(name, type_, {}) for name, type_ in layout.types.items()]
    return infos, [container.Chunk(at, array) for at, array in layout.initial()]


def save(program: Any, path: str | os.PathLike[str]) -> None:
    """Saves an ExportedProgram as a `.pt2` for `mlc.compile`, higher-order ops kept, which torch's own save refuses."""
    from mlc.frontend.pt2_save import save as write

    if type(program).__name__ != "ExportedProgram":
        raise CompileError(f"mlc.save takes what torch.export.export gave, not {type(program).__name__}")
    write(program, path)


def compile_module(
    module: ir.Module, machine: Machine, *, dump_dir: Path | None = None, watch: Watch | None = None,
    tuning: Tuning | None = None, precision: str = "f32", weights: Weights | None = None,
) -> CpuCode:
    """Runs the pipeline and the target on an imported module, which is rewritten to L1. Raises CompileError for a
    `precision` that is none."""
    if precision not in PRECISIONS:
        raise CompileError(f"there is no precision '{precision}'; there are: {', '.join(PRECISIONS)}")
    say = watch or (lambda _: None)
    with module.context, ir.Location.unknown():
        machine.attach(module)
        run = run_pipeline(module, pipeline(precision), dump_dir=dump_dir, watch=say)
        if tuning is not None:
            _tune(module, machine, tuning, say)
        keep = None if dump_dir is None else dump_dir / "L2"
        started = time.perf_counter()
        code = compile_cpu(
            module, machine, keep_dir=keep, watch=lambda what, done, total: say(f"{what} {done} of {total}"),
            weights=weights,
        )
        code.seconds.update(run.seconds, code=time.perf_counter() - started)
        return code


def _tune(module: ir.Module, machine: Machine, tuning: Tuning, say: Watch) -> None:
    from mlc.loader import MlcError
    from mlc.tools.tune import default_file, tune

    try:
        tuning.counts = tune(module, machine, tuning.seconds, tuning.file or default_file(machine), say)
    except MlcError as error:
        raise CompileError(f"schedules are measured on this machine, not for {machine.name}: {error}") from error


def _names(function: ir.Operation, attribute: str, count: int) -> list[str]:
    if attribute not in function.attributes:
        return [f"{attribute.removeprefix('mlc.')[:-1]}{i}" for i in range(count)]
    return [ir.StringAttr(a).value for a in ir.ArrayAttr(function.attributes[attribute])]


def _forward(module: ir.Module) -> ir.Operation:
    for op in module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.operation.attributes["sym_name"]).value == "forward":
            return op.operation
    raise CompileError("the module has no @forward")


def describe(module: ir.Module) -> container.Meta:
    """Inputs, outputs and symbols of `@forward` as the artifact states them."""
    with module.context:
        forward = _forward(module)
        block = forward.regions[0].blocks[0]
        count = state_count(forward)
        arguments = [type_of(a) for a in block.arguments]
        inputs, states = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
        results = [type_of(v) for v in block.operations[len(block.operations) - 1].operation.operands]
        outputs = results[: len(results) - count]
        symbols = tuple(container.Symbol(n, low, high) for n, (low, high) in symbol_ranges(module).items())
        of_data = sizes_from_data(module)

        def described(names: list[str], types: list[TensorType]) -> tuple[container.TensorInfo, ...]:
            return tuple(_tensor_info(name, type_, of_data) for name, type_ in zip(names, types, strict=True))

        return container.Meta(
            symbols,
            described(_names(forward, "mlc.inputs", len(inputs)), inputs),
            described(_names(forward, "mlc.outputs", len(outputs)), outputs),
            described(_names(forward, "mlc.states", count), states),
        )


def _tensor_info(name: str, type_: TensorType, of_data: Mapping[str, dims.Size]) -> container.TensorInfo:
    def dim(size: dims.Size) -> int | str | None:
        if isinstance(size, int):
            return size
        names = dims.symbols(size)
        if any(symbol in of_data for symbol in names):
            return "*"
        return names[0] if len(names) == 1 and size == dims.symbol(names[0]) else None

    return container.TensorInfo(name, type_.dtype, tuple(dim(s) for s in type_.shape))


def target_of(module: ir.Module, machine: Machine, code: CpuCode) -> container.Target:
    """The artifact's part for one machine."""
    with module.context:
        arena = dims.parse(ir.StringAttr(_forward(module).attributes["mlc.arena_bytes"]).value)
        most = arena if isinstance(arena, int) else dims.bounds(arena, symbol_ranges(module))[1]
    info = container.TargetInfo(
        machine.arch, machine.features, machine.name, machine.vector_bits if machine.is_scalable else 0,
        arena_bytes=most if most < 2**40 else None,
    )
    chunks = [container.Chunk(w.offset, _Lazy(w)) for w in code.weights]
    return container.Target(info, code.image, chunks)


class _Lazy:
    """A weight that is made when the writer asks for its bytes."""

    def __init__(self, weight: Any) -> None:
        self._weight = weight

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._weight.array()


def write_form(
    model: Any, target: str, form: str, output: Path | None, *, symbols: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None, watch: Watch | None = None, precision: str = "f32",
    weights: Sequence[str | os.PathLike[str]] = (),
) -> tuple[dict[str, int], int]:
    """Writes what lies before an artifact: "static" (model.o, model.h, weights), "asm", "llvm" or "mlir" text.

    Returns files with their bytes, and the count of kernel launches. Raises CompileError, and the compiler's errors.
    """
    machine = find_machine(target)
    source = import_model(model, symbols=symbols, values=values, weights=weights)
    stem = Path(model).stem if isinstance(model, str | os.PathLike) else "model"
    with tempfile.TemporaryDirectory(prefix="mlc-") as scratch:
        code = compile_module(source.module, machine, dump_dir=Path(scratch), watch=watch, precision=precision)
        work = Path(scratch) / "L2"
        if form == "static":
            built = target_of(source.module, machine, code)
            model_parts = describe(source.module), built, share_states({"": source.module})[1]
            files = _write_static(output or Path("."), stem, *model_parts, machine)
        else:
            files = [_write_text(output, stem, form, work, machine)]
    return {str(f): f.stat().st_size for f in files}, len(code.launches)


def _write_static(
    folder: Path, stem: str, meta: container.Meta, target: container.Target, state: Sequence[container.Chunk],
    machine: Machine,
) -> list[Path]:
    from mlc.firmware import write_static

    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W", "_", stem)
    name = name if name[0].isalpha() else f"m{name}"
    assembly, header, weights = write_static(folder, name, meta, target, state=state)
    target_object = assembly.with_suffix(".o")
    run_tool(["clang", "-target", machine.triple, "-c", str(assembly), "-o", str(target_object)])
    assembly.unlink()
    return [target_object, header, weights]


_ENDINGS = {"asm": ".s", "llvm": ".ll", "mlir": ".mlir"}


def _write_text(output: Path | None, stem: str, form: str, work: Path, machine: Machine) -> Path:
    """All modules of the L2 folder as one text; parts are divided by a comment with their name."""
    ending = _ENDINGS[form]
    if form == "asm":
        for source in sorted(work.glob("*.ll")):
            run_tool(["clang", *clang_flags(machine), "-S", str(source), "-o", str(source.with_suffix(".s"))])
    path = output or Path(f"{stem}{ending}")
    comment = {"asm": "#", "llvm": ";", "mlir": "//"}[form]
    parts = [f"{comment} {part.stem}\n{part.read_text()}" for part in sorted(work.glob(f"*{ending}"))]
    path.write_text("\n".join(parts))
    return path


def _arena(module: ir.Module) -> dict[str, Any]:
    """The arena against its lower bound, at typical values of the symbols."""
    with module.context:
        ranges = symbol_ranges(module)
        at = {n: min(max(TYPICAL_SIZE, low), high) for n, (low, high) in ranges.items()}
        at |= {n: dims.evaluate(most, at) for n, most in sizes_from_data(module).items()}
        arena = dims.parse(ir.StringAttr(_forward(module).attributes["mlc.arena_bytes"]).value)
        return {"bytes": dims.evaluate(arena, at), "peak_live_bytes": peak_live_bytes(module, at), "at": at}


def _info(source: Source, code: CpuCode) -> dict[str, Any]:
    info: dict[str, Any] = {
        "kernels": [{"name": k.name, "hero": k.hero, "source": k.source} for k in code.launches],
        "kernel_functions": code.kernel_count, "arena": _arena(source.module),
    }
    if source.output_tree is not None:
        info["output_tree"] = source.output_tree
    if source.input_tree is not None:
        info["input_tree"] = source.input_tree
    return info
