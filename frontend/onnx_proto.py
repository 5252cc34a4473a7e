"""Reads an ONNX model into plain Python records: nodes, graphs, functions, opsets and weights.

A model file is mapped, not read: the wire format is walked once to cut every initializer's bytes out, so that protobuf
parses the graph alone and a weight is a view of the file. Models in memory go through protobuf as they are.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

MODEL_GRAPH, GRAPH_INITIALIZER, TENSOR_RAW_DATA, TENSOR_EXTERNAL = 7, 5, 9, 13
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
STANDARD = ("", "ai.onnx")


class OnnxError(ValueError):
    """The file or model is not what ONNX says it must be; the message says where."""


@dataclass(frozen=True)
class ValueInfo:
    """A graph input or output as the file declares it. `shape` None: no rank given; a dim None: unnamed."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"


@dataclass
class Node:
    """One node. `version` is that of its domain's operator set where the node stands (functions have their own)."""

    op: str
    domain: str
    version: int
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    attr_refs: dict[str, str] = field(default_factory=dict)
    proto: onnx.NodeProto | None = None

    @property
    def label(self) -> str:
        """What messages and locations call this node: its name, or that of its first output."""
        return self.name or next((o for o in self.outputs if o), "")


@dataclass
class Graph:
    """A graph or an attribute's subgraph; `weights` are its initializers, dense."""

    name: str
    nodes: list[Node]
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    weights: dict[str, np.ndarray]


@dataclass(frozen=True)
class Function:
    """A model-local function: formal names, attribute defaults and a body with its own operator sets."""

    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    nodes: list[Node]


@dataclass(frozen=True)
class Model:
    """A whole model. `functions` by (domain, name)."""

    graph: Graph
    functions: dict[tuple[str, str], Function]
    opsets: dict[str, int]


def read_model(source: str | Path | ModelProto | bytes) -> Model:
    """The model in a file, in serialized bytes or in a ModelProto.

    Raises: OnnxError where the source is not an ONNX model or names data that is not there.
    """
    if isinstance(source, ModelProto):
        return _Reader(Path(), {}).model(source)
    if isinstance(source, bytes):
        return _Reader(Path(), {}).model(_parse(source, "these bytes"))
    path = Path(source)
    if not path.is_file():
        raise OnnxError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise OnnxError(f"{path}: empty file")
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        stripped, raw = _strip_weights(data)
    except (IndexError, ValueError) as error:
        raise OnnxError(f"{path}: not an ONNX model, or truncated") from error
    return _Reader(path.parent, raw).model(_parse(stripped, str(path)))


