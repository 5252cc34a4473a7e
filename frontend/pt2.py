"""Reads `.pt2` files of torch.export: a zip of JSON and raw weights. Never imports torch.

Source: torch/_export/serde/schema.py, schema 8.x, written by torch 2.8 and later.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from mlc.frontend.record import (
    Arg,
    Graph,
    Input,
    Loc,
    Node,
    Output,
    Program,
    ReadError,
    Ref,
    Scalar,
    Size,
    Value,
    Weight,
    call_tree,
    tree_of,
    user_loc,
)
from mlc.frontend.symexpr import read_expr

SCHEMA_MAJOR = 8
HIGHER_ORDER = "higher_order."

# ScalarType of the schema, by number.
DTYPES: dict[int, str] = {
    1: "u8", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "f16", 7: "f32", 8: "f64", 10: "c64", 11: "c128", 12: "bool",
    13: "bf16", 28: "u16", 29: "f8e4m3fn", 30: "f8e5m2", 31: "f8e4m3fnuz", 32: "f8e5m2fnuz", 33: "f8e8m0fnu",
    34: "u32", 35: "u64",
}  # fmt: skip
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
# What zipfile raises for archives with wrong bytes in them.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, UnicodeDecodeError, NotImplementedError, RuntimeError)
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def read_pt2(path: str | os.PathLike[str], model: str | None = None) -> Program:
    """The program in a `.pt2` file; weights stay mapped from it.

    `model` chooses among several in one archive. Raises: ReadError for what is no such file, truncated, or of another
    schema.
    """
    archive = _Archive(Path(path))
    document = archive.model(model)
    version = document.get("schema_version", {})
    if version.get("major") != SCHEMA_MAJOR:
        found = f"{version.get('major', '?')}.{version.get('minor', '?')}"
        remedy = "export the model again with torch 2.8 or later"
        raise ReadError(f"{path}: schema {found} is not one that mlc reads ({SCHEMA_MAJOR}.x); {remedy}")
    try:
        return _program(str(path), document, archive)
    except ReadError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise ReadError(f"{path}: the model description is damaged ({type(error).__name__}: {error})") from error


class _Archive:
    """The zip: JSON members read, raw members mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.payloads: dict[str, Weight] = {}
        try:
            self.zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise ReadError(f"{path}: no such file") from None
        except _DAMAGE as error:
            with open(path, "rb") as file:
                is_zip = file.read(4) == b"PK\x03\x04"
            what = "the file is truncated or damaged" if is_zip else "not a .pt2 file (it is no zip archive)"
            raise ReadError(f"{path}: {what}: {error}") from None
        self._check_end()
        names = self.zip.namelist()
        if not names:
            raise ReadError(f"{path}: the archive is empty")
        self.root = names[0].split("/")[0] + "/" if all("/" in name for name in names) else ""
        with open(path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _check_end(self) -> None:
        """Refuses a cut file whose last directory is that of an archive inside it (sample inputs are one)."""
        record_bytes = 22 + len(self.zip.comment)
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - record_bytes, 0))
            if file.read(4) != b"PK\x05\x06":
                raise ReadError(f"{self.path}: the file is truncated or damaged: its directory is not at its end")

    def model(self, name: str | None) -> dict[str, Any]:
        """The JSON of the one model (or the named one), after checking that the archive is of torch.export's kind."""
        prefix = f"{self.root}models/"
        members = [member for member in self.zip.namelist() if member.startswith(prefix) and member.endswith(".json")]
        found = sorted(member.removeprefix(prefix)[: -len(".json")] for member in members)
        if not found:
            if any(n.endswith("serialized_exported_program.json") for n in self.zip.namelist()):
                raise ReadError(f"{self.path}: written by a torch before 2.8; export the model again with a newer one")
            hint = " (a torch.save checkpoint: export the module first)" if self._has("data.pkl") else ""
            raise ReadError(f"{self.path}: holds no exported program{hint}")
        name = name or (found[0] if len(found) == 1 else "model")
        if name not in found:
            raise ReadError(f"{self.path}: holds the models {', '.join(found)}; say which")
        if self._has("byteorder") and self.read("byteorder").strip() != b"little":
            raise ReadError(f"{self.path}: weights are stored big-endian, which mlc does not read")
        for kind in ("weights", "constants"):
            self._read_payloads(kind, name)
        return self.json(f"models/{name}.json")

    def _has(self, member: str) -> bool:
        return self.root + member in self.zip.NameToInfo

    def read(self, member: str) -> bytes:
        try:
            return self.zip.read(self.root + member)
        except KeyError:
            raise ReadError(f"{self.path}: the member {member} is missing") from None
        except _DAMAGE as error:
            raise ReadError(f"{self.path}: the file is damaged at {member}: {error}") from None

    def json(self, member: str) -> dict[str, Any]:
        try:
            return json.loads(self.read(member))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ReadError(f"{self.path}: the member {member} is damaged: {error}") from None

    def _read_payloads(self, kind: str, model: str) -> None:
        """Registers the tensors of data/weights or data/constants; pickled ones are missed only if used."""
        member = f"data/{kind}/{model}_{kind}_config.json"
        if not self._has(member):
            return
        for name, payload in self.json(member)["config"].items():
            meta = payload.get("tensor_meta")
            if payload.get("use_pickle") or meta is None:
                continue
            storage, first, count = self._bytes(f"data/{kind}/{payload['path_name']}")
            self.payloads[name] = Weight(
                DTYPES.get(meta["dtype"], "unknown"),
                tuple(_static(size) for size in meta["sizes"]),
                tuple(_static(size) for size in meta["strides"]),
                _static(meta["storage_offset"]),
                storage, first, count,
            )  # fmt: skip

    def _bytes(self, member: str) -> tuple[mmap.mmap | bytes, int, int]:
        """(bytes, first, count) of a member: the map itself where it is stored uncompressed, as torch does."""
        info = self.zip.NameToInfo.get(self.root + member)
        if info is None:
            raise ReadError(f"{self.path}: the member {member} is missing")
        if info.compress_type != zipfile.ZIP_STORED:
            return self.read(member), 0, info.file_size
        if info.header_offset + _LOCAL_HEADER.size > len(self.map):
            raise ReadError(f"{self.path}: the file is truncated or damaged at {member}")
        magic, name_len, extra_len = _LOCAL_HEADER.unpack_from(self.map, info.header_offset)
        first = info.header_offset + _LOCAL_HEADER.size + name_len + extra_len
        if magic != b"PK\x03\x04" or first + info.file_size > len(self.map):
            raise ReadError(f"{self.path}: the file is truncated or damaged at {member}")
        return self.map, first, info.file_size


