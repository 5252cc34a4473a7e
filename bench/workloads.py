"""What is measured: models of the zoo with the feed, the ONNX file of the same weights, and the arithmetic they do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ZOO = Path(__file__).resolve().parents[1] / "test" / "models"
if str(ZOO) not in sys.path:
    sys.path.insert(0, str(ZOO))


@dataclass(frozen=True)
class Workload:
    """`pt2` and `onnx` are names of zoo models with the same weights; the inputs are feed `feed_index` of the first."""

    name: str
    pt2: str | None
    onnx: str | None
    feed_index: int = 0
    source: str | None = None  # the model in zoo_bench.make, where PyTorch cannot load the exported program

    @property
    def main(self) -> str:
        """The zoo model that inputs and outputs come from, and that mlc compiles."""
        main = self.pt2 or self.onnx
        assert main is not None
        return main


def _pair(name: str) -> Workload:
    if name.startswith("flex"):
        # No file of torch's own holds it; peers that read ONNX do the same attention with a boolean mask.
        return Workload(name, f"bench_{name}", "bench_attention_2048_window_onnx", source=name)
    return Workload(name, f"bench_{name}", f"bench_{name}_onnx")


# The rows of docs/performance.md: random weights, sizes that are compared in the field.
MODELS = (
    "mlp",
    "resnet50",
    "resnet50_b8",
    "mobilenetv2",
    "bert_base",
    "minilm",
    "vit_b16",
    "gpt2_prefill",
    "gpt2_decode",
    "llama4",
    "smollm2_prefill",
)
KERNELS = (
    "add_8",
    "gemm_512",
    "gemm_1024",
    "gemm_2048",
    "gemm_384x3072x768",
    "linear_384x3072x768",
    "attention_512",
    "attention_2048",
    "attention_2048_causal",
    "attention_2048_window",
    "flex_2048_window",
    "conv3x3_64_56",
    "dwconv3x3_144_56",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "gelu_4m",
)
WORKLOADS = {
    row.name: row
    for row in (
        *map(_pair, (*MODELS, *KERNELS)),
        Workload("resnet50_zoo", "resnet50", "resnet50_onnx"),
        Workload("efficientnet_lite0", "efficientnet_lite0", "efficientnet_lite0_onnx"),
        Workload("mobilenet_v2_zoo", "mobilenet_v2", "mobilenet_v2_onnx", feed_index=1),
        Workload("minilm_zoo", "minilm_128", "minilm_onnx"),
        Workload("minilm_batch8", "minilm", "minilm_onnx", feed_index=2),
        Workload("vit_b16_zoo", "vit_b16", "vit_b16_onnx"),
        Workload("gpt2_prefill_64", "gpt2_small", "gpt2_small_onnx", feed_index=2),
        Workload("smollm2_prefill_61", "smollm2_prefill", None, feed_index=2),
        Workload("crepe_full", "crepe_full", "crepe_full_onnx"),
        Workload("resemblyzer", "resemblyzer", "resemblyzer_onnx"),
        Workload("magika", None, "magika", feed_index=1),
        Workload("ocr_detect", None, "ocr_detect"),
        Workload("ocr_recognise", None, "ocr_recognise"),
        Workload("silero_vad", None, "silero_vad_ifless"),
        Workload("dnsmos", None, "dnsmos"),
        Workload("oww_embedding", None, "oww_embedding"),
    )
}
SETS = {
    "models": MODELS,
    "kernels": KERNELS,
    "zoo": tuple(name for name in WORKLOADS if name not in (*MODELS, *KERNELS)),
}


def zoo_model(name: str) -> Any:
    """The zoo's model. Raises: zoo.UnavailableError."""
    import zoo

    return zoo.get(name)


def flops(workload: Workload) -> int | None:
    """Floating-point operations of matrix products, convolutions and attention in one run; None where not counted.

    Counted by PyTorch on the exported program, so only for workloads that have one, and only where torch is installed.
    """
    if workload.pt2 is None:
        return None
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None
    if workload.source:
        return None
    model = zoo_model(workload.pt2)
    module = torch.export.load(str(model.path)).module()
    # Attention is counted as the products that it is made of, all scores, masked or not.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*(torch.from_numpy(array) for array in model.feeds[workload.feed_index]))
    return int(counter.get_total_flops())
