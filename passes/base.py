"""Pass, PassError and the runner: parses specs, verifies after each pass, dumps, times, and says how to repeat a
failure."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from mlc.dialects.op import OpError
from mlc.dialects.verify import Verified, verify_module
from mlir import ir
from mlir.passmanager import PassManager


class PassError(ValueError):
    """A pass met IR that its `Before:` excludes, or a pipeline spec is wrong."""


@dataclass(frozen=True)
class Pass:
    """Base of all passes: dataclass fields are options; `removes` names op prefixes that must be gone afterwards."""

    removes: ClassVar[tuple[str, ...]] = ()

    def run(self, module: ir.Module) -> None:
        """Rewrites `module` in place."""
        raise PassError(f"{type(self).__name__} does nothing")


_SPEC = re.compile(r"^(?P<name>[a-z0-9-]+)(\{(?P<options>.*)\})?$")


def parse_pass(spec: str) -> Pass:
    """`fuse{max-ops=64}` to an instance of `passes/fuse.py`'s class `Fuse`. Raises PassError for an unknown name or
    option."""
    match = _SPEC.match(spec.strip())
    if match is None:
        raise PassError(f"'{spec}' is no pass: write name or name{{option=value,...}}")
    name = match["name"]
    module_name = name.replace("-", "_")
    if not (Path(__file__).parent / f"{module_name}.py").is_file() or module_name in ("base", "pipeline"):
        raise PassError(f"there is no pass '{name}'; there are: {', '.join(pass_names())}")
    module = importlib.import_module(f"{__package__}.{module_name}")
    cls = getattr(module, "".join(part.capitalize() for part in name.split("-")))
    return cls(**_parse_options(cls, name, match["options"] or ""))


def _parse_options(cls: type, name: str, text: str) -> dict[str, Any]:
    known = {f.name.replace("_", "-"): f for f in fields(cls)}
    options: dict[str, Any] = {}
    for part in filter(None, re.split(r"[ ,]+", text.strip())):
        key, _, value = part.partition("=")
        if key not in known:
            raise PassError(f"pass '{name}' has no option '{key}'; it has: {', '.join(known) or 'none'}")
        kind: Any = type(known[key].default)
        options[known[key].name] = value in ("true", "1") if kind is bool else kind(value)
    return options


def pass_names() -> list[str]:
    """Names of all passes: the folder is the registry."""
    skip = {"__init__", "base", "pipeline"}
    names = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in skip and re.search(r"^class \w+\(Pass\)", path.read_text(), re.MULTILINE):
            names.append(path.stem.replace("_", "-"))
    return names


def split_specs(text: str) -> list[str]:
    """A comma-separated pipeline, commas inside braces kept."""
    return [s.strip() for s in re.split(r",(?![^{]*\})", text) if s.strip()]


@dataclass
class PipelineRun:
    """What a run did: seconds a pass, and where dumps went."""

    seconds: dict[str, float] = field(default_factory=dict)


def run_pipeline(
    module: ir.Module,
    specs: Sequence[str],
    *,
    dump_dir: Path | None = None,
    watch: Callable[[str], None] | None = None,
    first_number: int = 1,
) -> PipelineRun:
    """Runs `specs` in order over `module`; `mlir:` specs are upstream passes.

    With `dump_dir` the IR after each pass is written there as `NN-name.mlir`. `watch` is told each spec before it runs.
    Raises PassError with the failing pass; the IR it was given is written to `dump_dir` when there is one.
    """
    run = PipelineRun()
    verified: Verified = set()
    for number, spec in enumerate(specs, start=first_number):
        if watch is not None:
            watch(spec)
        started = time.perf_counter()
        before = _text(module) if dump_dir is not None else None
        try:
            _run_one(module, spec, verified)
        except (PassError, OpError) as error:
            raise PassError(f"{spec}: {error}{_repeat(dump_dir, spec, before)}") from error
        run.seconds[spec] = run.seconds.get(spec, 0.0) + time.perf_counter() - started
        if dump_dir is not None:
            dump_dir.mkdir(parents=True, exist_ok=True)
            (dump_dir / f"{number:02d}-{spec.split('{')[0].replace(':', '-')}.mlir").write_text(_text(module))
    return run


def _run_one(module: ir.Module, spec: str, verified: Verified) -> None:
    if spec.startswith("mlir:"):
        with module.context:
            try:
                PassManager.parse(f"builtin.module({spec[5:]})").run(module.operation)
            except (ir.MLIRError, ValueError) as error:
                raise PassError(str(error)) from error
        return
    instance = parse_pass(spec)
    with module.context, ir.Location.unknown():
        instance.run(module)
        if not module.operation.verify():
            raise PassError("the pass left invalid IR")
        verify_module(module, verified)
        _check_removed(module, instance.removes)


def _check_removed(module: ir.Module, prefixes: tuple[str, ...]) -> None:
    left: list[str] = []

    def collect(operation: ir.Operation) -> ir.WalkResult:
        if operation.name.startswith(prefixes):
            left.append(f"{operation.name} ({operation.location})")
        return ir.WalkResult.ADVANCE

    if prefixes:
        module.operation.walk(collect)
    if left:
        raise PassError(f"the pass should have removed {left[0]}")


def _text(module: ir.Module) -> str:
    return module.operation.get_asm(enable_debug_info=True, large_elements_limit=64)


def _repeat(dump_dir: Path | None, spec: str, before: str | None) -> str:
    if dump_dir is None or before is None:
        return ""
    dump_dir.mkdir(parents=True, exist_ok=True)
    path = dump_dir / f"failed-{spec.split('{')[0]}.mlir"
    path.write_text(before)
    return f'\nrepeat with: mlc-opt {path} -p "{spec}"'
