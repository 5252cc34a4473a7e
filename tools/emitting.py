"""`mlc compile`: one model to an artifact, or to one of the forms on the way."""

from __future__ import annotations

import runpy
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlc.tools import driver

FORMS = ("artifact", "static", "asm", "llvm", "mlir")


def models_of(texts: Sequence[str]) -> dict[str, Path]:
    """One file under the name "", or NAME=FILE for each method. Raises CompileError for a mixture."""
    if len(texts) == 1 and ("=" not in texts[0] or Path(texts[0]).exists()):
        return {"": Path(texts[0])}
    pairs = [text.partition("=") for text in texts]
    if not all(name.isidentifier() and path for name, _, path in pairs):
        raise driver.CompileError("give one model, or methods as NAME=FILE, such as prefill=a.pt2 decode=b.pt2")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise driver.CompileError("two methods have one name")
    return {name: Path(path) for name, _, path in pairs}


def _code_bytes(code: bytes | Sequence[bytes]) -> int:
    return len(code) if isinstance(code, bytes) else sum(map(len, code))


def compile_file(
    models: Mapping[str, Path], output: Path | None, *, target: str, emit: str, symbols: Mapping[str, Any],
    values: Mapping[str, Any], dump_dir: Path | None, watch: Callable[[str], None], tune: driver.Tuning | None = None,
    precision: str = "f32", weights: Sequence[Path] = (),
) -> dict[str, Any]:
    """Compiles one model, by the name "", or methods by theirs, and writes; returns what was written.

    Raises CompileError for an unknown form, and the compiler's errors.
    """
    if emit not in FORMS:
        raise driver.CompileError(f"--emit {emit}: choose {', '.join(FORMS)}")
    if output is not None and not output.parent.is_dir():
        raise driver.CompileError(f"there is no folder {output.parent} to write {output.name} into")
    if tune is not None and emit != "artifact":
        raise driver.CompileError(f"--tune goes with --emit artifact, not {emit}")
    if emit != "artifact" and "" not in models:
        raise driver.CompileError(f"--emit {emit} takes one model, not methods")
    started = time.perf_counter()
    model = next(iter(models.values()))
    details: dict[str, Any]
    if emit == "artifact":
        built = driver.compile(
            model if "" in models else models, target, symbols=symbols, values=values, dump_dir=dump_dir, watch=watch,
            tune=tune, precision=precision, weights=weights,
        )
        path = output or model.with_suffix(".mlc")
        files = {str(path): built.save(path)}
        infos = built.info.get("methods", {"": built.info})
        kernels = sum(len(info["kernels"]) for info in infos.values())
        details = {
            "pass_seconds": built.seconds,
            **({"arena": built.info["arena"], "kernel_list": built.info["kernels"]} if "" in models else infos),
            **({"tuning": tune.counts} if tune is not None else {}),
            "code_bytes": {t.info.name: _code_bytes(t.code) for t in built.targets},
        }
    else:
        details = {}
        files, kernels = driver.write_form(
            model, target, emit, output, symbols=symbols, values=values, watch=watch, precision=precision,
            weights=weights,
        )
    return {
        "files": list(files), "bytes": sum(files.values()), "kernels": kernels, "target": target, "form": emit,
        "seconds": time.perf_counter() - started, **details,
    }


def tuning(seconds: float | None, file: Path | None) -> driver.Tuning | None:
    """What `--tune` and `--tune-file` ask for. Raises CompileError for a file without a time, or less than none."""
    if seconds is None and file is not None:
        raise driver.CompileError("--tune-file goes with --tune SECONDS; --tune 0 uses the file as it is")
    if seconds is not None and not seconds >= 0:
        raise driver.CompileError(f"--tune {seconds}: give seconds, 0 or more")
    return None if seconds is None else driver.Tuning(seconds, file)


def run_ops_file(file: Path) -> None:
    """Runs a Python file that registers lowerings with `mlc.import_op`. Raises CompileError for one that fails."""
    if not file.is_file():
        raise driver.CompileError(f"there is no file {file}")
    try:
        runpy.run_path(str(file), run_name="mlc_ops")
    except Exception as error:
        lines = [trace.lineno for trace in traceback.extract_tb(error.__traceback__) if trace.filename == str(file)]
        place = f"{file}:{lines[-1]}" if lines else str(file)
        raise driver.CompileError(f"{place}: {type(error).__name__}: {error}") from error