def _program(source: str, document: dict[str, Any], archive: _Archive) -> Program:
    module = document["graph_module"]
    graph = _graph(module["graph"])
    inputs = [_input_spec(spec, graph, archive) for spec in module["signature"]["input_specs"]]
    outputs = [_output_spec(spec) for spec in module["signature"]["output_specs"]]
    weights = {}
    for spec in inputs:
        if spec.kind in ("param", "buffer", "constant"):
            if spec.target not in archive.payloads:
                raise ReadError(f"{source}: the weight {spec.target!r} is not stored as raw bytes (a tensor subclass?)")
            weights[spec.target] = archive.payloads[spec.target]
    symbols = {
        name: (limits.get("min_val") or 0, limits.get("max_val"))
        for name, limits in document.get("range_constraints", {}).items()
    }
    program = Program(source, graph, inputs, outputs, symbols, weights)
    if trees := document.get("mlc_trees"):  # a file that pt2_save.py wrote
        program.input_tree, program.output_tree = trees["input"], trees["output"]
    signature = next((e["signature"] for e in module["module_call_graph"] if e["fqn"] == ""), None)
    if signature is not None:
        fields = {k: v["field_names"] for k, v in module.get("treespec_namedtuple_fields", {}).items()}
        passed = tree_of(json.loads(signature["in_spec"])[1], fields)
        program.input_tree = call_tree(passed, signature.get("forward_arg_names"), inputs)
        program.output_tree = tree_of(json.loads(signature["out_spec"])[1], fields)
    return program


def _input_spec(spec: dict[str, Any], graph: Graph, archive: _Archive) -> Input:
    [(kind, body)] = [(k, v) for k, v in spec.items() if v is not None]
    match kind:
        case "parameter":
            return Input("param", body["arg"]["name"], body["parameter_name"])
        case "buffer":
            return Input("buffer", body["arg"]["name"], body["buffer_name"])
        case "tensor_constant":
            return Input("constant", body["arg"]["name"], body["tensor_constant_name"])
        case "constant_input":
            return Input("fixed", body["name"], value=_arg(body["value"]))
        case "user_input":
            arg = _arg(body["arg"])
            return Input("user", arg.name) if isinstance(arg, Ref) else Input("fixed", "", value=arg)
    raise ReadError(f"{archive.path}: the program takes a {kind} as input, which mlc does not support")


