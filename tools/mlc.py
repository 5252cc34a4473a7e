"""mlc: compile, run, bench, inspect; targets, ops and demo.

Every command says on stderr what it does; results go to stdout. `--json` prints one JSON object in place of text,
`--quiet` nothing but results. Errors are one sentence and exit code 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from mlc.artifact import FormatError
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    help="Compiles exported PyTorch and ONNX models into one file that a tiny C runtime runs.\n\n"
    "Start with `mlc demo`, then `mlc compile model.pt2 -o model.mlc` and `mlc run model.mlc --random`.",
)
notes = Console(stderr=True, highlight=False)
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Prints results only.")]
Json = Annotated[bool, typer.Option("--json", help="Prints one JSON object.")]
Method = Annotated[str | None, typer.Option(help="Of a file of several methods: which one.")]
Threads = Annotated[int | None, typer.Option(help="Threads that compute; default: all cores this process may use.")]


class UsageError(ValueError):
    """An option or input that does not fit; the message says what to do."""


def emit_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


@app.command("compile")
def compile_command(
    model: Annotated[
        list[str], typer.Argument(help="A .pt2 (torch.export.save) or .onnx file; or methods, NAME=FILE NAME=FILE ...")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: the model's name with .mlc.")] = None,
    target: Annotated[
        str, typer.Option(help="Machines, best first, e.g. graviton3,aarch64; see `mlc targets`.")
    ] = "host",
    emit: Annotated[str, typer.Option(help="artifact, static (model.o, model.h), asm, llvm or mlir.")] = "artifact",
    dim: Annotated[
        list[str] | None, typer.Option(help="An ONNX size, or one from data: NAME=8 fixes it, NAME=1:64 is its range.")
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option(help="Fixes an ONNX input: NAME=8, NAME=[1,2] or NAME=F.npy.")
    ] = None,
    weights: Annotated[
        list[Path] | None, typer.Option(help="Takes a PyTorch model's weights from .safetensors or .gguf files.")
    ] = None,
    ops: Annotated[
        list[Path] | None, typer.Option(help="Runs this Python file first, for its @mlc.import_op functions.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of the factors of products: f32, bf16 or f16; sums and all else stay f32.")
    ] = "f32",
    tune: Annotated[
        float | None, typer.Option(help="Seconds to measure schedules on this machine; 0: use those found before.")
    ] = None,
    tune_file: Annotated[Path | None, typer.Option(help="Where schedules are kept; default: the user's cache.")] = None,
    dump_ir: Annotated[Path | None, typer.Option(help="Writes the IR after every pass into this folder.")] = None,
    report: Annotated[Path | None, typer.Option(help="Writes kernels, sizes and times as JSON.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compiles MODEL for one machine or several into one file; several methods share its weights and states."""
    from mlc.tools import emitting

    for file in ops or []:
        emitting.run_ops_file(file)
    models = emitting.models_of(model)
    name = next(iter(models.values())).name
    with notes.status(f"compiling {name}") as status:
        def watch(sentence: str) -> None:
            if not quiet and not as_json:
                status.update(f"{name}: {sentence}")

        summary = emitting.compile_file(
            models, output, target=target, emit=emit, symbols=_dims(dim or []), values=_values(value or []),
            dump_dir=dump_ir, watch=watch, tune=emitting.tuning(tune, tune_file), precision=precision,
            weights=weights or [],
        )
    if report is not None:
        report.write_text(json.dumps(summary, indent=2, sort_keys=True))
    if as_json:
        emit_json(summary)
    elif not quiet:
        names = ", ".join(summary["files"])
        print(f"{names}: {summary['bytes']:,} bytes, {summary['kernels']} kernels, {summary['seconds']:.1f} s")


