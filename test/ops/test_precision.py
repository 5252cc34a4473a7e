"""Products with factors of bf16 against f64 products of the rounded factors: by pairs of k, with the two multiply-adds
that a dot product stands for in its place, in vectors of 256 and 512 bits; and where weights alone are rounded."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import mlc
import numpy as np
import pytest
from mlc.dialects.machine import Machine
from mlc.frontend.graph import GraphBuilder
from mlc.targets.machines import find_machine
from mlc.tools import driver

_AVX2 = find_machine("x86-64-v3")
# Vectors of 512 bits, each taken by LLVM in two halves: the schedules of AVX-512 on a machine without it.
_WIDE = replace(find_machine("x86-64-v4"), cpu=_AVX2.cpu, features=_AVX2.features)
MACHINES = {"weights": _AVX2, "pairs": replace(_AVX2, dot="fma"), "wide-pairs": replace(_WIDE, dot="fma")}
# Of the largest element of the result; f32 sums of products that are exact in f32.
TOLERANCE = 1e-6


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def compiled(graph: GraphBuilder, result, machine: Machine, precision: str = "bf16") -> bytes:
    if find_machine("host").arch != "x86_64":
        pytest.skip("code for x86-64")
    module = graph.finish([("y", result)])
    code = driver.compile_module(module, machine, precision=precision)
    return driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {}).to_bytes()


def product(shape: tuple[int, ...], k: int, n: int, is_transposed: bool, machine: Machine):
    """An artifact of relu(x w + b), an input, and its result in f64."""
    rng = np.random.default_rng(k)
    x = rng.standard_normal((*shape, k)).astype(np.float32)
    w = rng.standard_normal((n, k) if is_transposed else (k, n)).astype(np.float32)
    b = rng.standard_normal(n).astype(np.float32)
    graph = GraphBuilder({})
    (value,) = graph.declare_inputs([("x", "f32", x.shape)])
    y = graph.op("matmul", value, graph.weight("w", w), transpose_b=is_transposed)
    y = graph.relu(graph.add(y, graph.weight("b", b)))
    left = rounded(x) if machine.dot else x.astype(np.float64)
    right = rounded(w.T if is_transposed else w)
    return compiled(graph, y, machine), x, np.maximum(left @ right + b, 0)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(
    ("shape", "k", "n", "is_transposed"),
    [((33,), 70, 45, False), ((1,), 64, 100, True), ((5,), 33, 17, True), ((2, 15), 3073, 40, False),
     ((128,), 768, 96, True)],
)  # fmt: skip
def test_matmul(name: str, shape: tuple[int, ...], k: int, n: int, is_transposed: bool) -> None:
    """Even and odd k, k cut into slices, a row alone, tails."""
    blob, x, wanted = product(shape, k, n, is_transposed, MACHINES[name])
    np.testing.assert_allclose(np.asarray(mlc.load(blob)(x)), wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def convolved(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int) -> np.ndarray:
    """[N, C, H, W] by [O, C / groups, H, W], in f64."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    depth, outputs = w.shape[1], w.shape[0] // groups
    parts = [
        np.einsum(
            "nchwij,ocij->nohw", windows[:, g * depth : (g + 1) * depth], w[g * outputs : (g + 1) * outputs],
            optimize=True,
        )
        for g in range(groups)
    ]  # fmt: skip
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("name", ["pairs", "wide-pairs"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride", "pad", "groups"),
    [((1, 16, 13, 11), (24, 16, 3, 3), 1, 1, 1), ((1, 3, 20, 20), (16, 3, 7, 7), 2, 3, 1),
     ((2, 32, 9, 9), (40, 32, 1, 1), 1, 0, 1), ((1, 17, 9, 9), (20, 17, 3, 3), 1, 1, 1),
     ((1, 17, 9, 9), (20, 17, 1, 1), 2, 0, 1), ((1, 32, 8, 8), (32, 16, 3, 3), 1, 1, 2),
     ((1, 1030, 4, 4), (33, 1030, 3, 3), 1, 1, 1)],
)  # fmt: skip
def test_conv(name: str, x_shape, w_shape, stride: int, pad: int, groups: int) -> None:
    """Taps of even and odd counts of channels, patches, groups, runs that are cut."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    graph = GraphBuilder({})
    (value,) = graph.declare_inputs([("x", "f32", x_shape)])
    y = graph.op(
        "conv", value, graph.weight("w", w), None, strides=[stride] * 2, pads_low=[pad] * 2, pads_high=[pad] * 2,
        dilations=[1, 1], groups=groups,
    )  # fmt: skip
    found = np.asarray(mlc.load(compiled(graph, y, MACHINES[name]))(x))
    wanted = convolved(rounded(x), rounded(w), stride, pad, groups)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def test_same_bytes_and_bits() -> None:
    """Two compilations give one artifact, any count of threads one result; weights take half their bytes."""
    (blob, x, _), (again, _, _) = (product((128,), 768, 96, True, MACHINES["pairs"]) for _ in range(2))
    assert blob == again
    one, two = (np.asarray(mlc.load(blob, threads=count)(x)) for count in (1, 2))
    assert one.tobytes() == two.tobytes()
    assert len(blob) < 768 * 96 * 2 + 40_000


def test_unknown_precision() -> None:
    """The precisions there are, in the message."""
    graph = GraphBuilder({})
    (x,) = graph.declare_inputs([("x", "f32", (4,))])
    module = graph.finish([("y", graph.relu(x))])
    with pytest.raises(driver.CompileError, match="no precision 'int4'; there are: f32, bf16, f16"):
        driver.compile_module(module, _AVX2, precision="int4")