def _output_spec(spec: dict[str, Any]) -> Output:
    [(kind, body)] = [(k, v) for k, v in spec.items() if v is not None]
    match kind:
        case "user_output":
            return Output("user", _arg(body["arg"]))
        case "loss_output":
            return Output("user", Ref(body["arg"]["name"]))
        case "buffer_mutation":
            return Output("buffer", Ref(body["arg"]["name"]), body["buffer_name"])
        case "parameter_mutation":
            return Output("buffer", Ref(body["arg"]["name"]), body["parameter_name"])
        case "user_input_mutation":
            return Output("user_input", Ref(body["arg"]["name"]), body["user_input_name"])
    raise ReadError(f"the program returns a {kind}, which mlc does not support")


def _graph(body: dict[str, Any]) -> Graph:
    values = {name: _tensor_value(name, meta) for name, meta in body["tensor_values"].items()}
    for table, dtype in (("sym_int_values", "i64"), ("sym_float_values", "f64"), ("sym_bool_values", "bool")):
        for name, sym in body.get(table, {}).items():
            values[name] = Value(name, dtype, None, _symbolic(sym, dtype))
    nodes = [_node(node) for node in body["nodes"]]
    return Graph([_arg(a) for a in body["inputs"]], [_arg(a) for a in body["outputs"]], nodes, values)


def _tensor_value(name: str, meta: dict[str, Any]) -> Value:
    return Value(name, DTYPES.get(meta["dtype"], "unknown"), tuple(_size(size) for size in meta["sizes"]))


def _size(size: dict[str, Any]) -> Size:
    return size["as_int"] if size.get("as_int") is not None else read_expr(size["as_expr"]["expr_str"])


def _static(size: dict[str, Any]) -> int:
    if (value := size.get("as_int")) is None:
        raise ReadError(f"a stored tensor has a symbolic size: {size}")
    return value


def _symbolic(sym: dict[str, Any], dtype: str) -> Size | float | bool | None:
    """A symbolic scalar's expression; None for floats and bools that are none (their value is computed at run time)."""
    for key in ("as_int", "as_float", "as_bool"):
        if sym.get(key) is not None:
            return sym[key]
    if dtype != "i64":
        return None
    try:
        return read_expr(sym["as_expr"]["expr_str"])
    except ReadError:
        return None  # an intermediate that no tensor's shape uses may be anything


def _node(body: dict[str, Any]) -> Node:
    target = body["target"]
    for prefix in ("torch.ops.", "_"):
        target = target.removeprefix(prefix)
    args, kwargs = [], {}
    for entry in body["inputs"]:
        # Files of minor versions before 8.3 have no kind; aten schemas name all their arguments.
        if entry.get("kind") == 2 or (entry.get("kind") is None and entry["name"]):
            kwargs[entry["name"]] = _arg(entry["arg"])
        else:
            args.append(_arg(entry["arg"]))
    outputs = [_output(arg) for arg in body["outputs"]]
    return Node(target, args, kwargs, outputs, _loc(body.get("metadata", {})))


def _output(arg: dict[str, Any]) -> str | list[str | None] | None:
    value = _arg(arg)
    if isinstance(value, list):
        return [item.name if isinstance(item, Ref) else None for item in value]
    return value.name if isinstance(value, Ref) else None


def _loc(metadata: dict[str, str]) -> Loc:
    frames = [(file, int(line), function) for file, line, function in _FRAME.findall(metadata.get("stack_trace", ""))]
    entries = [entry.split(",") for entry in metadata.get("nn_module_stack", "").split(";")]
    module = entries[-1][1] if len(entries[-1]) >= 3 else ""
    return user_loc(frames, "" if module.startswith("_empty_nn_module") else module)


def _arg(body: dict[str, Any]) -> Arg:
    """One tagged argument of the schema as a plain Python value."""
    [(kind, value)] = [(k, v) for k, v in body.items() if v is not None] or [("as_none", True)]
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return Ref(value["name"])
        case "as_tensors":
            return [Ref(item["name"]) for item in value]
        case "as_nested_tensors":
            return [[Ref(item["name"]) for item in row] for row in value]
        case "as_optional_tensor":
            return _arg(value)
        case "as_list" | "as_optional_tensors" | "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
            return [_arg(item) for item in value]
        case "as_sym_int" | "as_sym_bool" | "as_sym_float":
            return _arg(value)
        case "as_name":
            return Ref(value)
        case "as_scalar_type":
            return Scalar(DTYPES.get(value, "unknown"))
        case "as_device":
            return value["type"]
        case "as_graph":
            return _graph(value["graph"])
        case "as_complex":
            return complex(value["real"], value["imag"])
        case "as_string_to_argument":
            return {key: _arg(item) for key, item in value.items()}
        case "as_custom_obj":
            raise ReadError(f"the program uses an object of class {value['class_fqn']}, which mlc does not support")
        case "as_float":
            return float(value)  # JSON text "Infinity" and "NaN" come as strings
    return value
