"""Builds the artifacts that the runtime's tests use: a real code image from C, in files good and foreign.

`python test/runtime/artifacts.py FOLDER` writes affine.mlc (this machine), foreign.mlc (another) and mixed.mlc (both,
this one last).
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from mlc.artifact import Chunk, Meta, Symbol, Target, TargetInfo, TensorInfo, write_artifact

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 8
META = Meta(
    symbols=(Symbol("B", 1, 64),),
    inputs=(TensorInfo("x", "f32", ("B", COLUMNS)), TensorInfo("row", "i64", ())),
    outputs=(TensorInfo("y", "f32", ("B", COLUMNS)),),
)
INFO = {
    "kernels": [{"name": "first_affine"}, {"name": "second_affine"}],
    "input_tree": {"kind": "dict", "keys": ["x", "row"], "items": [{"kind": "leaf"}, {"kind": "leaf"}]},
    "output_tree": {"kind": "dict", "keys": ["y", "cache"], "items": [{"kind": "leaf"}, {"kind": "none"}]},
}
HOST = {"AMD64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}[platform.machine()]
OTHER = "aarch64" if HOST == "x86_64" else "x86_64"


@cache
def image(arch: str) -> bytes:
    """image_affine.c as a flat code image, by the command lines of docs/format.md."""
    with tempfile.TemporaryDirectory() as folder:
        compiled, linked = f"{folder}/image.o", f"{folder}/image.bin"
        zig = [sys.executable, "-m", "ziglang"]
        flags = ["-ffreestanding", "-fPIC", "-O2", "-fno-sanitize=all", "-fno-stack-protector", "-fvisibility=hidden"]
        source = str(ROOT / "test/runtime/image_affine.c")
        include = f"-I{ROOT}/runtime/include"
        target = ["-target", f"{arch}-linux-musl"]
        subprocess.run([*zig, "cc", *target, *flags, include, "-c", source, "-o", compiled], check=True)
        script = ["-T", str(ROOT / "targets/cpu/image.ld"), "--oformat=binary"]
        checks = ["--no-undefined", "--orphan-handling=error"]
        subprocess.run([*zig, "ld.lld", *script, *checks, "-o", linked, compiled], check=True)
        return Path(linked).read_bytes()


def weights() -> tuple[np.ndarray, np.ndarray]:
    """w and b of y = x * w + b."""
    return np.arange(COLUMNS, dtype=np.float32) / 4 + 1, np.arange(COLUMNS, dtype=np.float32) - 3


def chunks() -> list[Chunk]:
    """The weights section: w, then b."""
    scale, offset = weights()
    return [Chunk(0, scale), Chunk(scale.nbytes, offset)]


def reference(x: np.ndarray) -> np.ndarray:
    """What the test model computes."""
    scale, offset = weights()
    return ((x * scale + offset) * scale + offset).astype(np.float32)


def target(arch: str = HOST, **facts: object) -> Target:
    """The test model's code for `arch`."""
    return Target(TargetInfo(arch, name=f"{arch} test", arena_bytes=64 * COLUMNS * 4, **facts), image(arch))  # type: ignore[arg-type]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, targets in {
        "affine": [target(HOST)],
        "foreign": [target(OTHER)],
        "mixed": [target(OTHER), target(HOST)],
        "mixed_host_first": [target(HOST), target(OTHER)],
    }.items():
        write_artifact(folder / f"{name}.mlc", META, targets, INFO, chunks())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
