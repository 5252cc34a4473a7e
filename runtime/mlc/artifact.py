"""Writes and reads the artifact file of docs/format.md, version 1.

The writer streams weights from numpy arrays and memory maps, and gives the same bytes for the same model. The reader
serves tools (`mlc inspect`); models are run by the C runtime, which does its own checking.
May import numpy and the C library's loader, nothing of the compiler.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from mlc import native
from mlc.info import pack_info, unpack_info
from mlc.signature import COMPUTED_DIM, DATA_DIM, DTYPES, Symbol, TensorInfo, dim_word

MAGIC = b"MLCMODEL"
MAJOR, MINOR = 1, 0
ALIGN_BYTES = 64
ALL_TARGETS = 0xFFFFFFFF
RANK_MAX = 16
META, TARGET, CODE, WEIGHTS, INFO, SIGNATURE, STATE = 1, 2, 3, 4, 5, 6, 7
KIND_NAMES = {META: "meta", TARGET: "target", CODE: "code", WEIGHTS: "weights", INFO: "info", SIGNATURE: "signature"}
KIND_NAMES[STATE] = "state"
ARCHES = {"x86_64": 1, "aarch64": 2, "thumb": 3, "riscv64": 4}

_METHOD_BYTES_MAX = 31
_HEADER = struct.Struct("<8sHHIQQ32x")
_ENTRY = struct.Struct("<IIQQQ32s")
_META = struct.Struct("<8I4I16x")
_SYMBOL = struct.Struct("<IIqq")
_TENSOR = struct.Struct("<IIIIIIQ")
_TARGET = struct.Struct("<IIQIIIIq24x64s")


class FormatError(ValueError):
    """The bytes are not an artifact of this version, or what is to be written does not fit one."""


@dataclass(frozen=True)
class Meta:
    """What a model takes and gives. Its order is the order of pointers and dims in a call."""

    symbols: tuple[Symbol, ...] = ()
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    states: tuple[TensorInfo, ...] = ()


@dataclass(frozen=True)
class TargetInfo:
    """A machine that code was made for, and what the code assumes of memory.

    `features` are LLVM's names; `sve_bits` 0: any vector length. `arena_bytes` is the most that any allowed shape
    needs, None: not known ahead. `io_align_bytes`: alignment that the code assumes of inputs and outputs.
    """

    arch: str
    features: tuple[str, ...] = ()
    name: str = ""
    sve_bits: int = 0
    code_abi: int = 1
    arena_align_bytes: int = 64
    io_align_bytes: int = 16
    arena_bytes: int | None = None


@dataclass(frozen=True)
class Chunk:
    """`data` (any C-contiguous buffer: bytes, array, memmap) at `offset` bytes of a weights section; gaps are zero."""

    offset: int
    data: Any


@dataclass(frozen=True)
class Target:
    """One target's code image, one a method, and, where they differ from the shared ones, its weights."""

    info: TargetInfo
    code: bytes | Sequence[bytes]
    weights: Sequence[Chunk] | None = None


@dataclass(frozen=True)
class Section:
    """One row of the section table."""

    kind: int
    target_index: int
    offset: int
    size: int
    checksum: int
    name: str


@dataclass
class Artifact:
    """A file taken apart; sections are views of `data`."""

    data: memoryview
    minor: int
    sections: tuple[Section, ...]
    meta: Meta
    targets: tuple[TargetInfo, ...]
    info: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Meta] = field(default_factory=dict)  # of a file of several; `meta` is then the first one's

    def section(self, kind: int, target_index: int = ALL_TARGETS) -> memoryview | None:
        """Bytes of the section of `kind` for that target (one for all targets where it has none of its own)."""
        for wanted in (target_index, ALL_TARGETS):
            for row in self.sections:
                if row.kind == kind and row.target_index == wanted:
                    return self.data[row.offset : row.offset + row.size]
        return None


def write_artifact(
    path_or_file: str | os.PathLike[str] | BinaryIO,
    meta: Meta | Mapping[str, Meta],
    targets: Sequence[Target],
    info: Mapping[str, Any],
    weights: Sequence[Chunk] = (),
    signature: bytes | None = None,
    state: Sequence[Chunk] = (),
) -> int:
    """Writes an artifact and returns its bytes; `targets` best first, `weights` those all targets share, `state` what
    states begin as where that is not zeros. `meta` by name: a file of several methods; targets have an image of each.

    A path is written beside and renamed, so that a reader never maps half a file. A file object must be seekable.
    Raises: FormatError for what the format cannot hold.
    """
    if not isinstance(path_or_file, str | os.PathLike):
        return _write(path_or_file, meta, targets, info, weights, signature, state)
    path = os.fspath(path_or_file)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            total_bytes = _write(file, meta, targets, info, weights, signature, state)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return total_bytes


