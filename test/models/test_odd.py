"""Small models that users bring: odd signatures, types and layers, compiled from memory and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlc
import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional
Tensors = tuple[Any, ...]


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def normal(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _flipped(x: Any) -> Tensors:
    return x.flip(0), x.roll(2, 1), functional.pad(x, (1, 2)), x.repeat(2, 1), x.T.contiguous()


def _indexed(x: Any, i: Any) -> Tensors:
    return x[i], x[:, 1:4:2], x[-1], x.index_add(0, i, torch.ones(3, 5))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Tensors]] = {
    "same_output_twice": (lambda x: (x + 1,) * 2, (normal(3, 4),)),
    "input_returned": (lambda x: x, (normal(3, 4),)),
    "dict_list_none": (lambda x, y: {"a": x + y, "b": [x * y, None]}, (normal(3, 4), normal(4))),
    "unused_input": (lambda x, y: x * 2, (normal(3), normal(2))),
    "constant_output": (lambda x: torch.ones(2, 3), (normal(3),)),
    "integers": (lambda x: (x // 5, x % 3, x * x - 7, x > 4), (torch.arange(12).reshape(3, 4),)),
    "bools": (lambda m, x: (torch.where(m, x, -x), ~m, m & m), (torch.tensor([True, False, True]), normal(3))),
    "f64": (lambda x: functional.softmax(x, -1) @ x.T, (normal(5, 7, dtype=torch.float64),)),
    "bf16": (lambda x, w: functional.gelu(functional.linear(x, w)), (normal(5, 8).bfloat16(), normal(4, 8).bfloat16())),
    "f16": (lambda x, w: functional.silu(functional.linear(x, w)), (normal(5, 8).half(), normal(4, 8).half())),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bki", a, b), (normal(2, 3, 4), normal(2, 4, 5))),
    "topk": (lambda x: torch.topk(x, 3), (normal(4, 20),)),
    "cumsum_and_sort": (lambda x: (x.cumsum(1), x.sort(0)), (normal(4, 20),)),
    "indexing": (_indexed, (normal(6, 5), torch.tensor([0, 3, 3]))),
    "scalar_input": (lambda s, x: s * x + s, (torch.tensor(2.5), normal(3))),
    "causal_attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), (normal(1, 2, 9, 8),) * 3
    ),
    "statistics": (lambda x: (x.var(1), x.std(0), x.norm(dim=1), x.mean(), x.amax((0, 1))), (normal(4, 9),)),
    "movement": (_flipped, (normal(4, 9),)),
}  # fmt: skip
LAYERS: dict[str, tuple[Any, Tensors]] = {
    "conv1d": (torch.nn.Conv1d(4, 8, 5, padding=2, stride=2), (normal(2, 4, 33),)),
    "conv3d": (torch.nn.Conv3d(3, 4, 3, padding=1), (normal(1, 3, 6, 7, 8),)),
    "conv_transposed": (
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (normal(2, 4, 7, 9),)
    ),
    "conv_grouped": (torch.nn.Conv2d(16, 32, 3, groups=4, padding=1), (normal(2, 16, 9, 9),)),
    "conv_depthwise_multiplied": (torch.nn.Conv2d(8, 16, 3, groups=8), (normal(1, 8, 9, 9),)),
    "conv_dilated": (torch.nn.Conv2d(3, 5, 3, dilation=2, padding=2), (normal(1, 3, 11, 13),)),
    "lstm": (torch.nn.LSTM(6, 9, 2, bidirectional=True, batch_first=True), (normal(3, 7, 6),)),
    "gru": (torch.nn.GRU(6, 9), (normal(5, 2, 6),)),
    "multihead_attention": (torch.nn.MultiheadAttention(16, 4, batch_first=True), (normal(2, 5, 16),) * 3),
    "group_norm": (torch.nn.GroupNorm(2, 8), (normal(2, 8, 5, 5),)),
    "instance_norm": (torch.nn.InstanceNorm2d(4), (normal(2, 4, 6, 6),)),
    "batch_norm": (torch.nn.BatchNorm1d(5), (normal(4, 5),)),
    "embedding": (torch.nn.Embedding(10, 6), (torch.arange(12).reshape(3, 4) % 10,)),
    "upsample": (torch.nn.Upsample(scale_factor=2, mode="bilinear"), (normal(1, 3, 5, 6),)),
    "adaptive_pool": (torch.nn.AdaptiveAvgPool2d(3), (normal(1, 4, 10, 11),)),
    "pool_ceil": (torch.nn.MaxPool2d(3, 2, ceil_mode=True), (normal(1, 4, 10, 11),)),
}  # fmt: skip
# Of the largest magnitude: a few roundings of the type, sums being short.
LIMITS = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float64: 1e-13, torch.float32: 2.0**-18}


def flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        return [leaf for value in outputs.values() for leaf in flat(value)]
    if isinstance(outputs, (tuple, list)):
        return [leaf for value in outputs for leaf in flat(value)]
    return [] if outputs is None else [outputs]


def check(module: Any, given: Tensors, compiled: mlc.Model) -> None:
    with torch.no_grad():
        wanted = flat(module(*given))
    got = flat(compiled(*given))
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if not theirs.dtype.is_floating_point:
            assert torch.equal(mine, theirs)
            continue
        scale = max(1.0, float(theirs.double().abs().max()))
        assert float((mine.double() - theirs.double()).abs().max()) <= LIMITS[theirs.dtype] * scale


@pytest.mark.parametrize("name", [*FUNCTIONS, *LAYERS])
def test_agrees_with_pytorch(name: str) -> None:
    body, given = FUNCTIONS.get(name) or LAYERS[name]
    module = (body if isinstance(body, torch.nn.Module) else Wrapped(body)).eval()
    program = torch.export.export(module, given, strict=False)
    check(module, given, mlc.load(mlc.compile(program).to_bytes(), threads=1))


def test_dynamic_batch_at_several_sizes() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 7), torch.nn.Softmax(-1)).eval()
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(module, (normal(4, 6, 5),), dynamic_shapes=({0: batch},))
    compiled = mlc.load(mlc.compile(program).to_bytes(), threads=2)
    for count in (1, 3, 16):
        check(module, (normal(count, 6, 5),), compiled)
    with pytest.raises(mlc.MlcError, match=r"1\.\.16"):
        compiled(normal(17, 6, 5))
