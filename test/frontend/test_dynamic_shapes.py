"""One artifact for many sizes: batch, length and image size together, sizes derived from others, and what is refused.

Compiled code against PyTorch eager at several sizes each.
"""

from __future__ import annotations

from typing import Any

import mlc
import pytest
import torch
from torch import nn
from torch.export import Dim


def check(module: nn.Module, shapes: list[list[tuple[int, ...]]], dynamic: Any) -> Any:
    """Exports with the first shapes, compiles once, and compares at all of them; returns the loaded model."""
    torch.manual_seed(3)
    calls = [[torch.randn(shape) for shape in call] for call in shapes]
    program = torch.export.export(module.eval(), tuple(calls[0]), dynamic_shapes=dynamic)
    model = mlc.load(mlc.compile(program).to_bytes())
    for call in calls:
        with torch.no_grad():
            wanted = module(*call)
        got = model(*call)
        for a, b in zip(got if isinstance(got, tuple) else (got,), wanted if isinstance(wanted, tuple) else (wanted,),
                        strict=True):  # fmt: skip
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
    return model


class Pyramid(nn.Module):
    """Convolutions with strides, pools, an upsampling to the size of an earlier map, pooled features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        self.norm, self.side, self.last = nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.first(x).relu()
        late = self.side(nn.functional.max_pool2d(self.norm(self.second(early)).relu(), 2))
        joined = early + nn.functional.interpolate(late, size=early.shape[2:], mode="nearest")
        return joined, self.last(joined.mean((2, 3)))


class Reader(nn.Module):
    """An encoder layer over text of any length that attends to an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return self.layer(text, self.patches(image).flatten(2).transpose(1, 2))


class Halves(nn.Module):
    """Sizes derived from one: 2 s, s // 2 + 1, 3 s - 1, and an input that is twice as long as another."""

    def forward(self, x: torch.Tensor, twice: torch.Tensor) -> Any:
        both = torch.cat([x, x], 1) * twice
        every_second = nn.functional.pad(x, (1, 1))[:, ::2]
        return both.cumsum(1), every_second.softmax(1), torch.cat([both, x[:, 1:]], 1).flip(1), both.reshape(-1, 2)


def test_batch_height_and_width():
    batch, height, width = Dim("batch", min=1, max=9), Dim("height", min=16, max=96), Dim("width", min=16, max=96)
    shapes = [[(2, 3, 32, 48)], [(1, 3, 17, 96)], [(9, 3, 33, 16)], [(3, 3, 96, 63)]]
    model = check(Pyramid(), shapes, ({0: batch, 2: height, 3: width},))
    for shape in ((10, 3, 32, 32), (2, 3, 97, 32), (2, 3, 32, 15)):
        with pytest.raises(mlc.MlcError, match="OUT_OF_RANGE"):
            model(torch.randn(shape))


def test_batch_length_and_image_size_at_once():
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=1, max=64)
    rows, columns = Dim("rows", min=2, max=6), Dim("columns", min=2, max=6)
    dynamic = ({0: batch, 1: length}, {0: batch, 2: 8 * rows, 3: 8 * columns})
    shapes = [[(2, 5, 16), (2, 3, 16, 24)], [(1, 64, 16), (1, 3, 48, 16)], [(8, 1, 16), (8, 3, 32, 48)]]
    model = check(Reader(), shapes, dynamic)
    with pytest.raises(mlc.MlcError, match="BAD_SHAPE"):
        model(torch.randn(2, 5, 16), torch.randn(3, 3, 16, 16))
    with pytest.raises(mlc.MlcError, match=r"BAD_SHAPE|OUT_OF_RANGE"):
        model(torch.randn(2, 5, 16), torch.randn(2, 3, 20, 16))


def test_derived_sizes():
    size = Dim("size", min=3, max=50)
    shapes = [[(3, 6), (3, 12)], [(3, 7), (3, 14)], [(3, 3), (3, 6)], [(3, 50), (3, 100)]]
    model = check(Halves(), shapes, ({1: size}, {1: 2 * size}))
    with pytest.raises(mlc.MlcError, match="BAD_SHAPE"):
        model(torch.randn(3, 6), torch.randn(3, 13))
