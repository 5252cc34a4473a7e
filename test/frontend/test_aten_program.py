"""Whole programs through the importer: dynamic shapes, state, dead code, subgraphs, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from mlc.dialects.reference import run_function  # noqa: E402
from mlc.frontend.aten import import_program  # noqa: E402
from mlc.frontend.exported_program import read_exported_program  # noqa: E402
from mlc.frontend.pt2 import read_pt2  # noqa: E402
from mlc.frontend.pt2_save import save  # noqa: E402
from mlc.frontend.report import UnsupportedError  # noqa: E402
from torch_exports import Functions, assert_same, export, flat, imported_results  # noqa: E402

DYNAMIC = {
    "flatten": lambda x: x.reshape(-1, 2, 2),
    "parts": lambda x: (x[:, x.shape[1] - 2 :], x[:, : x.shape[1] - 1], x.narrow(1, 1, x.shape[1] - 2)),
    "last": lambda x: (x[:, -1], x[:, 1:-1], x[:, -2:]),
    "cat": lambda x: torch.cat([x, x[:, 1:]], 1).sum(1),
    "arange": lambda x: x + torch.arange(x.shape[1])[None, :, None],
    "causal": lambda x: torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1) + (x @ x.mT),
    "repeat": lambda x: (x.repeat(2, 1, 1), x.repeat_interleave(2, 1), x[:1].expand(x.shape[0], -1, -1)),
    "roll": lambda x: x.roll(1, 1),
    "pad": lambda x: F.pad(x, (0, 0, 2, 1)),
    "conv": lambda x: F.conv1d(x.mT, torch.ones(3, 4, 3), stride=2, padding=1),
    "pool": lambda x: F.max_pool2d(x[:, None], 2) + F.avg_pool2d(x[:, None], 2),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "mean": lambda x: (x.mean(1), x.sum() / x.shape[0], x * x.shape[1], x.var(1)),
    "root": lambda x: x * (x.shape[1] ** 0.5),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "index": lambda x: x[torch.arange(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.int64)],
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "size": lambda x: x.shape[0] * 2 + 1,
    "interpolate": lambda x: F.interpolate(x.mT, scale_factor=2),
    "diagonal": lambda x: (x @ x.mT).diagonal(0, 1, 2),
    "einsum": lambda x: torch.einsum("bsd,btd->bst", x, x),
    "topk": lambda x: x.topk(2, 1)[0],
}


def _dynamic_inputs() -> tuple[Any, Any]:
    batch, length = torch.export.Dim("batch", min=1, max=16), torch.export.Dim("length", min=4, max=64)
    return torch.randn(3, 6, 4), {"args": ({0: batch, 1: length},)}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_shapes(name: str) -> None:
    """Exported at one size, right at others."""
    x, shapes = _dynamic_inputs()
    program = export(Functions([DYNAMIC[name]]), [x], shapes)
    module = import_program(read_exported_program(program)).module
    for sizes in ((3, 6), (1, 4), (5, 9)):
        y = torch.randn(*sizes, 4)
        expected = [torch.as_tensor(item) for item in flat(DYNAMIC[name](y))]
        for found, wanted in zip(run_function(module, [y.numpy()]), expected, strict=True):
            assert_same(found, wanted, name=name)


def _same_as_eager(module: Any, *inputs: Any) -> None:
    with torch.no_grad():
        expected = flat(module(*inputs))
    found = imported_results(export(module, inputs), inputs)
    for result, wanted in zip(found, expected, strict=True):
        assert_same(result, wanted)


class Control(torch.nn.Module):
    """Choices, scans and maps whose subgraphs are taken in place."""

    def forward(self, x: torch.Tensor) -> Any:
        from torch._higher_order_ops import scan

        chosen = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
        carry, rows = scan(lambda c, t: (c + t, c * t), torch.zeros(4), chosen)
        with torch.no_grad():
            return chosen, carry, rows, x.exp()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_subgraphs(sign: float) -> None:
    _same_as_eager(Control(), sign * torch.ones(3, 4))


class Flex(torch.nn.Module):
    """The forms of flex_attention: mask alone, an added bias, any other function of the score, grouped heads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.1, 0.05]))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        slopes = self.slopes
        window = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, 16, 16, device="cpu")
        return (
            flex_attention(q, k, v, block_mask=window, enable_gqa=True),
            flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), window, enable_gqa=True),
            flex_attention(q, k, v, lambda s, b, h, i, j: 20 * torch.tanh(s / 20), window, enable_gqa=True),
            flex_attention(q, k, v, enable_gqa=True),
            *flex_attention(q, k, v, lambda s, b, h, i, j: s * 2, window, enable_gqa=True, return_lse=True),
        )


def test_flex_attention() -> None:
    torch.manual_seed(0)
    _same_as_eager(Flex(), torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 8))


def test_flex_attention_survives_saving(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 8)
    program = export(Flex(), inputs)
    save(program, tmp_path / "flex.pt2")
    found = run_function(import_program(read_pt2(tmp_path / "flex.pt2")).module, [x.numpy() for x in inputs])
    for result, wanted in zip(found, imported_results(program, inputs), strict=True):
        np.testing.assert_array_equal(result, wanted)


class Decomposed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.group, self.layer = torch.nn.GroupNorm(2, 4), torch.nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(self.group(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)).mean(2))
        return F.gelu(F.scaled_dot_product_attention(y, y, y)).softmax(-1).std(1)


def test_core_aten_decompositions() -> None:
    x = torch.randn(2, 3, 8, 14)
    module = Decomposed()
    program = export(module, [x]).run_decompositions()
    for found, wanted in zip(imported_results(program, [x]), flat(module(x)), strict=True):
        assert_same(found, wanted.detach())


def test_tied_weights_are_one() -> None:
    module = torch.nn.Module()
    module.a = torch.nn.Linear(100, 100, bias=False)
    module.b = torch.nn.Linear(100, 100, bias=False)
    module.b.weight = module.a.weight
    module.forward = lambda x: module.b(module.a(x))
    program = import_program(read_exported_program(export(module, [torch.ones(2, 100)])))
    assert str(program.module).count('"mlc.weight"') == 1


def test_dead_ops_are_left_out() -> None:
    """An unsupported op that nothing reads is no obstacle, nor are torch's own assertions."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x.bernoulli()
        torch._check(x.shape[0] > 1)
        return x + 1

    _same_as_eager(Functions([function]), torch.ones(3))


def test_everything_unsupported_is_reported_at_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x) + torch.linalg.eigvalsh(x + 1) + torch.rand(3, 3) + torch.fft.fft(x).real

    with pytest.raises(UnsupportedError) as caught:
        import_program(read_exported_program(export(Functions([function]), [torch.eye(3)])))
    counts = {finding.op.split(".")[1]: finding.count for finding in caught.value.findings}
    assert counts["linalg_eigvalsh"] == 2 and counts["rand"] == 1 and counts["fft_fft"] == 1
    assert "torch_exports.py:" in str(caught.value) and "pass them in as an input" in str(caught.value)


def test_write_to_an_input_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="write to input args_0"):
        import_program(read_exported_program(export(Functions([lambda x: x.add_(1)]), [torch.ones(2)])))


def test_results_that_are_no_tensors() -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"x": x + 1, "none": None, "number": 3}

    imported = import_program(read_exported_program(export(Mixed(), [torch.ones(2)])))
    assert imported.output_tree["items"][1] == {"kind": "none"}
    found = run_function(imported.module, [np.ones(2, np.float32)])
    assert [item.tolist() for item in found] == [[2, 2], 3]
