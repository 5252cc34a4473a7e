"""Ops without a row are taken apart by torch, where it is; else they are reported."""

from __future__ import annotations

from pathlib import Path

import mlc
import numpy as np
import pytest
from mlc.frontend import decompose_missing
from mlc.frontend.aten import find_row
from mlc.frontend.report import UnsupportedError
from torch_exports import export

torch = pytest.importorskip("torch")
X = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


class Trapezoid(torch.nn.Module):
    """An op that torch defines by others, beside one that is to stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)

    def forward(self, x):
        return torch.trapezoid(self.linear(x), dx=0.5)


@pytest.mark.parametrize("is_file", [False, True])
def test_is_taken_apart(is_file: bool, tmp_path: Path) -> None:
    assert find_row("aten.trapezoid.dx") is None
    module = Trapezoid().eval()
    program = export(module, [torch.from_numpy(X)])
    if is_file:
        torch.export.save(program, tmp_path / "model.pt2")
    with mlc.load(mlc.compile(tmp_path / "model.pt2" if is_file else program).to_bytes()) as model:
        np.testing.assert_allclose(model(X), module(torch.from_numpy(X)).detach().numpy(), rtol=1e-5, atol=1e-5)
        assert "matmul" in [kernel["hero"] for kernel in model.info["kernels"]]


def test_is_reported_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    program = export(Trapezoid(), [torch.from_numpy(X)])
    monkeypatch.setattr(decompose_missing, "_is_torch_here", lambda: False)
    with pytest.raises(UnsupportedError, match=r"aten\.trapezoid\.dx +x1"):
        mlc.compile(program)


def test_what_torch_cannot_take_apart_is_reported_as_the_model_has_it() -> None:
    class Eigen(torch.nn.Module):
        def forward(self, x):
            return torch.trapezoid(torch.linalg.eigvalsh(x @ x.mT))

    with pytest.raises(UnsupportedError, match=r"aten\.linalg_eigvalsh"):
        mlc.compile(export(Eigen(), [torch.from_numpy(X)]))
