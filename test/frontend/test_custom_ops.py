"""Ops that users teach the importers: torch.library's and an ONNX domain's, compiled, against PyTorch and numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlc
import numpy as np
import pytest
import torch
from mlc.frontend import custom_ops
from mlc.frontend.report import UnsupportedError
from mlc.tools.driver import CompileError
from mlc.tools.emitting import run_ops_file
from onnx import TensorProto, helper


@torch.library.custom_op("mlc_test::leaky_clamp", mutates_args=())
def leaky_clamp(x: torch.Tensor, low: float, slope: float = 0.1) -> torch.Tensor:
    return torch.where(x > low, x, low + (x - low) * slope)


@leaky_clamp.register_fake
def _(x: torch.Tensor, low: float, slope: float = 0.1) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("mlc_test::split_halves", mutates_args=())
def split_halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = x.chunk(2, -1)
    return left.clone(), right.clone()


@split_halves.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    half = x.new_empty([*x.shape[:-1], x.shape[-1] // 2])
    return half, half.clone()


@pytest.fixture(autouse=True)
def _lowerings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test registers into a table of its own."""
    monkeypatch.setattr(custom_ops, "_LOWERINGS", {})
    yield


def lower_leaky_clamp(g: Any, x: Any, low: float, slope: float = 0.1) -> Any:
    low = g.scalar(low, x.dtype)
    below = g.minimum(g.sub(x, low), g.scalar(0, x.dtype))
    return g.add(g.maximum(x, low), g.mul(below, g.scalar(slope, x.dtype)))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> Any:
        left, right = torch.ops.mlc_test.split_halves(self.linear(x))
        return torch.ops.mlc_test.leaky_clamp(left, 0.25) * right, leaky_clamp(right, -0.5, slope=0.3)


def exported() -> tuple[torch.nn.Module, Any]:
    model = Model().eval()
    batch = torch.export.Dim("batch", min=1, max=50)
    return model, torch.export.export(model, (torch.randn(4, 6),), dynamic_shapes=({0: batch},))


def test_torch_library_ops_in_a_dynamic_model():
    mlc.import_op("mlc_test::leaky_clamp")(lower_leaky_clamp)

    @mlc.import_op("mlc_test::split_halves.default")
    def _(g: Any, x: Any) -> Any:
        rows, columns = x.shape
        parts = ((0, columns // 2), (columns // 2, columns))
        return tuple(g.slice(x, starts=[0, a], limits=[rows, b], steps=[1, 1]) for a, b in parts)

    model, program = exported()
    compiled = mlc.load(mlc.compile(program).to_bytes())
    for rows in (1, 4, 50):
        x = torch.randn(rows, 6)
        for got, want in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(got, want)


def acme_model() -> Any:
    graph = helper.make_graph(
        [helper.make_node("Scale", ["x", ""], ["y"], domain="com.acme", factor=3.0, mode="add"),
         helper.make_node("Relu", ["y"], ["z"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_an_operator_of_an_onnx_domain():
    @mlc.import_op("com.acme::Scale")
    def _(g: Any, x: Any, bias: Any, *, factor: float, mode: str) -> Any:
        assert bias is None
        return g.add(x, g.constant(np.float32([factor, 0, 1]))) if mode == "add" else x

    compiled = mlc.load(mlc.compile(acme_model()).to_bytes())
    x = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_array_equal(compiled(x), np.maximum(x + np.float32([3, 0, 1]), 0))


def test_a_standard_op_gets_the_users_lowering():
    mlc.import_op("ai.onnx::Relu")(lambda g, x: g.neg(x))
    mlc.import_op("com.acme::Scale")(lambda g, x, *rest, **attrs: x)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(mlc.load(mlc.compile(acme_model()).to_bytes())(x), -x)


def test_an_op_without_a_lowering_is_named():
    with pytest.raises(UnsupportedError, match=r"com\.acme\.Scale"):
        mlc.compile(acme_model())
    with pytest.raises(UnsupportedError, match=r"mlc_test\.split_halves"):
        mlc.compile(exported()[1])


def test_a_lowering_that_fails_is_reported_with_its_line():
    mlc.import_op("com.acme::Scale")(lambda g, x, *rest, **attrs: g.add(x, missing))  # noqa: F821
    with pytest.raises(UnsupportedError, match=r"test_custom_ops\.py:\d+: NameError: name 'missing'"):
        mlc.compile(acme_model())
    mlc.import_op("com.acme::Scale")(lambda g, x, *rest, **attrs: np.ones(3))
    with pytest.raises(UnsupportedError, match=r"gave a numpy array; wrap it in g\.constant"):
        mlc.compile(acme_model())


def test_names_are_checked():
    with pytest.raises(ValueError, match="namespace::op"):
        mlc.import_op("leaky_clamp")


def test_a_file_of_lowerings(tmp_path: Path):
    file = tmp_path / "ops.py"
    file.write_text("import mlc\n\n@mlc.import_op('com.acme::Scale')\ndef scale(g, x, *rest, **attrs):\n    return x\n")
    run_ops_file(file)
    x = -np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(mlc.load(mlc.compile(acme_model()).to_bytes())(x), 0 * x)
    file.write_text("import mlc\n\n1 / 0\n")
    with pytest.raises(CompileError, match=r"ops\.py:3: ZeroDivisionError"):
        run_ops_file(file)