def _parse(data: bytes, what: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError; its module differs by version
        raise OnnxError(f"{what}: not an ONNX model, or truncated") from error
    if not model.ir_version or not model.HasField("graph"):
        raise OnnxError(f"{what}: not an ONNX model (no IR version or graph)")
    return model


# --- the wire format, as far as cutting weights out of it needs ---


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _fields(data: memoryview):
    """(field number, start of the field, start of its payload, end) for each field of one message."""
    at = 0
    while at < len(data):
        start = at
        key, at = _varint(data, at)
        wire = key & 7
        payload = at
        if wire == VARINT:
            _, at = _varint(data, at)
        elif wire == FIXED64:
            at += 8
        elif wire == FIXED32:
            at += 4
        elif wire == BYTES:
            size, payload = _varint(data, at)
            at = payload + size
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(data):
            raise ValueError("field past the end")
        yield key >> 3, start, payload, at


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field_bytes(number: int, payload: bytes) -> bytes:
    return _encode_varint(number << 3 | BYTES) + _encode_varint(len(payload)) + payload


def _strip_weights(data: memoryview) -> tuple[bytes, dict[str, memoryview]]:
    """The model without the main graph's raw weight bytes, and those bytes by initializer name."""
    raw: dict[str, memoryview] = {}
    model: list[bytes] = []
    for number, start, payload, end in _fields(data):
        if number != MODEL_GRAPH:
            model.append(bytes(data[start:end]))
            continue
        graph = data[payload:end]
        parts: list[bytes] = []
        for inner, first, body, last in _fields(graph):
            if inner == GRAPH_INITIALIZER and last - body > 256:
                parts.append(_field_bytes(GRAPH_INITIALIZER, _strip_tensor(graph[body:last], raw)))
            else:
                parts.append(bytes(graph[first:last]))
        model.append(_field_bytes(MODEL_GRAPH, b"".join(parts)))
    return b"".join(model), raw


def _strip_tensor(data: memoryview, raw: dict[str, memoryview]) -> bytes:
    name, parts, found = "", [], None
    for number, start, payload, end in _fields(data):
        if number == TENSOR_RAW_DATA:
            found = data[payload:end]
        else:
            parts.append(bytes(data[start:end]))
            if number == 8:
                name = bytes(data[payload:end]).decode()
    if found is not None:
        raw[name] = found
    return b"".join(parts)


# --- protos -> records ---


class _Reader:
    """Turns protos into records; `raw` holds the bytes that were cut out of the main graph's initializers."""

    def __init__(self, folder: Path, raw: dict[str, memoryview]):
        self.folder = folder
        self.raw = raw
        self.maps: dict[Path, memoryview] = {}

    def model(self, proto: ModelProto) -> Model:
        opsets = _opsets(proto.opset_import)
        opsets.setdefault("", 1)
        functions = {}
        for item in proto.functions:
            versions = opsets | _opsets(item.opset_import)
            defaults = {a.name: self.attribute(a, versions) for a in item.attribute_proto}
            nodes = [self.node(n, versions) for n in item.node]
            functions[_domain(item.domain), item.name] = Function(list(item.input), list(item.output), defaults, nodes)
        return Model(self.graph(proto.graph, opsets, self.raw), functions, opsets)

    def graph(self, proto: GraphProto, opsets: dict[str, int], raw: dict[str, memoryview] | None = None) -> Graph:
        raw = raw or {}
        weights = {t.name: self.tensor(t, raw.get(t.name)) for t in proto.initializer}
        for sparse in proto.sparse_initializer:
            weights[sparse.values.name] = self.sparse(sparse)
        return Graph(
            proto.name,
            [self.node(n, opsets) for n in proto.node],
            [value_info(v) for v in proto.input if v.name not in weights],
            [value_info(v) for v in proto.output],
            weights,
        )

    def node(self, proto: onnx.NodeProto, opsets: dict[str, int]) -> Node:
        domain = _domain(proto.domain)
        attrs, refs = {}, {}
        for attr in proto.attribute:
            if attr.ref_attr_name:
                refs[attr.name] = attr.ref_attr_name
            else:
                attrs[attr.name] = self.attribute(attr, opsets)
        version = opsets.get(domain, 1)
        inputs, outputs = list(proto.input), list(proto.output)
        return Node(proto.op_type, domain, version, proto.name, inputs, outputs, attrs, refs, proto)

    def attribute(self, attr: AttributeProto, opsets: dict[str, int]) -> Any:
        kinds = AttributeProto
        match attr.type:
            case kinds.FLOAT:
                return attr.f
            case kinds.INT:
                return attr.i
            case kinds.STRING:
                return attr.s.decode("utf-8", "replace")
            case kinds.FLOATS:
                return list(attr.floats)
            case kinds.INTS:
                return list(attr.ints)
            case kinds.STRINGS:
                return [s.decode("utf-8", "replace") for s in attr.strings]
            case kinds.TENSOR:
                return self.tensor(attr.t)
            case kinds.TENSORS:
                return [self.tensor(t) for t in attr.tensors]
            case kinds.SPARSE_TENSOR:
                return self.sparse(attr.sparse_tensor)
            case kinds.GRAPH:
                return self.graph(attr.g, opsets)
            case kinds.GRAPHS:
                return [self.graph(g, opsets) for g in attr.graphs]
            case _:
                return None

    def tensor(self, proto: TensorProto, raw: memoryview | None = None) -> np.ndarray:
        dims = tuple(proto.dims)
        if proto.data_location == TensorProto.EXTERNAL:
            raw = self.external(proto)
        if raw is None or proto.data_type not in _PLAIN:
            if raw is not None:
                proto.raw_data = bytes(raw)
                proto.data_location = TensorProto.DEFAULT
                del proto.external_data[:]
            return numpy_helper.to_array(proto)
        dtype = _PLAIN[proto.data_type]
        count = int(np.prod(dims, dtype=np.int64))
        need = count * dtype.itemsize
        if len(raw) < need:
            raise OnnxError(f"weight {proto.name!r}: {len(raw)} bytes, {list(dims)} of {dtype} needs {need}")
        return np.frombuffer(raw, dtype, count).reshape(dims)

    def external(self, proto: TensorProto) -> memoryview:
        entry = {item.key: item.value for item in proto.external_data}
        location = entry.get("location", "")
        path = (self.folder / location).resolve()
        if not location or not path.is_relative_to(self.folder.resolve()):
            raise OnnxError(f"weight {proto.name!r}: external data {location!r} is outside the model's folder")
        if not path.is_file():
            raise OnnxError(f"weight {proto.name!r}: external data file {location!r} is not beside the model")
        if path not in self.maps:
            with path.open("rb") as file:
                empty = path.stat().st_size == 0
                mapped = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.maps[path] = memoryview(mapped)
        data = self.maps[path]
        offset = int(entry.get("offset", 0))
        size = int(entry.get("length", len(data) - offset))
        if offset < 0 or size < 0 or offset + size > len(data):
            raise OnnxError(f"weight {proto.name!r}: bytes {offset}..{offset + size} are past the end of {location!r}")
        return data[offset : offset + size]

    def sparse(self, proto: onnx.SparseTensorProto) -> np.ndarray:
        values, indices = self.tensor(proto.values), self.tensor(proto.indices)
        dense = np.zeros(tuple(proto.dims), values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        return dense


def _plain_types() -> dict[int, np.dtype]:
    """ONNX types whose raw data is numpy's own bytes (sub-byte types are packed, strings are not raw)."""
    names = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL COMPLEX64 COMPLEX128"
    numbers = [TensorProto.DataType.Value(name) for name in names.split()]
    return {number: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)) for number in numbers}


