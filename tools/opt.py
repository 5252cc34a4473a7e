"""mlc-opt: runs passes on any `.mlir` dump and prints the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from mlir import ir

from mlc.dialects.build import make_context
from mlc.dialects.op import OpError
from mlc.dialects.verify import verify_module
from mlc.passes.base import PassError, pass_names, run_pipeline, split_specs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def optimise(
    file: Annotated[Path, typer.Argument(help="An .mlir file, or - for standard input.")],
    passes: Annotated[str, typer.Option("-p", "--passes", help='E.g. "simplify,fuse{max-ops=8},mlir:canonicalize".')] = "",
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
        run_pipeline(module, split_specs(passes))
        print(module.operation.get_asm(enable_debug_info=debug_info, large_elements_limit=64))


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
    except (PassError, OpError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
