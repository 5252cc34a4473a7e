"""Which kernels a transformer's layer becomes: no transpose or copy, one product for query, key and value, biases,
activations and residuals on the products' tiles, one pass for each norm."""

from __future__ import annotations

from typing import Any

import mlc
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

WIDTH, HEADS, GROUPS, LENGTH, LAYERS = 64, 4, 2, 24, 2


def heads_of(x: Any, count: int) -> Any:
    return x.view(1, LENGTH, count, WIDTH // HEADS).transpose(1, 2)


def joined(x: Any) -> Any:
    return x.transpose(1, 2).reshape(1, LENGTH, WIDTH)


class Encoder(nn.Module):  # type: ignore[misc, name-defined]
    """A post-norm layer as in BERT: norms after the residuals, three projections, a mask of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (heads_of(part(x), HEADS) for part in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] > 0)
        x = self.norm1(x + self.out(joined(seen)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Decoder(nn.Module):  # type: ignore[misc, name-defined]
    """A pre-norm layer as in GPT-2: one projection cut in three, rows flattened around each product."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    @staticmethod
    def flat(layer: Any, x: Any) -> Any:
        return torch.addmm(layer.bias, x.view(-1, x.shape[-1]), layer.weight.t()).view(1, LENGTH, -1)

    def forward(self, x: Any) -> Any:
        q, k, v = (heads_of(part, HEADS) for part in self.flat(self.attend, self.norm1(x)).split(WIDTH, dim=-1))
        x = x + self.flat(self.out, joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        hidden = functional.gelu(self.flat(self.up, self.norm2(x)), approximate="tanh")
        return x + self.flat(self.down, hidden)


class Llama(nn.Module):  # type: ignore[misc, name-defined]
    """A layer with RMS norms spelt out, rotary embeddings, shared keys and values, a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.scale1, self.scale2 = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    @staticmethod
    def norm(x: Any, scale: Any) -> Any:
        return scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    @staticmethod
    def turned(x: Any) -> Any:
        size = x.shape[-1] // 2
        angles = torch.arange(LENGTH)[:, None] * 100.0 ** (-torch.arange(size) / size)
        cos, sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
        return x * cos + torch.cat([-x[..., size:], x[..., :size]], -1) * sin

    def forward(self, x: Any) -> Any:
        inner = self.norm(x, self.scale1)
        q, k = self.turned(heads_of(self.q(inner), HEADS)), self.turned(heads_of(self.k(inner), GROUPS))
        v = heads_of(self.v(inner), GROUPS)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(joined(seen))
        inner = self.norm(x, self.scale2)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Stack(nn.Module):  # type: ignore[misc, name-defined]
    """Equal layers one after another."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(LAYERS))

    def forward(self, x: Any, *more: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *more)
        return x


X = torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(LENGTH) < LENGTH - 5).to(torch.int64)[None]
FEED_FORWARD = ["matmul", "matmul"]
CASES: dict[str, tuple[type, tuple[Any, ...], list[str], list[str]]] = {
    "bert": (
        Encoder, (X, MASK), ["pointwise"], ["matmul", "attention", "matmul", "layer_norm", *FEED_FORWARD, "layer_norm"]
    ),
    "gpt2": (Decoder, (X,), [], ["layer_norm", "matmul", "attention", "matmul", "layer_norm", *FEED_FORWARD]),
    "llama": (
        Llama, (X,), [],
        ["mean", "matmul", "concat", "concat", "attention", "matmul", "mean", "matmul", *FEED_FORWARD],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_a_layer(name: str) -> None:
    kind, inputs, before, layer = CASES[name]
    torch.manual_seed(5)
    model = Stack(kind).eval()
    artifact = mlc.compile(torch.export.export(model, inputs, strict=False))
    heroes = [kernel["hero"] for kernel in artifact.info["kernels"]]
    assert sorted(heroes) == sorted([*before, *layer * LAYERS])
    assert artifact.info["kernel_functions"] <= len([*before, *layer]), "layers share their kernels"
    with torch.no_grad(), mlc.load(artifact.to_bytes(), threads=2) as compiled:
        np.testing.assert_allclose(compiled(*inputs).numpy(), model(*inputs).numpy(), atol=2e-5)