def _dims(texts: list[str]) -> dict[str, int | tuple[int, int]]:
    sizes: dict[str, int | tuple[int, int]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        low, colon, high = value.partition(":")
        try:
            sizes[name] = (int(low), int(high)) if colon else int(low)
        except ValueError as error:
            raise UsageError(f"--dim {text}: write NAME=8 or NAME=1:64") from error
    return sizes


def _values(texts: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[name] = np.load(value, allow_pickle=False) if value.endswith(".npy") else json.loads(value)
        except ValueError as error:
            raise UsageError(f"--value {text}: write NAME=8, NAME=[1,2] or NAME=F.npy") from error
    return values


@app.command()
def run(
    artifact: Annotated[Path, typer.Argument(help="A file that `mlc compile` wrote.")],
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="NAME=F.npy, or one F.npz with all inputs.")
    ] = None,
    random: Annotated[bool, typer.Option(help="Random inputs of the model's own shapes.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    size: Annotated[list[str] | None, typer.Option(help="NAME=N: a symbol's value for random inputs.")] = None,
    output: Annotated[Path | None, typer.Option(help="Writes all outputs as .npz.")] = None,
    threads: Threads = None,
    method: Method = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Runs ARTIFACT once and prints or saves its outputs."""
    from mlc.tools import running

    model = running.load(artifact, threads, method)
    feeds = running.feeds(model, inputs or [], random=random, seed=seed, sizes=running.sizes(size or []))
    outputs = running.run_named(model, feeds)
    if output is not None:
        np.savez(output, **outputs)
    summary = {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in outputs.items()}
    if as_json:
        emit_json({"outputs": summary, "saved": None if output is None else str(output)})
    elif not quiet:
        for name, array in outputs.items():
            text = np.array2string(array, threshold=8, edgeitems=3, precision=5)
            print(f"{name}: {array.dtype}{list(array.shape)}\n{text}")


@app.command()
def bench(
    artifact: Annotated[Path, typer.Argument(help="A file that `mlc compile` wrote.")],
    inputs: Annotated[list[str] | None, typer.Option("--input", help="NAME=F.npy or F.npz; default: random.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    size: Annotated[list[str] | None, typer.Option(help="NAME=N: a symbol's value for random inputs.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 2.0,
    profile: Annotated[bool, typer.Option(help="Splits the time by kernel, with the model's source lines.")] = False,
    threads: Threads = None, as_json: Json = False,
    method: Method = None,
) -> None:
    """Times ARTIFACT: median, minimum and 99th percentile of a call, in milliseconds."""
    from mlc.tools import running

    model = running.load(artifact, threads, method)
    feeds = running.feeds(model, inputs or [], random=not inputs, seed=seed, sizes=running.sizes(size or []))
    times = running.measure(model, feeds, seconds)
    rows = running.profile_rows(model, feeds) if profile else []
    if as_json:
        emit_json({"threads": model.threads, **times, **({"kernels": rows} if profile else {})})
        return
    print(
        f"{times['median_ms']:.3f} ms median, {times['min_ms']:.3f} min, {times['p99_ms']:.3f} p99 "
        f"({times['runs']} runs, {model.threads} threads)"
    )
    if profile:
        table = Table("kernel", "hero", "ms", "%", "source")
        for row in rows:
            table.add_row(row["name"], row["hero"], f"{row['ms']:.3f}", f"{row['percent']:.1f}", row["source"])
        Console(width=160).print(table)


@app.command()
def inspect(
    artifact: Annotated[Path, typer.Argument(help="A file that `mlc compile` wrote.")], as_json: Json = False,
) -> None:
    """Says what is in ARTIFACT: inputs, outputs, symbols, targets, kernels, bytes of code, weights and arena."""
    from mlc.tools import inspecting

    summary = inspecting.summary(artifact)
    emit_json(summary) if as_json else print(inspecting.text(summary))


@app.command()
def targets(as_json: Json = False) -> None:
    """Lists the machines that mlc compiles for, and their facts."""
    from dataclasses import asdict

    from mlc.targets.machines import MACHINES, find_machine

    host = find_machine("host").name
    if as_json:
        emit_json({"host": host, "machines": {n: asdict(m) for n, m in MACHINES.items()}})
        return
    table = Table("target", "arch", "cpu", "vector bits", "registers", "L1", "L2", "features")
    for machine in MACHINES.values():
        bits = f"{machine.vector_bits}{' (SVE)' if machine.is_scalable else ''}"
        name = machine.name + (" = host" if machine.name == host else "")
        sizes = (f"{machine.l1_bytes >> 10}K", f"{machine.l2_bytes >> 10}K")
        table.add_row(name, machine.arch, machine.cpu, bits, str(machine.registers), *sizes, " ".join(machine.features))
    Console(width=150).print(table)


@app.command()
def ops(
    torch: Annotated[bool, typer.Option("--torch", help="ATen ops.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="ONNX ops.")] = False, as_json: Json = False,
) -> None:
    """Lists what each frontend supports, from the op declarations and the importers' rows."""
    from mlc.tools import coverage

    listing = coverage.supported()
    wanted = [n for n, on in (("torch", torch), ("onnx", onnx)) if on] or ["mlc", "torch", "onnx"]
    if as_json:
        emit_json({name: listing[name] for name in wanted})
        return
    for name in wanted:
        print(f"{name}: {len(listing[name])} ops\n  " + "\n  ".join(listing[name]))


@app.command()
def demo(quiet: Quiet = False, as_json: Json = False) -> None:
    """Compiles and runs the digit classifier that comes with mlc: accuracy, latency, artifact and arena size."""
    from dataclasses import asdict

    from mlc.tools.demo import demo as run_demo

    results = run_demo(say=(lambda _: None) if quiet or as_json else print)
    if as_json:
        emit_json([asdict(r) for r in results])


def main() -> None:
    """Entry point: what a person can mend is one sentence and exit code 1."""
    from mlc.loader import MlcError

    try:
        app()
    except (MlcError, FormatError, ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
