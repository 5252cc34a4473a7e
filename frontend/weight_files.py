"""Weights from files of their own: `mlc compile model.pt2 --weights model.safetensors`, GGUF alike.

A tensor of a safetensors file is read where it is mapped; one of another element type, or quantised, is converted when
it is imported.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.gguf import GgufTensor, in_torch_order, mapped, read_gguf, torch_name
from mlc.frontend.record import Program, ReadError, Weight

_SAFETENSORS = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U8": "u8", "U16": "u16", "U32": "u32", "U64": "u64", "BOOL": "bool", "F8_E4M3": "f8e4m3fn", "F8_E5M2": "f8e5m2",
}  # fmt: skip
_NAMED = 5  # names that a message lists


@dataclass(frozen=True)
class Stored:
    """A tensor of a weight file; `array()` reads it."""

    shape: tuple[int, ...]
    array: Callable[[], np.ndarray]


def read_weights(paths: Iterable[str | Path]) -> dict[str, Stored]:
    """All tensors of .safetensors files, their .index.json, and .gguf files. Raises ReadError."""
    found: dict[str, Stored] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise ReadError(f"there is no weight file {path}")
        if path.name.endswith(".safetensors"):
            found |= _read_safetensors(path)
        elif path.name.endswith(".index.json"):
            shards = _json(path.read_bytes(), path).get("weight_map")
            if not isinstance(shards, dict) or not all(str(name).endswith(".safetensors") for name in shards.values()):
                raise ReadError(f"{path}: its weight_map names no .safetensors files")
            found |= read_weights(path.parent / name for name in sorted(set(shards.values())))
        elif path.suffix == ".gguf":
            found |= _from_gguf(path)
        else:
            raise ReadError(f"{path}: weights come from .safetensors, .safetensors.index.json or .gguf files")
    return found


def _json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ReadError(f"{path}: its header is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ReadError(f"{path}: its header is no JSON object")
    return value


def _read_safetensors(path: Path) -> dict[str, Stored]:
    """Source: the safetensors format, https://github.com/huggingface/safetensors (README, "Format")."""
    data = mapped(path)
    head_bytes = int(data[:8].view("<u8")[0]) if len(data) >= 8 else len(data)
    if head_bytes > len(data) - 8:
        raise ReadError(f"{path} is truncated, or no safetensors file")
    header = _json(data[8 : 8 + head_bytes].tobytes(), path)
    found = {}
    for name, row in header.items():
        if name != "__metadata__":
            found[name] = _stored(data[8 + head_bytes :], row, f"{path}: {name}")
    return found


def _stored(data: np.ndarray, row: Any, where: str) -> Stored:
    try:
        dtype, shape, (first, stop) = row["dtype"], tuple(map(int, row["shape"])), map(int, row["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise ReadError(f"{where}: its row in the header lacks dtype, shape or data_offsets") from error
    if dtype not in _SAFETENSORS:
        raise ReadError(f"{where} has element type {dtype}, which is not supported")
    numpy = DTYPES[_SAFETENSORS[dtype]].numpy
    if min(shape, default=0) < 0 or not 0 <= first <= stop <= len(data):
        raise ReadError(f"{where} lies outside the file")
    if stop - first != math.prod(shape) * numpy.itemsize:
        raise ReadError(f"{where}: {stop - first} bytes for {dtype}{list(shape)}")

    def array() -> np.ndarray:
        part = data[first:stop]
        return (part if part.ctypes.data % numpy.itemsize == 0 else part.copy()).view(numpy).reshape(shape)

    return Stored(shape, array)


def _from_gguf(path: Path) -> dict[str, Stored]:
    metadata, tensors = read_gguf(path)
    return {
        torch_name(name) or name: Stored(tensor.shape, partial(_dequantised, name, tensor, metadata))
        for name, tensor in tensors.items()
    }


def _dequantised(name: str, tensor: GgufTensor, metadata: dict[str, Any]) -> np.ndarray:
    return in_torch_order(name, tensor.array(), metadata)


def use_weights(program: Program, files: Mapping[str, Stored]) -> list[str]:
    """Puts the files' tensors in place of the program's stored ones, by name; gives names that the program lacks.

    A name may lack a prefix that the program's have (the attribute a wrapper keeps the model in), or have one more.
    Buffers, and parameters that share memory with one that is found, may be missing.
    Raises: ReadError for a parameter that is in no file, and for other sizes or kinds.
    """
    if not files:
        raise ReadError("the weight files hold no tensors")
    named = _renamed(files, program.weights)
    places = {name: (*w.place, w.storage_offset) for name, w in program.weights.items()}
    tied = {places[name]: name for name in program.weights if name in named}
    params = {spec.target for spec in program.inputs if spec.kind == "param"}
    missing = [n for n in program.weights if n in params and n not in named and places[n] not in tied]
    if missing:
        raise ReadError(f"{len(missing)} parameters of {program.source} are in no weight file: {_listed(missing)}")
    for name, weight in list(program.weights.items()):
        source = named.get(name) or (named[tied[places[name]]] if places[name] in tied else None)
        if source is not None:
            program.weights[name] = _replaced(name, weight, source)
    return sorted(set(named) - set(program.weights))


def _renamed(files: Mapping[str, Stored], wanted: Mapping[str, Weight]) -> dict[str, Stored]:
    """The files' tensors under the prefix by which most of them have the program's names."""
    if any(name in wanted for name in files):
        return dict(files)
    longer = Counter(w[: -len(f)] for w in wanted for f in files if w.endswith("." + f))
    if longer:
        prefix = longer.most_common(1)[0][0]
        return {prefix + name: stored for name, stored in files.items()}
    shorter = Counter(f[: -len(w)] for w in wanted for f in files if f.endswith("." + w))
    prefix = shorter.most_common(1)[0][0] if shorter else ""
    return {name.removeprefix(prefix): stored for name, stored in files.items()}


def _replaced(name: str, weight: Weight, source: Stored) -> Weight:
    if source.shape != weight.shape:
        raise ReadError(f"{name} has sizes {list(source.shape)} in the weight file, the model {list(weight.shape)}")
    array, wanted = source.array(), DTYPES[weight.dtype].numpy
    if array.dtype != wanted:
        kinds = {array.dtype.kind if array.dtype.kind != "V" else "f", DTYPES[weight.dtype].kind}
        if kinds != {"f"}:
            raise ReadError(f"{name} is {array.dtype} in the weight file, the model has {weight.dtype}")
        array = array.astype(wanted)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    strides = tuple(math.prod(weight.shape[axis + 1 :]) for axis in range(len(weight.shape)))
    return Weight(weight.dtype, weight.shape, strides, 0, flat, 0, flat.nbytes)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
