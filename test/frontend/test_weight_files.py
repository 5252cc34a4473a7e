"""Weights from .safetensors and .gguf files in place of a program's own."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import mlc
import numpy as np
import pytest
from mlc.frontend.gguf import in_torch_order, read_gguf, torch_name
from mlc.frontend.record import ReadError
from mlc.frontend.weight_files import read_weights

torch = pytest.importorskip("torch")
X = np.linspace(-1, 1, 2 * 6, dtype=np.float32).reshape(2, 6)


class Tied(torch.nn.Module):
    """Two layers, the last of which is the first one's weight again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.last = torch.nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def _saved(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)
    return path


def _program() -> torch.export.ExportedProgram:
    return torch.export.export(Tied(), (torch.from_numpy(X),))


def _tensors(seed: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {"first.weight": torch.randn(6, 6), "first.bias": torch.randn(6)}


def _wanted(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    weight, bias = (tensors[name].float().numpy() for name in ("first.weight", "first.bias"))
    return np.maximum(X @ weight.T + bias, 0) @ weight.T


def _run(*files: Path) -> np.ndarray:
    with mlc.load(mlc.compile(_program(), weights=files).to_bytes()) as model:
        return model(X)


@pytest.mark.parametrize("prefix", ["", "model.", "strip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_safetensors(prefix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in _tensors().items()}
    spelt = {name.removeprefix("first.") if prefix == "strip" else prefix + name: t for name, t in tensors.items()}
    found = _run(_saved(tmp_path / "w.safetensors", spelt))
    np.testing.assert_allclose(found, _wanted(tensors), rtol=1e-5, atol=1e-5)


def test_shards(tmp_path: Path) -> None:
    tensors = _tensors()
    for name, tensor in tensors.items():
        _saved(tmp_path / f"{name}.safetensors", {name: tensor})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in tensors}}))
    np.testing.assert_allclose(_run(index), _wanted(tensors), rtol=1e-5, atol=1e-5)


def test_the_file_is_not_copied(tmp_path: Path) -> None:
    path = _saved(tmp_path / "w.safetensors", _tensors())
    array = read_weights([path])["first.weight"].array()
    assert isinstance(array.base, np.ndarray) and not array.flags.owndata and not array.flags.writeable


def test_refusals(tmp_path: Path) -> None:
    tensors = _tensors()
    with pytest.raises(ReadError, match=r"1 parameters of .* are in no weight file: first.bias"):
        _run(_saved(tmp_path / "missing.safetensors", {"first.weight": tensors["first.weight"]}))
    with pytest.raises(ReadError, match=r"first.bias has sizes \[7\] in the weight file, the model \[6\]"):
        _run(_saved(tmp_path / "sizes.safetensors", {**tensors, "first.bias": torch.ones(7)}))
    with pytest.raises(ReadError, match=r"first.bias is int64 in the weight file, the model has f32"):
        _run(_saved(tmp_path / "kind.safetensors", {**tensors, "first.bias": torch.ones(6, dtype=torch.int64)}))
    with pytest.raises(ReadError, match="there is no weight file"):
        _run(tmp_path / "none.safetensors")
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(ReadError, match=r"weights come from \.safetensors"):
        _run(tmp_path / "w.bin")


@pytest.mark.parametrize("cut", [0, 4, 8, 60, 300])
def test_damaged_files(cut: int, tmp_path: Path) -> None:
    for path in (_saved(tmp_path / "w.safetensors", _tensors()), _gguf(tmp_path / "w.gguf", 8, (4, 64))[0]):
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ReadError):
            [stored.array() for stored in read_weights([path]).values()]


# GGUF: blocks of random bytes, decoded number by number as the format's description says ----------------------------
def _half(data: bytes, at: int) -> float:
    return float(np.frombuffer(data, np.float16, 1, at)[0])


def _decoded(kind: int, block: bytes) -> list[float]:
    if kind in (2, 3, 8):
        scale = _half(block, 0)
        if kind == 8:
            return [scale * struct.unpack_from("b", block, 2 + i)[0] for i in range(32)]
        least, codes = (0.0, block[2:]) if kind == 2 else (_half(block, 2), block[4:])
        numbers = [codes[i] & 15 for i in range(16)] + [codes[i] >> 4 for i in range(16)]
        return [scale * (n - 8 if kind == 2 else n) + least for n in numbers]
    return _decoded_q4_k(block) if kind == 12 else _decoded_q6_k(block)


def _decoded_q4_k(block: bytes) -> list[float]:
    scale, least, packed, codes = _half(block, 0), _half(block, 2), block[4:16], block[16:]
    out = []
    for run in range(8):
        if run < 4:
            step, low = packed[run] & 63, packed[run + 4] & 63
        else:
            step = (packed[run + 4] & 15) | (packed[run - 4] >> 6 << 4)
            low = (packed[run + 4] >> 4) | (packed[run] >> 6 << 4)
        for i in range(32):
            code = codes[run // 2 * 32 + i]
            out.append(scale * step * (code & 15 if run % 2 == 0 else code >> 4) - least * low)
    return out


def _decoded_q6_k(block: bytes) -> list[float]:
    scale, scales = _half(block, 208), struct.unpack_from("16b", block, 192)
    out = [0.0] * 256
    for half in range(2):
        low, high = block[half * 64 :][:64], block[128 + half * 32 :][:32]
        for i in range(32):
            for part in range(4):
                bits = low[i + 32 * (part % 2)]
                code = (bits & 15 if part < 2 else bits >> 4) | ((high[i] >> 2 * part) & 3) << 4
                out[half * 128 + part * 32 + i] = scale * scales[half * 8 + part * 2 + i // 16] * (code - 32)
    return out


_BLOCK = {2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210)}


def _gguf(path: Path, kind: int, shape: tuple[int, ...]) -> tuple[Path, list[bytes]]:
    """A file with one tensor of random blocks, whose scales are small f16 numbers."""
    elements, size = _BLOCK[kind]
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // elements, size), np.uint8)
    for at in {2: (0,), 3: (0, 2), 8: (0,), 12: (0, 2), 14: (208,)}[kind]:
        halves = rng.uniform(-2, 2, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("llama.attention.head_count") + struct.pack("<II", 4, 2)
    head += text("blk.0.attn_q.weight") + struct.pack("<I", len(shape))
    head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + blocks.tobytes())
    return path, [block.tobytes() for block in blocks]


@pytest.mark.parametrize("kind", sorted(_BLOCK))
def test_gguf_formats(kind: int, tmp_path: Path) -> None:
    path, blocks = _gguf(tmp_path / "w.gguf", kind, (4, 256))
    metadata, tensors = read_gguf(path)
    assert metadata["general.architecture"] == "llama" and list(tensors) == ["blk.0.attn_q.weight"]
    wanted = np.array([number for block in blocks for number in _decoded(kind, block)]).reshape(4, 256)
    np.testing.assert_allclose(tensors["blk.0.attn_q.weight"].array(), wanted, rtol=2e-6, atol=1e-6)


def test_gguf_names_and_order() -> None:
    assert torch_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert torch_name("token_embd.weight") == "model.embed_tokens.weight"
    assert torch_name("rope_freqs.weight") is None
    rows = np.arange(8.0)[:, None]  # two heads of two pairs
    metadata = {"general.architecture": "llama", "llama.attention.head_count": 2}
    turned = in_torch_order("blk.0.attn_q.weight", rows, metadata)[:, 0]
    assert turned.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert in_torch_order("blk.0.attn_v.weight", rows, metadata) is rows
