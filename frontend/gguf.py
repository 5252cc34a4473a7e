"""Reads GGUF, the file of ggml's models: metadata, and tensors that are dequantised when asked for.

Source: the GGUF specification (ggml, docs/gguf.md, version 3) and ggml's block formats. Element types: F32, F16, BF16,
Q4_0, Q4_1, Q8_0, Q4_K and Q6_K.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from mlc.frontend.record import ReadError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEPTH_MAX = 8


def _plain(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda blocks: blocks.view(dtype).astype(np.float32)


def _halves(blocks: np.ndarray, first: int) -> np.ndarray:
    """The f16 at byte `first` of each block, [blocks, 1] in f32."""
    return blocks[:, first : first + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Low halves of all bytes, then high halves."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """Eight runs of 32 numbers, each with a scale and a least number of six bits, packed in twelve bytes."""
    packed = blocks[:, 4:16]
    low, high = packed[:, :4], packed[:, 4:8]
    scales = np.concatenate([low & 63, (packed[:, 8:] & 15) | (low >> 6 << 4)], axis=1)
    least = np.concatenate([high & 63, (packed[:, 8:] >> 4) | (high >> 6 << 4)], axis=1)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    steps = (_halves(blocks, 0) * scales)[:, :, None]
    return (steps * codes - (_halves(blocks, 2) * least)[:, :, None]).reshape(len(blocks), -1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Four low bits of each number in one place, two high bits in another; a scale for every 16 numbers."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2)
    twos = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    numbers = (codes | twos << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _halves(blocks, 208)
    return (scales[:, :, None] * numbers).reshape(len(blocks), -1)


@dataclass(frozen=True)
class _Format:
    name: str
    elements: int  # of a block
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]  # u8 [blocks, bytes] to f32 [blocks, elements]


_FORMATS = {
    0: _Format("F32", 1, 4, _plain(np.float32)),
    1: _Format("F16", 1, 2, _plain(np.float16)),
    2: _Format("Q4_0", 32, 18, _q4_0),
    3: _Format("Q4_1", 32, 20, _q4_1),
    8: _Format("Q8_0", 32, 34, _q8_0),
    12: _Format("Q4_K", 256, 144, _q4_k),
    14: _Format("Q6_K", 256, 210, _q6_k),
    30: _Format("BF16", 1, 2, _plain(ml_dtypes.bfloat16)),
}


class _Cursor:
    """Reads little endian values one after another. Raises ReadError past the end."""

    def __init__(self, data: np.ndarray, source: str) -> None:
        self.data, self.source, self.at = data, source, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ReadError(f"{self.source} is truncated")
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and depth < _DEPTH_MAX:
            inner, count = self.number("I"), self.number("Q")
            if inner in _NUMBERS:
                return np.frombuffer(self.take(count * struct.calcsize("<" + _NUMBERS[inner])), "<" + _NUMBERS[inner])
            return [self.value(inner, depth + 1) for _ in range(min(count, len(self.data)))]
        if kind not in _NUMBERS:
            raise ReadError(f"{self.source}: metadata of kind {kind} is not understood")
        return self.number(_NUMBERS[kind])


@dataclass(frozen=True)
class GgufTensor:
    """One tensor, its sizes in PyTorch's order."""

    shape: tuple[int, ...]
    format: _Format
    blocks: np.ndarray

    def array(self) -> np.ndarray:
        """In f32."""
        blocks = self.blocks.reshape(-1, self.format.block_bytes)
        return np.ascontiguousarray(self.format.decode(blocks)).reshape(self.shape)


def mapped(path: Path) -> np.ndarray:
    """The file's bytes, read when they are looked at. Raises ReadError for one without any."""
    if path.stat().st_size == 0:
        raise ReadError(f"{path} is empty")
    return np.memmap(path, np.uint8, "r")


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Metadata and tensors of a file, which is mapped. Raises ReadError."""
    data = mapped(path)
    cursor = _Cursor(data, str(path))
    if cursor.take(4) != b"GGUF" or (version := cursor.number("I")) not in (2, 3):
        raise ReadError(f"{path} is no GGUF file of version 2 or 3")
    del version
    tensor_count, key_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    rows = []
    for _ in range(tensor_count):
        name, rank = cursor.text(), cursor.number("I")
        if rank > 8:
            raise ReadError(f"{path}: {name} has {rank} dimensions")
        sizes = [cursor.number("Q") for _ in range(rank)]
        rows.append((name, tuple(reversed(sizes)), cursor.number("I"), cursor.number("Q")))
    align = int(metadata.get("general.alignment", 32)) or 32
    start = -(-cursor.at // align) * align
    return metadata, {
        name: _tensor(data, start + offset, shape, kind, f"{path}: {name}") for name, shape, kind, offset in rows
    }


def _tensor(data: np.ndarray, first: int, shape: tuple[int, ...], kind: int, where: str) -> GgufTensor:
    if kind not in _FORMATS:
        known = ", ".join(sorted(form.name for form in _FORMATS.values()))
        raise ReadError(f"{where} has element type {kind}, which is not supported; supported are {known}")
    form, count = _FORMATS[kind], math.prod(shape)
    size = count // form.elements * form.block_bytes
    if count % form.elements or first + size > len(data):
        raise ReadError(f"{where} does not fit the file")
    return GgufTensor(shape, form, data[first : first + size])


# Names of the Llama family in transformers, by their GGUF names.
_LLAMA = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NAME = re.compile(r"^(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)$")


def torch_name(name: str) -> str | None:
    """What transformers calls the tensor of a model of the Llama family; None for what it has no name for."""
    match = _NAME.match(name)
    if match is None or match["part"] not in _LLAMA:
        return None
    layer = "" if match["layer"] is None else f"model.layers.{match['layer']}."
    return f"{layer}{_LLAMA[match['part']]}.{match['kind']}"


def in_torch_order(name: str, array: np.ndarray, metadata: dict[str, Any]) -> np.ndarray:
    """`array` with the rows of rotary projections as transformers has them: halves of a head, where the files of the
    `llama` architecture have pairs."""
    part = name.split(".")[-2] if "." in name else ""
    if metadata.get("general.architecture") != "llama" or part not in ("attn_q", "attn_k"):
        return array
    key = "llama.attention.head_count" + ("" if part == "attn_q" else "_kv")
    heads = int(metadata.get(key, metadata.get("llama.attention.head_count", 1)))
    rows = array.shape[0]
    if rows % (2 * heads):
        raise ReadError(f"{name} has {rows} rows, which {heads} heads do not divide")
    turned = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(turned.swapaxes(1, 2)).reshape(array.shape)
