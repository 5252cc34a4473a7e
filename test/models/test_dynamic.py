"""Every PyTorch model of the zoo that is exported with dynamic sizes: three sizes from one artifact, against the same
program run by PyTorch, and a refusal on either side of the range."""

from __future__ import annotations

from pathlib import Path

import mlc
import numpy as np
import pytest
import torch
import zoo
from mlc.signature import TensorInfo
from test_models import RELATIVE_LIMIT, THREADS, artifact_of, artifacts, flat, worst  # noqa: F401  a fixture

pytestmark = pytest.mark.models

SIZES = (2, 3, 5)  # torch.export takes a size of 1 for a constant where the model broadcasts
LARGEST_TRIED = 2**20  # elements along an axis: ranges that go on beyond it have no end that a test could pass


def dynamic_models() -> list[str]:
    return [n for n, entry in sorted(zoo.entries().items()) if "dynamic" in entry.about and "onnx" not in n]


@pytest.fixture(params=dynamic_models())
def model(request: pytest.FixtureRequest) -> zoo.Model:
    try:
        found = zoo.get(request.param)
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))
    if found.path.suffix != ".pt2":
        pytest.skip("an ONNX file, which PyTorch does not run")
    return found


def resized(feed: list[np.ndarray], rows: tuple[TensorInfo, ...], sizes: dict[str, int]) -> list[np.ndarray]:
    """The feed with each axis that a symbol names as long as `sizes` says: repeated or cut."""
    arrays = []
    for array, row in zip(feed, rows, strict=True):
        for axis, dim in enumerate(row.dims):
            if isinstance(dim, str):
                array = np.take(array, np.arange(sizes[dim]) % array.shape[axis], axis)
        arrays.append(np.ascontiguousarray(array))
    return arrays


def test_three_sizes_from_one_artifact(model: zoo.Model, artifacts: Path) -> None:  # noqa: F811
    program = torch.export.load(model.path).module()
    with mlc.load(artifact_of(model.name, artifacts), threads=THREADS) as compiled:
        ranges = {symbol.name: (symbol.min, symbol.max) for symbol in compiled.symbols}
        assert ranges, f"{model.name} has no dynamic size"
        named = {d for row in compiled.inputs for d in row.dims if isinstance(d, str)}
        seen = set()
        for turn in range(len(SIZES)):
            sizes = {
                name: min(max(SIZES[(turn + place) % len(SIZES)], low), high)
                for place, (name, (low, high)) in enumerate(ranges.items())
            }
            seen.add(tuple(sizes[name] for name in sorted(named)))
            feed = resized(model.feeds[0], compiled.inputs, sizes)
            with torch.no_grad():
                wanted = flat(program(*map(torch.from_numpy, feed)))
            for got, want in zip(flat(compiled(*feed)), wanted, strict=True):
                assert worst(got, want) <= RELATIVE_LIMIT, f"{model.name} at {sizes}"
        assert len(seen) == len(SIZES)
        inside = {name: min(max(SIZES[0], low), high) for name, (low, high) in ranges.items()}
        for name in named:
            low, high = ranges[name]
            for outside in [low - 1] * (low > 0) + [high + 1] * (high < LARGEST_TRIED):
                with pytest.raises(mlc.MlcError, match=r"OUT_OF_RANGE|BAD_SHAPE"):
                    compiled(*resized(model.feeds[0], compiled.inputs, inside | {name: outside}))
