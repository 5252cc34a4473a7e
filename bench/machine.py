"""What the machine can do at most, measured in the run itself: FMA peak, memory read and copy rates."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("probe.c")


@dataclass(frozen=True)
class Limits:
    """Sums over the threads that ran."""

    gflops: float
    gbytes: float
    copy_gbytes: float
    vector_bits: int


def cpu_facts() -> dict[str, str]:
    """Name and vector extensions of the CPU, for the report."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in rows.items()}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    wanted = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "asimd", "sve", "bf16", "i8mm")
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "features": " ".join(name for name in wanted if name in flags),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
    }


def _vector_bytes() -> tuple[int, list[str]]:
    """Vector length to probe with, and the compiler flags for it."""
    features = cpu_facts()["features"].split()
    if platform.machine() not in ("x86_64", "AMD64"):
        return 16, []
    if "avx512f" in features:
        return 64, ["-mavx512f", "-mfma"]
    if "avx2" in features:
        return 32, ["-mavx2", "-mfma"]
    return 16, []


@cache
def probe_program(folder: Path) -> Path | None:
    """The probe, compiled by zig or the system's clang; None, and no peaks in the report, where there is neither."""
    if importlib.util.find_spec("ziglang") is not None:
        compiler = [sys.executable, "-m", "ziglang", "cc"]
    elif shutil.which("clang"):
        compiler = ["clang"]
    else:
        return None
    vector_bytes, flags = _vector_bytes()
    program = folder / "probe"
    command = [*compiler, "-O2", *flags, f"-DVECTOR_BYTES={vector_bytes}", str(SOURCE), "-lpthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return program


def measure_limits(folder: Path, thread_count: int, seconds: float = 0.15) -> Limits | None:
    """One short measurement; the best of several is the machine's."""
    program = probe_program(folder)
    if program is None:
        return None
    done = subprocess.run([str(program), str(thread_count), str(seconds)], capture_output=True, text=True, check=True)
    return Limits(**json.loads(done.stdout))