def artifact_bytes(*args: Any, **kwargs: Any) -> bytes:
    """write_artifact to memory; the same parameters without the first."""
    file = io.BytesIO()
    write_artifact(file, *args, **kwargs)
    return file.getvalue()


def _write(
    file: BinaryIO,
    meta: Meta | Mapping[str, Meta],
    targets: Sequence[Target],
    info: Mapping[str, Any],
    weights: Sequence[Chunk],
    signature: bytes | None,
    state: Sequence[Chunk],
) -> int:
    if not targets:
        raise FormatError("an artifact needs code for at least one target")
    weights, targets = _share_weights(weights, targets)
    blobs: list[tuple[int, int, str, Callable[[], Iterator[Any]]]] = []

    def add(kind: int, target_index: int, name: str, *parts: Any) -> None:
        blobs.append((kind, target_index, name, lambda: iter(parts)))

    methods = {"meta": meta} if isinstance(meta, Meta) else meta
    for name, one in methods.items():
        if len(name.encode()) > _METHOD_BYTES_MAX or not name.isidentifier():
            raise FormatError(f"method {name!r}: names are identifiers of up to {_METHOD_BYTES_MAX} bytes")
        add(META, ALL_TARGETS, name, pack_meta(one))
    for index, target in enumerate(targets):
        add(TARGET, index, target.info.name, pack_target(target.info))
        images = [target.code] if isinstance(target.code, bytes) else list(target.code)
        if len(images) != len(methods):
            raise FormatError(f"target {target.info.name} has {len(images)} images for {len(methods)} methods")
        for image in images:
            add(CODE, index, target.info.name, image)
    if weights:
        blobs.append((WEIGHTS, ALL_TARGETS, "weights", partial(chunk_parts, weights)))
    for index, target in enumerate(targets):
        if target.weights:
            blobs.append((WEIGHTS, index, target.info.name, partial(chunk_parts, target.weights)))
    if state:
        blobs.append((STATE, ALL_TARGETS, "state", partial(chunk_parts, state)))
    add(INFO, ALL_TARGETS, "info", pack_info(info))
    if signature is not None:
        add(SIGNATURE, ALL_TARGETS, "signature", signature)

    start = file.tell()
    offset = _HEADER.size + _ENTRY.size * len(blobs)
    file.write(bytes(offset))
    table = b""
    for kind, target_index, name, parts in blobs:
        size, checksum = _write_section(file, parts())
        table += _ENTRY.pack(kind, target_index, offset, size, checksum, _name_bytes(name, 31))
        offset += size
    header = _HEADER.pack(MAGIC, MAJOR, MINOR, len(blobs), offset, 0)
    header = _HEADER.pack(MAGIC, MAJOR, MINOR, len(blobs), offset, native.checksum(header + table))
    file.seek(start)
    file.write(header + table)
    file.seek(start + offset)
    return offset


def _share_weights(weights: Sequence[Chunk], targets: Sequence[Target]) -> tuple[Sequence[Chunk], Sequence[Target]]:
    """Weights that most targets lay out alike become those of all targets, so that they are in the file once."""
    own = [index for index, target in enumerate(targets) if target.weights]
    if weights or len(own) < 2:
        return weights, targets
    groups: dict[int, list[int]] = {}
    for index in own:
        checksum = native.Checksum()
        for part in chunk_parts(targets[index].weights or ()):
            checksum.update(_byte_view(part))
        groups.setdefault(checksum.value(), []).append(index)
    alike = max(groups.values(), key=len)
    if len(alike) < 2:
        return weights, targets
    shared = targets[alike[0]].weights or ()
    return shared, [replace(t, weights=None) if index in alike else t for index, t in enumerate(targets)]


def _write_section(file: BinaryIO, parts: Iterable[Any]) -> tuple[int, int]:
    """Writes parts one after another, pads with zeros to 64 bytes; returns size and checksum, padding included."""
    checksum = native.Checksum()
    size = 0
    for part in parts:
        view = _byte_view(part)
        checksum.update(view)
        file.write(view)
        size += view.nbytes
    tail = bytes(-size % ALIGN_BYTES or (ALIGN_BYTES if size == 0 else 0))
    checksum.update(tail)
    file.write(tail)
    return size + len(tail), checksum.value()


