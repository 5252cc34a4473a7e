"""`mlc demo`: compiles the digit classifier that the package carries, from PyTorch and from ONNX, and runs it.

The models and 360 held-out images come from examples/digits/train.py. Needs neither torch nor ONNX Runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

SOURCES = ("digits.pt2", "digits.onnx")
# Long enough that the fastest of the runs is seen without interruption by other work.
TIMED_RUNS = 300


@dataclass(frozen=True)
class DemoResult:
    """What one source file gave. Latencies are the fastest of many runs on one thread."""

    source: str
    compile_s: float
    accuracy: float
    trained_accuracy: float
    one_image_us: float
    all_images_us: float
    image_count: int
    artifact_bytes: int
    arena_bytes: int


def demo(folder: str | Path | None = None, say: Callable[[str], Any] = print) -> list[DemoResult]:
    """Compiles and runs each source, says what it sees line by line, and gives the numbers.

    `folder`: where the artifacts stay; None: nowhere. Raises: RuntimeError where a compiled model classifies otherwise
    than the trained one did.
    """
    data_folder = demo_folder()
    with np.load(data_folder / "digits_test.npz") as held_out:
        pixels = np.ascontiguousarray(held_out["pixels"].astype(np.float32) / 16)
        labels, trained_accuracy = held_out["labels"], float(held_out["accuracy"])
    say(f"scikit-learn digits, {len(labels)} held-out images of 8x8")
    results = []
    with TemporaryDirectory() as temporary:
        target = Path(folder) if folder is not None else Path(temporary)
        target.mkdir(parents=True, exist_ok=True)
        for source in SOURCES:
            result = _run_source(data_folder / source, target, pixels, labels, trained_accuracy)
            results.append(result)
            for line in _lines(result):
                say(line)
    wrong = [result.source for result in results if abs(result.accuracy - trained_accuracy) > 0.5 / len(labels)]
    if wrong:
        raise RuntimeError(f"{', '.join(wrong)}: accuracy differs from the {trained_accuracy:.2%} measured at training")
    return results


def demo_folder() -> Path:
    """The folder of the packaged models and images."""
    import mlc.loader

    return Path(mlc.loader.__file__).parent / "demo"


def _run_source(
    source: Path, folder: Path, pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], trained_accuracy: float
) -> DemoResult:
    import mlc

    file = folder / f"{source.name.replace('.', '_')}.mlc"
    start = time.perf_counter()
    mlc.compile(source).save(file)
    compile_s = time.perf_counter() - start
    with mlc.load(file, threads=1) as model:
        logits = np.asarray(model(pixels))
        all_images_us = _fastest_us(model, pixels, TIMED_RUNS // 10)
        arena_bytes = model._idle_sessions[0]._arena.nbytes
        one_image_us = _fastest_us(model, np.ascontiguousarray(pixels[:1]), TIMED_RUNS)
    accuracy = float((logits.argmax(axis=1) == labels).mean())
    sizes = {"artifact_bytes": file.stat().st_size, "arena_bytes": arena_bytes, "image_count": len(labels)}
    return DemoResult(source.name, compile_s, accuracy, trained_accuracy, one_image_us, all_images_us, **sizes)


def _fastest_us(model: Any, pixels: np.ndarray[Any, Any], runs: int) -> float:
    fastest_ns = None
    for _ in range(runs):
        start = time.perf_counter_ns()
        model(pixels)
        spent_ns = time.perf_counter_ns() - start
        fastest_ns = spent_ns if fastest_ns is None else min(fastest_ns, spent_ns)
    return (fastest_ns or 0) / 1000


def _lines(result: DemoResult) -> list[str]:
    count = result.image_count
    return [
        f"{result.source}: compiled in {result.compile_s:.1f} s, artifact {result.artifact_bytes / 1024:.1f} KiB",
        f"  accuracy {result.accuracy:.2%} (trained model: {result.trained_accuracy:.2%})",
        f"  one thread: {result.one_image_us:.1f} us an image, {result.all_images_us:.0f} us for a batch of {count}",
        f"  arena {result.arena_bytes / 1024:.1f} KiB for the batch of {count}",
    ]
