"""Whole models: compiled code against PyTorch or ONNX Runtime on real inputs, and against the same weights in float64.

The default run takes SMALL; `pytest -m models` takes every model that zoo.py can build here, and builds what is
missing.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import mlc
import numpy as np
import pytest
import zoo

# Published models of a few MB that need no more than onnx and ONNX Runtime: text, speech, images, an LSTM.
SMALL = ("magika", "ocr_classify", "oww_embedding", "silero_vad_static")

# Of the output's largest magnitude.
RELATIVE_LIMIT = 1e-4
# A sum of a few rounded terms is this far off at best; a reference may be nearer to the truth by luck alone, as it is
# where the output is one saturated probability.
LUCK = 2.0**-22
THREADS = 2


@cache
def artifact_of(name: str, folder: Path) -> Path:
    """The compiled model, kept for the session, since several tests run it."""
    file = folder / f"{name}.mlc"
    model = zoo.get(name)
    mlc.compile(model.path, symbols=model.symbols or None).save(file)
    return file


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(params=[pytest.param(n, marks=[] if n in SMALL else pytest.mark.models) for n in sorted(zoo.entries())])
def model(request: pytest.FixtureRequest) -> zoo.Model:
    try:
        return zoo.get(request.param)
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))


def flat(outputs: object) -> list[np.ndarray]:
    """Arrays of a model's output structure in order."""
    if isinstance(outputs, dict):
        return [array for value in outputs.values() for array in flat(value)]
    if isinstance(outputs, (tuple, list)):
        return [array for value in outputs for array in flat(value)]
    return [np.asarray(outputs)]


def worst(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude wanted; infinite where shapes or finiteness differ."""
    if got.shape != wanted.shape or not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        return float("inf")
    finite = np.isfinite(wanted)
    if not finite.any():
        return 0.0
    scale = float(np.abs(wanted[finite].astype(np.float64)).max())
    difference = float(np.abs(got[finite].astype(np.float64) - wanted[finite].astype(np.float64)).max())
    return difference / scale if scale else difference


def test_agrees_with_reference_and_float64(model: zoo.Model, artifacts: Path) -> None:
    """Errors against float64 are compared as means over the runs of an output.

    Of one run, or one element, either side can be right by luck, and where a model magnifies rounding (a square root
    near zero, in silence) either can be far off.
    """
    mine_errors: list[list[float]] = [[] for _ in model.outputs[0]]
    their_errors: list[list[float]] = [[] for _ in model.outputs[0]]
    with mlc.load(artifact_of(model.name, artifacts), threads=THREADS) as compiled:
        heroes = {kernel["hero"] for kernel in compiled.info["kernels"]}
        for run, (feed, wanted) in enumerate(zip(model.feeds, model.outputs, strict=True)):
            got = flat(compiled(*feed))
            assert len(got) == len(wanted)
            for index, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
                where = f"{model.name}, run {run}, output {index} {theirs.dtype}{list(theirs.shape)}"
                assert mine.dtype == theirs.dtype, where
                if theirs.dtype.kind != "f":
                    np.testing.assert_array_equal(mine, theirs, err_msg=where)
                    continue
                assert worst(mine, theirs) <= RELATIVE_LIMIT, where
                if model.exact is not None:
                    exact = model.exact[run][index]
                    mine_errors[index].append(worst(mine, exact))
                    their_errors[index].append(worst(theirs, exact))
    for index, (mine_of_runs, theirs_of_runs) in enumerate(zip(mine_errors, their_errors, strict=True)):
        if mine_of_runs:
            # Winograd's additions cost accuracy: up to four times the error of a convolution taken directly.
            factor = 4 if "conv_winograd" in heroes else 2
            limit = max(factor * float(np.mean(theirs_of_runs)), LUCK)
            assert float(np.mean(mine_of_runs)) <= limit, f"{model.name}, output {index}: against float64"


def test_bits_do_not_depend_on_threads(model: zoo.Model, artifacts: Path) -> None:
    file = artifact_of(model.name, artifacts)
    outputs = []
    for threads in (1, 2, 3):
        with mlc.load(file, threads=threads) as compiled:
            outputs.append([array.tobytes() for array in flat(compiled(*model.feeds[0]))])
    assert outputs[0] == outputs[1] == outputs[2]


def test_names_are_registered_once() -> None:
    """Names are file names and test ids: lower case, digits and underscores."""
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in zoo.entries())