def _byte_view(part: Any) -> memoryview:
    if isinstance(part, bytes | bytearray | memoryview):
        return memoryview(part).cast("B")
    array = np.asarray(part)
    if not array.flags.c_contiguous:
        raise FormatError("weights must be C-contiguous")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def chunk_parts(chunks: Sequence[Chunk]) -> Iterator[Any]:
    """Chunks in the order of their offsets with the gaps between them as zeros."""
    position = 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset):
        view = _byte_view(chunk.data)
        if chunk.offset < position:
            raise FormatError(f"weights overlap: a chunk at {chunk.offset} starts before {position}")
        if chunk.offset > position:
            yield bytes(chunk.offset - position)
        yield view
        position = chunk.offset + view.nbytes


def pack_meta(meta: Meta) -> bytes:
    """The META section. Raises: FormatError for a name, dtype, rank or symbol that it cannot hold."""
    text = bytearray()

    def put(name: str) -> tuple[int, int]:
        encoded = name.encode()
        if b"\0" in encoded or not encoded:
            raise FormatError(f"name {name!r} is empty or holds a zero byte")
        at = len(text)
        text.extend(encoded + b"\0")
        return at, len(encoded)

    numbers = {symbol.name: index for index, symbol in enumerate(meta.symbols)}
    if len(numbers) != len(meta.symbols):
        raise FormatError("two symbols have the same name")
    symbols = b""
    for symbol in meta.symbols:
        if not 0 <= symbol.min <= symbol.max < 2**63:
            raise FormatError(f"symbol {symbol.name} has range {symbol.min}..{symbol.max}")
        symbols += _SYMBOL.pack(*put(symbol.name), symbol.min, symbol.max)
    tensors = b""
    dims: list[int] = []
    if any(not isinstance(dim, int) for tensor in meta.states for dim in tensor.dims):
        raise FormatError("a state's sizes must be numbers")
    for tensor in (*meta.inputs, *meta.outputs, *meta.states):
        if tensor.dtype not in DTYPES:
            raise FormatError(f"tensor {tensor.name}: unknown dtype {tensor.dtype!r}")
        if len(tensor.dims) > RANK_MAX:
            raise FormatError(f"tensor {tensor.name}: rank {len(tensor.dims)} is above {RANK_MAX}")
        first = len(dims)
        dims += [_pack_dim(tensor, dim, numbers) for dim in tensor.dims]
        tensors += _TENSOR.pack(*put(tensor.name), DTYPES.index(tensor.dtype), len(tensor.dims), first, 0, 0)
    symbol_at = _META.size
    tensor_at = symbol_at + len(symbols)
    dim_at = tensor_at + len(tensors)
    text_at = dim_at + 8 * len(dims)
    counts = (1, len(meta.symbols), len(meta.inputs), len(meta.outputs), len(meta.states), len(dims), len(text), 0)
    head = _META.pack(*counts, symbol_at, tensor_at, dim_at, text_at)
    return head + symbols + tensors + struct.pack(f"<{len(dims)}q", *dims) + bytes(text)


def _pack_dim(tensor: TensorInfo, dim: int | str | None, numbers: Mapping[str, int]) -> int:
    if dim is None:
        return COMPUTED_DIM
    if dim == "*":
        return DATA_DIM
    if isinstance(dim, str):
        if dim not in numbers:
            raise FormatError(f"tensor {tensor.name}: no symbol {dim!r}")
        return -1 - numbers[dim]
    if not 0 <= int(dim) < 2**63:
        raise FormatError(f"tensor {tensor.name}: size {dim}")
    return int(dim)


def pack_target(target: TargetInfo) -> bytes:
    """The TARGET section. Raises: FormatError for an unknown arch or feature."""
    if target.arch not in ARCHES:
        raise FormatError(f"unknown arch {target.arch!r}; known: {', '.join(ARCHES)}")
    arch = ARCHES[target.arch]
    known = native.feature_names(arch)
    bits = 0
    for feature in target.features:
        if feature not in known:
            raise FormatError(f"the runtime knows no {target.arch} feature {feature!r}; known: {', '.join(known)}")
        bits |= 1 << known.index(feature)
    for alignment in (target.arena_align_bytes, target.io_align_bytes):
        if alignment < 1 or alignment & (alignment - 1) or alignment > 4096:
            raise FormatError(f"alignment {alignment} is not a power of two up to 4096")
    arena_bytes = -1 if target.arena_bytes is None else target.arena_bytes
    return _TARGET.pack(
        1, arch, bits, target.sve_bits, target.code_abi, target.arena_align_bytes, target.io_align_bytes,
        arena_bytes, _name_bytes(target.name, 63),
    )  # fmt: skip


