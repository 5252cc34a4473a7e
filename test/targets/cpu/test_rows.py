"""Row programs that keep a transcendental in the output row, against numpy in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlc
import numpy as np
import pytest
from mlc.dialects.types import dtype_of_numpy
from mlc.frontend.graph import GraphBuilder
from mlc.targets.machines import find_machine
from mlc.tools import driver

Build = Callable[[GraphBuilder, Any, int], Any]


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _softmax_times_tanh(g: GraphBuilder, x: Any, axis: int) -> Any:
    high = g.tanh(x)
    return g.mul(g.softmax(high, axis=axis), high)


# The tanh is wanted by three passes and, in the second case, still when the powers are known.
CASES: dict[str, tuple[Build, Callable[[np.ndarray], np.ndarray]]] = {
    "softmax": (lambda g, x, axis: g.softmax(x, axis=axis), softmax),
    "of_tanh": (lambda g, x, axis: g.softmax(g.tanh(x), axis=axis), lambda x: softmax(np.tanh(x))),
    "times_tanh": (_softmax_times_tanh, lambda x: softmax(np.tanh(x)) * np.tanh(x)),
    "exp_after": (lambda g, x, axis: g.exp(g.softmax(x, axis=axis)), lambda x: np.exp(softmax(x))),
    "transposed": (lambda g, x, axis: g.transpose(g.softmax(x, axis=axis), perm=[1, 0]), lambda x: softmax(x).T),
    "flat": (
        lambda g, x, axis: g.reshape(g.softmax(x, axis=axis), shape=[int(np.prod(x.shape))]),
        lambda x: softmax(x).ravel(),
    ),
}


def compiled(build: Build, x: np.ndarray) -> np.ndarray:
    graph = GraphBuilder({})
    (declared,) = graph.declare_inputs([("x", dtype_of_numpy(x.dtype), x.shape)])
    module = graph.finish([("y", build(graph, declared, x.ndim - 1))])
    machine = find_machine("host")
    code = driver.compile_module(module, machine)
    artifact = driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {})
    return np.asarray(mlc.load(artifact.to_bytes(), threads=2)(x))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(37, 53), (5, 1), (3, 100)], ids=str)
def test_rows(name: str, dtype: str, shape: tuple[int, int]) -> None:
    build, reference = CASES[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    np.testing.assert_allclose(compiled(build, x), reference(x.astype(np.float64)), rtol=16 * np.finfo(dtype).eps)
