"""Workloads of the benchmark table: single kernels and models in the sizes that peers are compared on, random weights.

Each is registered twice, as exported program `bench_NAME` and as ONNX file `bench_NAME_onnx` of the same weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo import Built, model
from zoo_torch import export, export_onnx, needed, references, torch, wrap

Made = tuple[Any, tuple[Any, ...]]  # a module and its example inputs, tensors
_MAKERS: dict[str, Callable[[], Made]] = {}


def make(name: str) -> Made:
    """The module of `bench_NAME` as PyTorch code, with the same weights, and its inputs."""
    torch().manual_seed(zlib.crc32(name.removesuffix("_b8").encode()))
    module, inputs = _MAKERS[name]()
    return module.eval(), inputs


def _pair(name: str, about: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(maker: Callable[[], Made]) -> Callable[[], Made]:
        _MAKERS[name] = maker

        def through(exporter: Callable[..., Built]) -> Callable[[Path], Built]:
            def build(folder: Path) -> Built:
                module, inputs = make(name)
                return exporter(folder, module, [tuple(tensor.numpy() for tensor in inputs)])

            return build

        model(f"bench_{name}", f"{about}, random weights")(through(export))
        model(f"bench_{name}_onnx", f"{about}, random weights, through torch.onnx.export")(through(export_onnx))
        return maker

    return register


def _random(*shape: int) -> Any:
    return torch().randn(shape)


def _tokens(most: int, *shape: int) -> Any:
    return torch().randint(0, most, shape)


def _function(function: Callable[..., Any]) -> Any:
    """A module without weights."""
    return wrap(lambda self, *args: function(*args))


def _transformer(architecture: str, config: str, result: str, settings: dict[str, Any], **call: Any) -> Any:
    """`architecture(config(**settings))` that takes token ids (or pixels, and a mask if two are given)."""
    transformers = needed("transformers")
    network = getattr(transformers, architecture)(getattr(transformers, config)(**settings), **call.pop("build", {}))
    names = call.pop("inputs")
    return wrap(
        lambda self, *args: getattr(self.network(**dict(zip(names, args, strict=True)), **call), result),
        network=network,
    )


def _norms_in_range(module: Any) -> Any:
    """Batch norms with statistics and scales near one, and He weights, so that activations keep their size."""
    nn = torch().nn
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for values, low, high in (
                (part.running_mean, -0.1, 0.1),
                (part.running_var, 0.8, 1.2),
                (part.weight.data, 0.8, 1.2),
                (part.bias.data, -0.1, 0.1),
            ):
                values.uniform_(low, high)
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
    return module


def _resnet(batch: int) -> Made:
    settings = {"num_labels": 1000}
    made = _transformer("ResNetForImageClassification", "ResNetConfig", "logits", settings, inputs=["pixel_values"])
    return _norms_in_range(made), (_random(batch, 3, 224, 224),)


_pair("resnet50", "ResNet-50, one image")(lambda: _resnet(1))
_pair("resnet50_b8", "ResNet-50, eight images")(lambda: _resnet(8))


@_pair("mobilenetv2", "MobileNetV2, one image")
def _mobilenet() -> Made:
    settings = {"num_labels": 1000, "tf_padding": False}
    made = _transformer(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", "logits", settings, inputs=["pixel_values"]
    )
    return _norms_in_range(made), (_random(1, 3, 224, 224),)


def _bert(**sizes: int) -> Made:
    settings = {"attn_implementation": "sdpa", **sizes}
    names = ["input_ids", "attention_mask"]
    build = {"add_pooling_layer": False}
    made = _transformer("BertModel", "BertConfig", "last_hidden_state", settings, inputs=names, build=build)
    return made, (_tokens(30000, 1, 128), torch().ones(1, 128, dtype=torch().int64))


_pair("bert_base", "BERT base, 128 tokens")(_bert)
_pair("minilm", "MiniLM-L6, 128 tokens")(
    lambda: _bert(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
)


@_pair("vit_b16", "ViT-B/16, one image")
def _vit() -> Made:
    settings = {"num_labels": 1000, "attn_implementation": "sdpa"}
    made = _transformer("ViTForImageClassification", "ViTConfig", "logits", settings, inputs=["pixel_values"])
    return made, (_random(1, 3, 224, 224),)


@_pair("gpt2_prefill", "GPT-2 small, 128 tokens, logits of the last")
def _gpt2_prefill() -> Made:
    settings = {"attn_implementation": "sdpa"}
    call = {"inputs": ["input_ids"], "use_cache": False, "logits_to_keep": 1}
    return _transformer("GPT2LMHeadModel", "GPT2Config", "logits", settings, **call), (_tokens(50000, 1, 128),)


@_pair("gpt2_decode", "a model of GPT-2's sizes, one token after 127 in a cache passed in and out")
def _gpt2_decode() -> Made:
    return _decoder(768, 12, 50257, 1024), (
        _tokens(50000, 1, 1),
        torch().tensor([[127]]),
        _random(12, 1, 12, 127, 64),
        _random(12, 1, 12, 127, 64),
    )


@_pair("llama4", "four layers of a Llama with grouped heads, 256 tokens")
def _llama() -> Made:
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
    settings = {**sizes, "intermediate_size": 1536, "vocab_size": 8000, "attn_implementation": "sdpa"}
    call = {"inputs": ["input_ids"], "use_cache": False}
    made = _transformer("LlamaModel", "LlamaConfig", "last_hidden_state", {**settings, "use_cache": False}, **call)
    return made, (_tokens(8000, 1, 256),)


@_pair("smollm2_prefill", "a Llama of SmolLM2-135M's sizes, 256 tokens, logits of the last")
def _smollm2() -> Made:
    sizes = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    more = {"intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True}
    settings = {**sizes, **more, "attn_implementation": "sdpa", "use_cache": False}
    call = {"inputs": ["input_ids"], "use_cache": False, "logits_to_keep": 1}
    return _transformer("LlamaForCausalLM", "LlamaConfig", "logits", settings, **call), (_tokens(49152, 1, 256),)


@_pair("mlp", "multilayer perceptron 784-512-512-10, one row")
def _mlp() -> Made:
    nn = torch().nn
    layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return layers, (_random(1, 784),)


@_pair("add_8", "one sum of eight numbers: what a call costs by itself")
def _add() -> Made:
    return _function(lambda x: x + 1), (_random(8),)


def _decoder(width: int, layers: int, words: int, positions: int) -> Any:
    """Pre-norm decoder with tied embedding; forward(token, position, keys, values), caches of all layers stacked."""
    nn, functional = torch().nn, torch().nn.functional
    heads = width // 64

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
            parts = self.attend(self.norm1(x)).split(width, dim=-1)
            q, k, v = (part.view(1, 1, heads, 64).transpose(1, 2) for part in parts)
            past = (torch().cat([keys, k], 2), torch().cat([values, v], 2))
            mixed = functional.scaled_dot_product_attention(q, *past)
            x = x + self.project(mixed.transpose(1, 2).reshape(1, 1, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh")), k, v

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(positions, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
            self.head.weight = self.words.weight

        def forward(self, token: Any, position: Any, keys: Any, values: Any) -> Any:
            x, new = self.words(token) + self.places(position), []
            for number, layer in enumerate(self.layers):
                x, k, v = layer(x, keys[number], values[number])
                new.append((k, v))
            stacked = (torch().stack(parts) for parts in zip(*new, strict=True))
            return (self.head(self.norm(x)), *stacked)

    return Decoder()


def _product(m: int, n: int, k: int) -> Made:
    return _function(torch().matmul), (_random(m, k), _random(k, n))


for _name, _m, _n, _k in (
    ("gemm_512", 512, 512, 512),
    ("gemm_1024", 1024, 1024, 1024),
    ("gemm_2048", 2048, 2048, 2048),
    ("gemm_384x3072x768", 384, 3072, 768),
):
    _pair(_name, f"matrix product {_m} x {_n} x {_k}, both operands inputs")(
        lambda m=_m, n=_n, k=_k: _product(m, n, k)  # type: ignore[misc]
    )


def _attention(length: int, **how: Any) -> Made:
    attend = torch().nn.functional.scaled_dot_product_attention
    return _function(lambda q, k, v: attend(q, k, v, **how)), tuple(_random(1, 12, length, 64) for _ in range(3))


def _window(length: int, width: int) -> Any:
    i = torch().arange(length)
    return (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < width)


_pair("attention_512", "attention, 12 heads of 64, length 512")(lambda: _attention(512))
_pair("attention_2048", "attention, 12 heads of 64, length 2048")(lambda: _attention(2048))
_pair("attention_2048_causal", "causal attention, 12 heads of 64, length 2048")(
    lambda: _attention(2048, is_causal=True)
)
_pair("attention_2048_window", "attention to the last 256 of 2048 by a boolean mask, 12 heads of 64")(
    lambda: _attention(2048, attn_mask=_window(2048, 256))
)


def _flex() -> Made:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 256), None, None, 2048, 2048, device="cpu")
    attend = _function(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))
    return attend, tuple(_random(1, 12, 2048, 64) for _ in range(3))


_MAKERS["flex_2048_window"] = _flex


@model("bench_flex_2048_window", "flex_attention to the last 256 of 2048, 12 heads of 64, saved by mlc.save")
def _flex_program(folder: Path) -> Built:
    from mlc import save

    module, inputs = make("flex_2048_window")
    file = folder / "model.pt2"
    # torch.export.save refuses higher-order operators.
    save(torch().export.export(module, inputs, strict=False), file)
    feeds = [tuple(tensor.numpy() for tensor in inputs)]
    return Built(file, feeds, *references(module, feeds), {"source": "mlc.save"})


def _layer(make: Callable[[Any], Any], *shape: int) -> Callable[[], Made]:
    return lambda: (make(torch().nn), (_random(*shape),))


for _name, _make, _shape in (
    ("linear_384x3072x768", lambda nn: nn.Linear(768, 3072), (384, 768)),
    ("conv3x3_64_56", lambda nn: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 56, 56)),
    ("dwconv3x3_144_56", lambda nn: nn.Conv2d(144, 144, 3, padding=1, groups=144), (1, 144, 56, 56)),
    ("softmax_4096x1024", lambda nn: nn.Softmax(-1), (4096, 1024)),
    ("layernorm_4096x768", lambda nn: nn.LayerNorm(768), (4096, 768)),
    ("gelu_4m", lambda nn: nn.GELU(), (4 * 1024 * 1024,)),
):
    _pair(_name, f"one layer {_name}")(_layer(_make, *_shape))
