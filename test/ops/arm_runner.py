"""Runs artifacts for Arm under qemu-aarch64, with the vector length that the machine has; arm_runner.c is the
program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from mlc.artifact import TensorInfo
from mlc.dialects.machine import Machine
from mlc.dialects.types import DTYPES

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_SOURCES = (
    "checksum",
    "cpu_features",
    "describe",
    "failure",
    "model",
    "sentence",
    "session",
    "status",
    "threads",
    "port_posix",
)


def qemu() -> str | None:
    """The emulator, or None where there is none."""
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


@cache
def runner() -> Path:
    """arm_runner.c with the whole runtime, compiled once a process."""
    program = Path(tempfile.mkdtemp(prefix="mlc-arm-")) / "arm_runner"
    sources = [_ROOT / f"runtime/src/{name}.c" for name in _SOURCES]
    flags = ["-target", "aarch64-linux-musl", "-static", "-std=c11", "-O2", f"-I{_ROOT / 'runtime/include'}"]
    command = [sys.executable, "-m", "ziglang", "cc", *flags, *sources, _HERE / "arm_runner.c", "-o", program]
    subprocess.run([str(part) for part in command], check=True)
    return program


def cpu_flag(machine: Machine) -> str:
    """qemu's -cpu: every extension, and vectors no longer than the machine's."""
    return f"max,sve-max-vq={machine.vector_bits // 128}" if machine.is_scalable else "max"


def run(blob: bytes, inputs: Sequence[np.ndarray], outputs: Sequence[TensorInfo], machine: Machine) -> list[np.ndarray]:
    """What the artifact gives. Raises RuntimeError with what the program said when it fails."""
    emulator = qemu()
    assert emulator is not None
    with tempfile.TemporaryDirectory(prefix="mlc-arm-") as folder:
        model, given, found = (Path(folder) / name for name in ("model.mlc", "inputs", "outputs"))
        model.write_bytes(blob)
        given.write_bytes(b"".join(np.array(x.shape, np.int64).tobytes() + x.tobytes() for x in inputs))
        command = [emulator, "-cpu", cpu_flag(machine), str(runner()), str(model), str(given), str(found)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"arm_runner ended with {done.returncode}: {done.stderr}")
        return _read_outputs(found.read_bytes(), outputs)


def _read_outputs(data: bytes, outputs: Sequence[TensorInfo]) -> list[np.ndarray]:
    arrays, at = [], 0
    for info in outputs:
        rank, dtype = len(info.dims), np.dtype(DTYPES[info.dtype].numpy)
        shape = tuple(int(s) for s in np.frombuffer(data, np.int64, rank, at))
        at += 8 * rank
        arrays.append(np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape))
        at += arrays[-1].nbytes
    assert at == len(data)
    return arrays
