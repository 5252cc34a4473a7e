"""SmolLM2-135M from one dynamic artifact: twenty tokens chosen greedily are those that PyTorch chooses."""

from __future__ import annotations

from pathlib import Path

import mlc
import numpy as np
import pytest
import zoo

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
