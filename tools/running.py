"""Runs and times artifacts for the command line: inputs from files or random, outputs by name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlc
import numpy as np
from mlc import tensors
from mlc.loader import Model

Feeds = dict[str, np.ndarray]
# Symbols without a value given are this large in random inputs, cut to their range.
_RANDOM_SIZE = 16


class InputError(ValueError):
    """An input file or value that does not fit the model."""


def load(path: Path, threads: int | None, method: str | None = None) -> Model:
    """The model of a file, or of one of its methods. Raises InputError where there are several and none is named."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    found = mlc.load(path, threads=threads)
    if isinstance(found, Model):
        if method is not None:
            raise InputError(f"{path} has one method only; leave out --method")
        return found
    if method not in found.names:
        raise InputError(f"{path} has methods; name one by --method: {', '.join(found.names)}")
    return found[method]


def numpy_dtype(name: str) -> np.dtype:
    """numpy's type for an mlc dtype name."""
    return tensors.numpy_dtype(name)


def sizes(texts: Sequence[str]) -> dict[str, int]:
    """NAME=N options as numbers."""
    values = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not number.isdigit():
            raise InputError(f"--size {text}: write NAME=N")
        values[name] = int(number)
    return values


def feeds(model: Model, files: Sequence[str], *, random: bool, seed: int, sizes: Mapping[str, int]) -> Feeds:
    """Inputs by name, from `.npy` and `.npz` files or random ones. Raises InputError naming what is missing."""
    found: Feeds = {}
    names = [i.name for i in model.inputs]
    for text in files:
        name, equals, path = text.partition("=")
        source = Path(path if equals else text)
        if not source.is_file():
            raise InputError(f"there is no file {source}")
        if source.suffix == ".npz":
            with np.load(source) as arrays:
                found.update({n: arrays[n] for n in arrays.files})
        else:
            found[name if equals else names[0]] = np.load(source)
    unknown = [n for n in found if n not in names]
    if unknown:
        raise InputError(f"the model has no input '{unknown[0]}'; it has: {', '.join(names)}")
    missing = [n for n in names if n not in found]
    if missing and not random:
        raise InputError(f"input '{missing[0]}' is missing; give --input {missing[0]}=FILE.npy, or --random")
    return {**found, **_random(model, missing, seed, sizes)}


def _random(model: Model, names: Sequence[str], seed: int, sizes: Mapping[str, int]) -> Feeds:
    generator = np.random.default_rng(seed)
    values = {s.name: min(max(sizes.get(s.name, _RANDOM_SIZE), s.min), s.max) for s in model.symbols}
    out: Feeds = {}
    for info in model.inputs:
        if info.name not in names:
            continue
        if any(d is None for d in info.dims):
            raise InputError(f"input '{info.name}' has a computed size; give it as --input {info.name}=FILE.npy")
        shape = [values[d] if isinstance(d, str) else int(d or 0) for d in info.dims]
        dtype = numpy_dtype(info.dtype)
        is_float = info.dtype.startswith(("f", "bf"))
        drawn = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        out[info.name] = np.asarray(drawn).astype(dtype)
    return out


def run_named(model: Model, given: Feeds) -> Feeds:
    """Outputs by name."""
    results = model.run_flat([given[i.name] for i in model.inputs])
    return dict(zip((o.name for o in model.outputs), results, strict=True))


def measure(model: Model, given: Feeds, seconds: float) -> dict[str, Any]:
    """Times calls for about `seconds`: median, min and p99 in milliseconds."""
    leaves = [given[i.name] for i in model.inputs]
    model.run_flat(leaves)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        started = time.perf_counter()
        model.run_flat(leaves)
        times.append((time.perf_counter() - started) * 1e3)
    return {
        "median_ms": float(np.median(times)),
        "min_ms": min(times),
        "p99_ms": float(np.percentile(times, 99)),
        "runs": len(times),
    }


_PROFILED_RUNS = 5


def profile_rows(model: Model, given: Feeds) -> list[dict[str, Any]]:
    """Kernels by time, with hero and the user's source lines; of several runs each one's shortest time."""
    runs = [model.profile_flat([given[i.name] for i in model.inputs]) for _ in range(_PROFILED_RUNS)]
    fastest = {row.kernel_index: row for run in runs for row in sorted(run, key=lambda row: -row.time_ns)}
    rows = sorted(fastest.values(), key=lambda row: -row.time_ns)
    total = sum(r.time_ns for r in rows) or 1
    kernels = model.info.get("kernels", [])
    out = []
    for row in rows:
        known = kernels[row.kernel_index] if row.kernel_index < len(kernels) else {}
        out.append({
            "name": row.name, "hero": known.get("hero", ""), "source": known.get("source", ""), "ms": row.time_ns / 1e6,
            "percent": 100 * row.time_ns / total,
        })
    return out
