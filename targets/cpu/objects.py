"""L2 modules to objects to one flat code image: upstream lowering, LLVM IR, clang and lld of the ziglang package."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from mlc.dialects.machine import Machine
from mlc.targets.tools import finish_tool, run_tool, start_tool
from mlir import ir
from mlir.dialects import llvm
from mlir.passmanager import PassManager

LOWER = (
    "builtin.module(convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
_HERE = Path(__file__).parent


def lower_to_llvm(module: ir.Module) -> str:
    """LLVM IR of an L2 module, which is rewritten to the LLVM dialect on the way."""
    PassManager.parse(LOWER).run(module.operation)
    return llvm.translate_module_to_llvmir(module.operation)


def header_ir(kernel_count: int, symbol_count: int, scratch_bytes: int) -> str:
    """The image's mlc_code_v1 as LLVM IR: offsets are differences of symbols, so that nothing is relocated."""

    def offset(name: str) -> str:
        start = "i64 ptrtoint (ptr @mlc_code_header to i64)"
        return f"i32 trunc (i64 sub (i64 ptrtoint (ptr @{name} to i64), {start}) to i32)"

    fields = [
        f"i32 {0x4D4C4331}", "i32 1", offset("mlc_image_end"), f"i32 {kernel_count}", offset("mlc_plan"),
        offset("mlc_forward"), f"i32 {symbol_count}", f"i32 {scratch_bytes}",
    ]
    types = ", ".join(["i32"] * 8)
    return (
        "@mlc_image_end = external hidden global i8\n"
        "declare hidden i32 @mlc_plan(ptr)\ndeclare hidden i32 @mlc_forward(ptr)\n"
        f'@mlc_code_header = hidden constant {{ {types} }} {{ {", ".join(fields)} }}, section ".mlc.header", align 64\n'
    )


def clang_flags(machine: Machine) -> list[str]:
    """Target flags of clang; frame pointers and unwind tables serve nobody in an image.

    Loops are vectorized here, not by LLVM, whose loop vectorizer never ends on some scalar code (tan of one element,
    22.1.8).
    """
    cpu = f"-march={machine.cpu}" if machine.arch == "x86_64" else f"-mcpu={_arm_cpu(machine)}"
    flags = ["-target", machine.triple, cpu, "-O3", "-ffreestanding", "-fPIC", "-fno-builtin"]
    return [*flags, "-fno-asynchronous-unwind-tables", "-fomit-frame-pointer", "-fno-vectorize",
            "-Wno-override-module"]


def _arm_cpu(machine: Machine) -> str:
    extra = [f for f in machine.features if f not in ("neon",)] if machine.cpu == "generic" else []
    return "+".join([machine.cpu, *extra])


class ObjectBuilder:
    """Compiles LLVM IR files side by side, at most `jobs` at once, and links them."""

    def __init__(self, machine: Machine, folder: Path, jobs: int) -> None:
        self.machine, self.folder, self.jobs = machine, folder, jobs
        self.objects: list[Path] = []
        self._running: list[subprocess.Popen] = []

    def add_ir(self, name: str, text: str) -> None:
        """Starts compiling `text`. Raises ToolError for one that failed before."""
        source = self.folder / f"{name}.ll"
        source.write_text(text)
        self._start(source, [])

    def add_support(self) -> None:
        self._start(_HERE / "support.c", ["-std=c11"])

    def _start(self, source: Path, extra: Sequence[str]) -> None:
        target = self.folder / f"{source.stem}.o"
        while len(self._running) >= self.jobs:
            finish_tool(self._running.pop(0))
        self._running.append(
            start_tool(["clang", *clang_flags(self.machine), *extra, "-c", str(source), "-o", str(target)])
        )
        self.objects.append(target)

    def wait(self) -> list[Path]:
        """All objects, finished."""
        while self._running:
            finish_tool(self._running.pop(0))
        return self.objects

    def link_image(self) -> bytes:
        """The flat code image of all objects."""
        objects = [str(p) for p in self.wait()]
        target = self.folder / "image.bin"
        script = ["-T", str(_HERE / "image.ld"), "--oformat=binary", "--no-undefined", "--gc-sections"]
        run_tool(["ld.lld", *script, "--orphan-handling=error", "-o", str(target), *objects])
        return target.read_bytes()