def _name_bytes(name: str, limit: int) -> bytes:
    encoded = name.encode()
    while len(encoded) > limit:
        name = name[:-1]
        encoded = name.encode()
    return encoded


def read_artifact(path_or_bytes: str | os.PathLike[str] | bytes | memoryview, verify: bool = True) -> Artifact:
    """Takes a file apart for tools; maps a path. Raises: FormatError, saying what is wrong."""
    if isinstance(path_or_bytes, str | os.PathLike):
        data = memoryview(np.memmap(path_or_bytes, dtype=np.uint8, mode="r"))  # type: ignore[arg-type]
    else:
        data = memoryview(path_or_bytes).cast("B")
    if len(data) < _HEADER.size or bytes(data[:8]) != MAGIC:
        raise FormatError("not an mlc artifact")
    _, major, minor, count, total_bytes, table_checksum = _HEADER.unpack_from(data)
    if major != MAJOR:
        raise FormatError(f"file version {major}.{minor}; this library reads {MAJOR}.x")
    table_end = _HEADER.size + _ENTRY.size * count
    if total_bytes != len(data) or table_end > len(data):
        raise FormatError(f"the file has {len(data)} bytes, its header says {total_bytes}")
    head = bytearray(data[:table_end])
    head[24:32] = bytes(8)
    if native.checksum(head) != table_checksum:
        raise FormatError("the section table's checksum is wrong")
    sections, position = [], table_end
    for index in range(count):
        kind, target_index, offset, size, checksum, name = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        if offset != position or size > len(data) - offset:
            raise FormatError(f"section {index} is out of place")
        position = offset + size
        sections.append(Section(kind, target_index, offset, size, checksum, name.rstrip(b"\0").decode()))
        if verify and native.checksum(data[offset:position]) != checksum:
            raise FormatError(f"section {index} ({KIND_NAMES.get(kind, kind)}): checksum is wrong")
    artifact = Artifact(data, minor, tuple(sections), Meta(), ())
    meta = artifact.section(META)
    if meta is None:
        raise FormatError("no model description")
    artifact.meta = unpack_meta(meta)
    rows = [row for row in sections if row.kind == META]
    if len(rows) > 1:
        artifact.methods = {row.name: unpack_meta(data[row.offset : row.offset + row.size]) for row in rows}
    artifact.targets = tuple(unpack_target(data[row.offset :]) for row in sections if row.kind == TARGET)
    text = artifact.section(INFO)
    artifact.info = unpack_info(bytes(text)) if text is not None else {}
    return artifact


def unpack_meta(blob: memoryview | bytes) -> Meta:
    """The inverse of pack_meta."""
    counts = _META.unpack_from(blob)
    _, symbol_count, input_count, output_count, state_count, dim_count, text_bytes, _, *offsets = counts
    symbol_at, tensor_at, dim_at, text_at = offsets
    text = bytes(blob[text_at : text_at + text_bytes])
    dims = struct.unpack_from(f"<{dim_count}q", blob, dim_at)
    symbols = []
    for index in range(symbol_count):
        at, length, low, high = _SYMBOL.unpack_from(blob, symbol_at + index * _SYMBOL.size)
        symbols.append(Symbol(text[at : at + length].decode(), low, high))

    tensors = []
    for index in range(input_count + output_count + state_count):
        at, length, dtype, rank, first, *_ = _TENSOR.unpack_from(blob, tensor_at + index * _TENSOR.size)
        shape = tuple(dim_word(dim, symbols) for dim in dims[first : first + rank])
        tensors.append(TensorInfo(text[at : at + length].decode(), DTYPES[dtype], shape))
    first = input_count + output_count
    return Meta(tuple(symbols), *map(tuple, (tensors[:input_count], tensors[input_count:first], tensors[first:])))


def unpack_target(blob: memoryview | bytes) -> TargetInfo:
    """The inverse of pack_target."""
    _, arch, bits, sve_bits, code_abi, arena_align, io_align, arena_bytes, name = _TARGET.unpack_from(blob)
    features = tuple(name for bit, name in enumerate(native.feature_names(arch)) if bits >> bit & 1)
    arch_name = next((key for key, value in ARCHES.items() if value == arch), f"arch {arch}")
    return TargetInfo(
        arch_name, features, name.rstrip(b"\0").decode(), sve_bits, code_abi, arena_align, io_align,
        None if arena_bytes < 0 else arena_bytes,
    )  # fmt: skip
