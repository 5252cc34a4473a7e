"""Whole models with factors of bf16: as far from f32 as the numpy bodies are when given the same rounded factors."""

from __future__ import annotations

from dataclasses import replace

import mlc
import numpy as np
import pytest
import zoo
from mlc.dialects import reference
from mlc.passes.base import run_pipeline
from mlc.passes.pipeline import GRAPH
from mlc.targets.machines import find_machine
from mlc.tools import driver
from mlir import ir

# The dot products of pairs as the multiply-adds that they stand for: code that any x86-64 of the tests runs.
PAIRS = replace(find_machine("x86-64-v3"), dot="fma")
# Sums in another order round other factors the other way, one in some hundred; errors of both are samples.
SLACK = 1.5


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference, of the wanted's own."""
    wide = np.asarray(wanted, np.float64)
    return float(np.sqrt(np.mean((np.asarray(found, np.float64) - wide) ** 2) / np.mean(wide**2)))


@pytest.mark.models
@pytest.mark.parametrize("name", ["minilm_128", "resnet50", "bench_bert_base", "bench_gpt2_decode"])
def test_model(name: str) -> None:
    """Compiled by pairs, against the reference of the same graph and the model's own f32 outputs."""
    if find_machine("host").arch != "x86_64":
        pytest.skip("code for x86-64")
    model = zoo.get(name)
    feeds, exact = model.feeds[0], model.outputs[0][0]
    rounded = driver.import_model(model.path).module
    with rounded.context, ir.Location.unknown():
        PAIRS.attach(rounded)
        run_pipeline(rounded, [*GRAPH, "reduce-precision", "fold"])
        wanted = reference.run_function(rounded, list(feeds))[0]
    module = driver.import_model(model.path).module
    code = driver.compile_module(module, PAIRS, precision="bf16")
    blob = driver.Artifact(driver.describe(module), [driver.target_of(module, PAIRS, code)], {}).to_bytes()
    found = mlc.load(blob)(*feeds)
    while isinstance(found, (dict, list, tuple)):
        found = next(iter(found.values() if isinstance(found, dict) else found))
    expected, reached = distance(wanted, exact), distance(np.asarray(found), exact)
    assert 1e-4 < reached < SLACK * expected < 0.2, f"{reached:.2e} from f32, the reference {expected:.2e}"
