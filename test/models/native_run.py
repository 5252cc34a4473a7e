"""Runs artifacts in the C program test/runtime/run_files.c: on this machine, or for Arm under qemu."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
_SOURCES = (
    "checksum", "cpu_features", "describe", "failure", "model", "sentence", "session", "status", "threads",
    "port_posix",
)  # fmt: skip


@dataclass(frozen=True)
class NativeRun:
    """What the program gave: its outputs and how often it allocated during three runs."""

    outputs: list[np.ndarray]
    allocation_count: int


def build_runner(folder: Path, triple: str) -> Path:
    """Compiles runtime and program for `triple` (a zig target) into one executable."""
    program = folder / f"run_files-{triple}"
    sources = [str(ROOT / "runtime/src" / f"{name}.c") for name in _SOURCES]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, "-std=c11", "-O2", "-fno-sanitize=all"]
    command += ["-static"] if triple.endswith("musl") else []
    command += ["-I", str(ROOT / "runtime/include"), *sources, str(ROOT / "test/runtime/run_files.c")]
    subprocess.run([*command, "-lpthread", "-o", str(program)], check=True, capture_output=True)
    return program


def qemu_command(vector_bits: int) -> list[str]:
    """qemu as an Arm machine whose SVE registers have `vector_bits`; 0: no SVE."""
    assert QEMU is not None
    if not vector_bits:
        return [QEMU, "-cpu", "max,sve=off"]
    return [
        QEMU,
        "-cpu",
        f"max,sve-default-vector-length={vector_bits // 8},sve{vector_bits}=on,sve-max-vq={vector_bits // 128}",
    ]


def run_native(
    program: Path,
    artifact: Path,
    feeds: Sequence[np.ndarray],
    folder: Path,
    *,
    threads: int = 1,
    under: Sequence[str] = (),
) -> NativeRun:
    """Runs `artifact` on `feeds`. Raises RuntimeError with what the program said."""
    arguments = []
    for index, feed in enumerate(feeds):
        path = folder / f"in{index}.bin"
        np.ascontiguousarray(feed).tofile(path)
        arguments.append(f"{path}:{'x'.join(map(str, feed.shape))}")
    command = [*under, str(program), str(artifact), str(threads), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
    outputs = []
    for index, dtype, shape in re.findall(r"^output (\d+) (\w+)(.*)$", done.stdout, re.MULTILINE):
        sizes = [int(s) for s in shape.split()]
        outputs.append(np.fromfile(folder / f"{index}.bin", _numpy(dtype)).reshape(sizes))
    found = re.search(r"^allocations (\d+)$", done.stdout, re.MULTILINE)
    assert found is not None
    return NativeRun(outputs, int(found[1]))


def _numpy(name: str) -> np.dtype:
    from mlc.dialects.types import DTYPES

    return DTYPES[name].numpy
