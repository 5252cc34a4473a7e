"""Small random-weight models of many architectures of transformers: breadth of operators rather than size.

Each is exported with dynamic batch, and dynamic length where it has one; seeds are fixed, so are sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from zoo import Arrays, Built, model
from zoo_torch import export, needed, torch, wrap

VOCABULARY = 128
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGE = {"image_size": 32, "num_labels": 10}


def _ids(*shapes: tuple[int, int]) -> list[Arrays]:
    random = np.random.default_rng(7)
    return [(random.integers(3, VOCABULARY, shape, np.int64),) for shape in shapes]


def _images(*batches: int, size: int = 32) -> list[Arrays]:
    random = np.random.default_rng(7)
    return [(random.normal(0, 1, (batch, 3, size, size)).astype(np.float32),) for batch in batches]


def _batch_dims(*others: tuple[int, str, int]) -> dict[int, Any]:
    """A dynamic batch at axis 0, and further axes as (axis, name, largest)."""
    dim = torch().export.Dim
    return {0: dim("B", min=1, max=16)} | {axis: dim(name, min=2, max=largest) for axis, name, largest in others}


def _tiny(
    name: str, config: str, architecture: str, sizes: dict[str, Any], feeds: Callable[[], list[Arrays]], **call: Any
) -> None:
    """Registers `architecture(config(**sizes))` with one input, whose argument is `call["argument"]`."""
    argument, result = call.get("argument", "input_ids"), call.get("result", "logits")
    extra = call.get("extra", {})

    @model(f"tiny_{name}", f"{architecture}, small, seeded random weights, dynamic batch")
    def build(folder: Path) -> Built:
        transformers = needed("transformers")
        torch().manual_seed(99)
        network = getattr(transformers, architecture)(getattr(transformers, config)(**sizes)).eval()

        def forward(self: Any, value: Any) -> Any:
            return getattr(self.network(**{argument: value}, **extra), result)

        runs = feeds()
        axes = [(1, "S", 64)] if argument == "input_ids" else []
        return export(folder, wrap(forward, network=network), runs, (_batch_dims(*axes),))


_LENGTHS = ((2, 9), (1, 5), (3, 16))


def _texts() -> list[Arrays]:
    return _ids(*_LENGTHS)


def _pictures() -> list[Arrays]:
    return _images(2, 1, 3)


_CACHELESS = {"use_cache": False}
_GATED = {**_TEXT, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0}

_tiny("bert", "BertConfig", "BertForSequenceClassification", {**_TEXT, "intermediate_size": 96}, _texts)
_tiny(
    "roberta", "RobertaConfig", "RobertaModel", {**_TEXT, "intermediate_size": 96}, _texts, result="last_hidden_state"
)
_tiny(
    "distilbert",
    "DistilBertConfig",
    "DistilBertModel",
    {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96},
    _texts,
    result="last_hidden_state",
)
_tiny("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**_TEXT, "intermediate_size": 96}, _texts, extra=_CACHELESS)
_tiny(
    "opt",
    "OPTConfig",
    "OPTForCausalLM",
    {**_TEXT, "ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 128},
    _texts,
    extra=_CACHELESS,
)
_tiny("llama", "LlamaConfig", "LlamaForCausalLM", _GATED, _texts, extra=_CACHELESS)
_tiny("mistral", "MistralConfig", "MistralForCausalLM", {**_GATED, "sliding_window": 6}, _texts, extra=_CACHELESS)
_tiny("qwen2", "Qwen2Config", "Qwen2ForCausalLM", _GATED, _texts, extra=_CACHELESS)
_tiny("phi3", "Phi3Config", "Phi3ForCausalLM", _GATED, _texts, extra=_CACHELESS)

_tiny(
    "vit",
    "ViTConfig",
    "ViTForImageClassification",
    {
        **_IMAGE,
        "patch_size": 8,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    },
    _pictures,
    argument="pixel_values",
)
_tiny(
    "swin",
    "SwinConfig",
    "SwinForImageClassification",
    {**_IMAGE, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    _pictures,
    argument="pixel_values",
)
_tiny(
    "convnext",
    "ConvNextConfig",
    "ConvNextForImageClassification",
    {"num_labels": 10, "hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2},
    _pictures,
    argument="pixel_values",
)
_tiny(
    "regnet",
    "RegNetConfig",
    "RegNetForImageClassification",
    {"num_labels": 10, "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "groups_width": 8},
    _pictures,
    argument="pixel_values",
)
_tiny(
    "segformer",
    "SegformerConfig",
    "SegformerForSemanticSegmentation",
    {
        "num_labels": 5,
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "hidden_sizes": [16, 32],
        "num_attention_heads": [1, 2],
        "sr_ratios": [4, 2],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 32,
    },
    lambda: _images(2, 1, 3, size=64),
    argument="pixel_values",
)


@model("tiny_t5", "T5 encoder and decoder, small, seeded random weights, dynamic batch and lengths")
def tiny_t5(folder: Path) -> Built:
    transformers = needed("transformers")
    torch().manual_seed(99)
    sizes = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    network = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    return _encoder_decoder(folder, network)


@model("tiny_bart", "BART encoder and decoder, small, seeded random weights, dynamic batch and lengths")
def tiny_bart(folder: Path) -> Built:
    transformers = needed("transformers")
    torch().manual_seed(99)
    one_side = {"layers": 2, "attention_heads": 4, "ffn_dim": 96}
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in one_side.items()}
    config = transformers.BartConfig(vocab_size=VOCABULARY, d_model=64, max_position_embeddings=128, **sizes)
    return _encoder_decoder(folder, transformers.BartForConditionalGeneration(config).eval())


def _encoder_decoder(folder: Path, network: Any) -> Built:
    def forward(self: Any, source: Any, target: Any) -> Any:
        return self.network(input_ids=source, decoder_input_ids=target, use_cache=False).logits

    sources, targets = _ids((2, 11), (1, 4)), _ids((2, 7), (1, 9))
    feeds = [(source[0], target[0]) for source, target in zip(sources, targets, strict=True)]
    dims = (_batch_dims((1, "S", 64)), _batch_dims((1, "T", 64)))
    return export(folder, wrap(forward, network=network), feeds, dims)


@model("tiny_whisper", "Whisper encoder and decoder, small, seeded random weights, dynamic batch and text length")
def tiny_whisper(folder: Path) -> Built:
    transformers = needed("transformers")
    torch().manual_seed(99)
    one_side = {"layers": 2, "attention_heads": 4, "ffn_dim": 96}
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in one_side.items()}
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=64, num_mel_bins=16, max_source_positions=40, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, **sizes,
    )  # fmt: skip
    network = transformers.WhisperForConditionalGeneration(config).eval()

    def forward(self: Any, features: Any, target: Any) -> Any:
        return self.network(input_features=features, decoder_input_ids=target, use_cache=False).logits

    random = np.random.default_rng(7)
    texts = _ids((2, 7), (1, 3))
    feeds = [(random.normal(0, 1, (len(ids), 16, 80)).astype(np.float32), ids) for (ids,) in texts]
    return export(folder, wrap(forward, network=network), feeds, (_batch_dims(), _batch_dims((1, "T", 64))))


@model("tiny_wav2vec2", "Wav2Vec2 for CTC, small, seeded random weights, dynamic batch")
def tiny_wav2vec2(folder: Path) -> Built:
    transformers = needed("transformers")
    torch().manual_seed(99)
    config = transformers.Wav2Vec2Config(
        **_TEXT, intermediate_size=96, conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    network = transformers.Wav2Vec2ForCTC(config).eval()

    def forward(self: Any, audio: Any) -> Any:
        return self.network(input_values=audio).logits

    random = np.random.default_rng(7)
    feeds = [(random.normal(0, 1, (batch, 800)).astype(np.float32),) for batch in (2, 1)]
    return export(folder, wrap(forward, network=network), feeds, (_batch_dims(),))


@model("tiny_clip", "CLIP image and text towers, small, seeded random weights, dynamic batch")
def tiny_clip(folder: Path) -> Built:
    transformers = needed("transformers")
    torch().manual_seed(99)
    tower = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    network = transformers.CLIPModel(config).eval()

    def forward(self: Any, ids: Any, pixels: Any) -> Any:
        result = self.network(input_ids=ids, pixel_values=pixels)
        return result.logits_per_image, result.text_embeds, result.image_embeds

    texts = _ids((3, 8), (1, 8))
    for (ids,) in texts:
        ids[:, -1] = VOCABULARY - 1
    feeds = [(ids, pixels) for (ids,), (pixels,) in zip(texts, _images(2, 1), strict=True)]
    dim = torch().export.Dim
    dims = ({0: dim("T", min=1, max=16)}, {0: dim("I", min=1, max=16)})
    return export(folder, wrap(forward, network=network), feeds, dims)
