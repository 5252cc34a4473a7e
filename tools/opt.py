"""mlc-opt: runs passes on any `.mlir` dump and prints the result, or the code of its kernels."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from mlc.dialects.build import make_context
from mlc.dialects.machine import Machine
from mlc.dialects.verify import verify_module
from mlc.passes.base import PassError, pass_names, run_pipeline, split_specs
from mlc.passes.rewriting import kernels
from mlc.targets.machines import find_machine
from mlc.targets.tools import ToolError, run_tool
from mlir import ir

FORMS = ("ir", "l2", "llvm", "asm")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def optimise(
    file: Annotated[Path, typer.Argument(help="An .mlir file, or - for standard input.")] = Path("-"),
    passes: Annotated[str, typer.Option("-p", "--passes", help='E.g. "simplify,fuse{max-ops=8},mlir:cse".')] = "",
    target: Annotated[str, typer.Option(help="Attaches this machine's facts first; see `mlc targets`.")] = "",
    emit: Annotated[str, typer.Option(help="ir, or kernels (on a machine) as l2, llvm or asm.")] = "ir",
    list_passes: Annotated[bool, typer.Option("--list", help="Lists the passes and ends.")] = False,
    debug_info: Annotated[bool, typer.Option(help="Prints locations.")] = False,
) -> None:
    """Parses FILE, verifies it, runs PASSES in order (verifying after each) and prints the module.

    `mlir:NAME` runs an upstream pass, anything else a file of passes/.
    """
    if list_passes:
        print("\n".join(pass_names()))
        return
    with make_context(), ir.Location.unknown():
        module = _parse(file)
        verify_module(module)
        if target:
            find_machine(target).attach(module)
        run_pipeline(module, split_specs(passes))
        if emit == "ir":
            print(module.operation.get_asm(enable_debug_info=debug_info, large_elements_limit=64))
        else:
            print(_kernels(module, emit))


def _kernels(module: ir.Module, form: str) -> str:
    """The code of every kernel as L2 IR, LLVM IR or assembly. Raises PassError for another form, and ToolError."""
    from mlc.targets.cpu.lower import lower_kernel
    from mlc.targets.cpu.objects import clang_flags, lower_to_llvm

    if form not in FORMS:
        raise PassError(f"--emit {form}: choose {', '.join(FORMS)}")
    machine = Machine.of(module)
    code = ir.Module.create()
    functions = kernels(module)
    if not functions:
        raise PassError(f"--emit {form}: the module has no kernels; run fuse first")
    for kernel in functions.values():
        lower_kernel(kernel, machine, code)
    if form == "l2":
        return str(code)
    text = lower_to_llvm(code)
    if form == "llvm":
        return text
    with tempfile.TemporaryDirectory(prefix="mlc-") as scratch:
        source, target = Path(scratch) / "kernels.ll", Path(scratch) / "kernels.s"
        source.write_text(text)
        run_tool(["clang", *clang_flags(machine), "-S", str(source), "-o", str(target)])
        return target.read_text()


def _parse(file: Path) -> ir.Module:
    try:
        if str(file) == "-":
            return ir.Module.parse(sys.stdin.read())
        if not file.is_file():
            raise PassError(f"there is no file {file}")
        return ir.Module.parseFile(str(file))
    except ir.MLIRError as error:
        raise PassError(str(error)) from error


def main() -> None:
    """Entry point: errors are one line and exit code 1."""
    try:
        app()
    except (ValueError, ToolError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
