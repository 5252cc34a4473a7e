"""Writes a program record as a `.pt2` that `pt2.py` reads back, higher-order ops kept (torch's save refuses some).

The schema is torch.export's (8.x). Trees are written in mlc's own form, since torch's pytree text names Python classes.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.exported_program import read_exported_program
from mlc.frontend.pt2 import DTYPES, SCHEMA_MAJOR
from mlc.frontend.record import Arg, Graph, Input, Node, Output, Program, Ref, Scalar, Size, Value, Weight

if TYPE_CHECKING:
    import torch

_NUMBERS = {name: number for number, name in DTYPES.items()}
# Fixed, so that saving twice gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def save(program: torch.export.ExportedProgram, path: str | os.PathLike[str]) -> None:
    """Saves an exported program, weights and all, for `mlc.compile` to read without torch."""
    write_pt2(read_exported_program(program), path)


def write_pt2(program: Program, path: str | os.PathLike[str]) -> None:
    """Writes a record; weights are stored contiguously and uncompressed."""
    config = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for position, (name, weight) in enumerate(program.weights.items()):
            member = f"weight_{position}"
            _write(archive, f"data/weights/{member}", np.ascontiguousarray(weight.array()).tobytes())
            config[name] = {"path_name": member, "use_pickle": False, "tensor_meta": _weight_meta(weight)}
        _write_json(archive, "data/weights/model_weights_config.json", {"config": config})
        _write_json(archive, "models/model.json", _document(program))
        _write(archive, "byteorder", b"little")
        _write(archive, "archive_format", b"pt2")


def _write(archive: zipfile.ZipFile, member: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(f"model/{member}", _DATE), data)


def _write_json(archive: zipfile.ZipFile, member: str, value: Any) -> None:
    _write(archive, member, json.dumps(value).encode())


def _document(program: Program) -> dict[str, Any]:
    signature = {
        "input_specs": [_input_spec(spec) for spec in program.inputs],
        "output_specs": [_output_spec(spec) for spec in program.outputs],
    }
    symbols = {name: {"min_val": low, "max_val": high} for name, (low, high) in program.symbols.items()}
    return {
        "graph_module": {"graph": _graph(program.graph), "signature": signature, "module_call_graph": []},
        "mlc_trees": {"input": program.input_tree, "output": program.output_tree},
        "range_constraints": symbols,
        "schema_version": {"major": SCHEMA_MAJOR, "minor": 0},
    }


def _input_spec(spec: Input) -> dict[str, Any]:
    named = {"arg": {"name": spec.name}}
    match spec.kind:
        case "param":
            return {"parameter": {**named, "parameter_name": spec.target}}
        case "buffer":
            return {"buffer": {**named, "buffer_name": spec.target, "persistent": True}}
        case "constant":
            return {"tensor_constant": {**named, "tensor_constant_name": spec.target}}
        case "fixed":
            return {"constant_input": {"name": spec.name, "value": _argument(spec.value)}}
    return {"user_input": {"arg": _argument(Ref(spec.name))}}


def _output_spec(spec: Output) -> dict[str, Any]:
    match spec.kind:
        case "buffer":
            return {"buffer_mutation": {"arg": {"name": spec.arg.name}, "buffer_name": spec.target}}
        case "user_input":
            return {"user_input_mutation": {"arg": {"name": spec.arg.name}, "user_input_name": spec.target}}
    return {"user_output": {"arg": _argument(spec.arg)}}


def _weight_meta(weight: Weight) -> dict[str, Any]:
    strides: list[int] = []
    step = 1
    for size in reversed(weight.shape):
        strides.insert(0, step)
        step *= size
    return {
        "dtype": _NUMBERS[weight.dtype],
        "sizes": [_size(size) for size in weight.shape],
        "strides": [_size(stride) for stride in strides],
        "storage_offset": _size(0),
    }


def _size(size: Size) -> dict[str, Any]:
    return {"as_int": size} if isinstance(size, int) else {"as_expr": {"expr_str": size}}


def _graph(graph: Graph) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {
        "tensor_values": {}, "sym_int_values": {}, "sym_float_values": {}, "sym_bool_values": {}
    }  # fmt: skip
    for value in graph.values.values():
        table, entry = _value(value)
        tables[table][value.name] = entry
    return {
        "inputs": [_argument(arg) for arg in graph.inputs],
        "outputs": [_argument(arg) for arg in graph.outputs],
        "nodes": [_node(node) for node in graph.nodes],
        **tables,
    }


def _value(value: Value) -> tuple[str, dict[str, Any]]:
    """(table, entry) of a tensor or a symbolic scalar."""
    if value.shape is not None:
        return "tensor_values", {"dtype": _NUMBERS.get(value.dtype, 0), "sizes": [_size(size) for size in value.shape]}
    match value.dtype:
        case "bool":
            return "sym_bool_values", {"as_bool": value.expr}
        case "f64":
            return "sym_float_values", {"as_float": value.expr}
    # A number that no expression of sizes gives is spelt as one that the reader gives up on, too.
    return "sym_int_values", _size("?" if value.expr is None else value.expr)  # type: ignore[arg-type]


def _node(node: Node) -> dict[str, Any]:
    inputs = [{"name": "", "arg": _argument(arg), "kind": 1} for arg in node.args]
    inputs += [{"name": name, "arg": _argument(arg), "kind": 2} for name, arg in node.kwargs.items()]
    outputs = []
    for output in node.outputs:
        if isinstance(output, list):
            outputs.append(_argument([None if name is None else Ref(name) for name in output]))
        else:
            outputs.append(_argument(None if output is None else Ref(output)))
    loc = node.loc
    metadata = {"nn_module_stack": f"L__self__,{loc.module},Module"}
    if loc.file:
        metadata["stack_trace"] = f'File "{loc.file}", line {loc.line}, in {loc.function}\n    '
    return {"target": node.target, "inputs": inputs, "outputs": outputs, "metadata": metadata}


def _argument(arg: Arg) -> dict[str, Any]:
    """A plain value as one tagged argument; mixed lists, which the schema has no tag for, as "as_list"."""
    match arg:
        case None:
            return {"as_none": True}
        case bool():
            return {"as_bool": arg}
        case int():
            return {"as_int": arg}
        case float():
            return {"as_float": arg}
        case str():
            return {"as_string": arg}
        case complex():
            return {"as_complex": {"real": arg.real, "imag": arg.imag}}
        case Ref():
            return {"as_tensor": {"name": arg.name}}
        case Scalar():
            return {"as_scalar_type": _NUMBERS.get(arg.dtype, 0)}
        case Graph():
            return {"as_graph": {"name": "", "graph": _graph(arg)}}
        case dict():
            return {"as_string_to_argument": {key: _argument(item) for key, item in arg.items()}}
    return {"as_list": [_argument(item) for item in arg]}