_PLAIN = _plain_types()


def _domain(domain: str) -> str:
    return "" if domain in STANDARD else domain


def _opsets(imports: Any) -> dict[str, int]:
    return {_domain(item.domain): item.version for item in imports}


def value_info(proto: onnx.ValueInfoProto) -> ValueInfo:
    """The declared type of a graph input or output."""
    kind = proto.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return ValueInfo(proto.name, None, None, kind.removesuffix("_type"))
    tensor = proto.type.tensor_type
    dtype = None
    if tensor.elem_type:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape"):
        return ValueInfo(proto.name, dtype, None)
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value" and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif which == "dim_param" and dim.dim_param.strip(" ?"):
            dims.append(dim.dim_param)
        else:
            dims.append(None)
    return ValueInfo(proto.name, dtype, tuple(dims))


def with_attrs(node: Node, attrs: dict[str, Any]) -> Node:
    """The node with these attributes in place of its own and its references to a function's."""
    proto = None
    if node.proto is not None:
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        del proto.attribute[:]
        kept = {a.name: a for a in node.proto.attribute if not a.ref_attr_name}
        for name, value in attrs.items():
            if name in kept:
                proto.attribute.append(kept[name])
            elif value is not None and not isinstance(value, Graph):
                made = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
                proto.attribute.append(onnx.helper.make_attribute(name, made))
    return Node(node.op, node.domain, node.version, node.name, node.inputs, node.outputs, attrs, {}, proto)


def builtin_function(node: Node, input_types: list[onnx.TypeProto]) -> Function | None:
    """The body that the ONNX standard itself defines for a node's op, if any."""
    try:
        schema: Any = onnx.defs.get_schema(node.op, node.version, node.domain)
        if not (schema.has_function or schema.context_dependent_function_opset_versions):
            # The library keeps bodies for an op's newest version only; ops defined by a body have kept their meaning.
            schema = onnx.defs.get_schema(node.op, node.domain)
    except onnx.defs.SchemaError:
        return None
    proto = _builtin_proto(schema, node, input_types)
    if proto is None or not proto.node:
        return None
    opsets = {"": node.version} | _opsets(proto.opset_import)
    reader = _Reader(Path(), {})
    defaults = {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }
    defaults |= {a.name: reader.attribute(a, opsets) for a in proto.attribute_proto}
    return Function(list(proto.input), list(proto.output), defaults, [reader.node(n, opsets) for n in proto.node])


def _builtin_proto(schema: Any, node: Node, input_types: list[onnx.TypeProto]) -> onnx.FunctionProto | None:
    if schema.has_function:
        body = schema.get_function_with_opset_version(_at_most(schema.function_opset_versions, node.version))
    elif schema.has_context_dependent_function and node.proto is not None:
        version = _at_most(schema.context_dependent_function_opset_versions, node.version)
        body = schema.get_context_dependent_function_with_opset_version(
            version, node.proto.SerializeToString(), [t.SerializeToString() for t in input_types]
        )
    else:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    return proto


def _at_most(versions: list[int], wanted: int) -> int:
    return max((v for v in versions if v <= wanted), default=min(versions))
