"""Trains the small digit classifier of `mlc demo`: scikit-learn's 8x8 digits, two convolutions, under 100 KB.

    python examples/digits/train.py [FOLDER]        # default: runtime/mlc/demo

Writes digits.pt2, digits.onnx (dynamic batch) and digits_test.npz (360 held-out images and labels). Needs torch,
onnxscript and scikit-learn; takes about 20 seconds on one core and gives the same weights every time on one machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 60
BATCH = 64


class Digits(nn.Module):
    """[B, 1, 8, 8] pixels in [0, 1] -> [B, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(384, 24),
            nn.ReLU(),
            nn.Linear(24, 10),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(pixels)
        return logits


def shifted(pixels: torch.Tensor) -> torch.Tensor:
    """The batch moved by up to one pixel each way: the only augmentation that digits this small can take."""
    down, right = (int(torch.randint(-1, 2, ())) for _ in range(2))
    padded = nn.functional.pad(pixels, (1, 1, 1, 1))
    return padded[:, :, 1 + down : 9 + down, 1 + right : 9 + right]


def train(model: Digits, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    model.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(pixels)).split(BATCH):
            loss = nn.functional.cross_entropy(model(shifted(pixels[chosen])), labels[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    model.eval()


def portable(trace: str) -> str:
    """A stack trace with the folders of this machine taken out of its file names."""
    for prefix in (str(ROOT), str(Path(torch.__file__).parents[1])):
        trace = trace.replace(prefix + "/", "")
    return trace


def write_models(model: Digits, example: torch.Tensor, folder: Path) -> None:
    """Writes digits.pt2 and digits.onnx, which keep the lines of this file that each operation comes from."""
    dynamic = ({0: torch.export.Dim("B", min=1, max=1024)},)
    program = torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=False)
    for node in program.graph.nodes:
        if "stack_trace" in node.meta:
            node.meta["stack_trace"] = portable(node.meta["stack_trace"])
    torch.export.save(program, folder / "digits.pt2")
    file = folder / "digits.onnx"
    options: dict[str, Any] = {"dynamo": True, "dynamic_shapes": dynamic, "external_data": False, "verbose": False}
    torch.onnx.export(model, (example,), str(file), **options)
    graph = onnx.load(file)
    for node in graph.graph.node:
        for entry in node.metadata_props:
            entry.value = portable(entry.value)
    onnx.save(graph, file)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_digits()
    pixels = (data.images / 16).astype(np.float32)[:, None]
    split = train_test_split(pixels, data.target, test_size=360, random_state=0, stratify=data.target)
    train_pixels, test_pixels, train_labels, test_labels = split
    model = Digits()
    train(model, torch.from_numpy(train_pixels), torch.from_numpy(train_labels))
    with torch.no_grad():
        logits = model(torch.from_numpy(test_pixels)).numpy()
    accuracy = float((logits.argmax(1) == test_labels).mean())
    print(f"held-out accuracy {accuracy:.2%} on {len(test_labels)} images")

    folder.mkdir(parents=True, exist_ok=True)
    write_models(model, torch.from_numpy(test_pixels[:4]), folder)
    # Pixels are whole numbers of sixteenths: a byte each, and the file stays small.
    np.savez_compressed(
        folder / "digits_test.npz",
        pixels=np.round(test_pixels * 16).astype(np.uint8),
        labels=test_labels.astype(np.int64),
        accuracy=np.array(accuracy),
    )
    for file in ("digits.pt2", "digits.onnx", "digits_test.npz"):
        print(f"{folder / file}: {(folder / file).stat().st_size} bytes")


if __name__ == "__main__":
    default = ROOT / "runtime" / "mlc" / "demo"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
