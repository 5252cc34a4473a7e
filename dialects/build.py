"""Ops as MLIR: loads the dialect, creates ops with inferred types, reads operands and attributes back."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import irdl

from . import dims, types
from .op import OPS, Attribute, OpDef, OpError
from .types import TensorType

_SEGMENTS = "operandSegmentSizes"
# IRDL gives all values of a variadic operand one type, which concat's have not: in IRDL a variadic operand is so many
# optional ones, each with a constraint of its own. More values than slots are nested; the variadic ops are associative.
_VARIADIC_SLOTS = 16
_NOT_FAMILIES = {
    "op", "build", "builder", "dims", "types", "val", "machine", "narrow", "reference", "verify", "views", "weights",
}


@cache
def load_ops() -> dict[str, OpDef]:
    """All declared ops by name; the folder is the registry."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name not in _NOT_FAMILIES and not module.ispkg:
            importlib.import_module(f"{__package__}.{module.name}")
    return OPS


def _has_segments(definition: OpDef) -> bool:
    return any(o.is_variadic for o in definition.operands) or sum(o.is_optional for o in definition.operands) > 1


def irdl_text() -> str:
    """The IRDL definition of the dialect, one operation a declared op."""
    lines = ["irdl.dialect @mlc {"]
    for definition in load_ops().values():
        lines.append(f"  irdl.operation @{definition.name} {{")
        operands: list[str] = []
        results: list[str] = []
        for operand in definition.operands:
            for slot in range(_VARIADIC_SLOTS) if operand.is_variadic else [""]:
                lines.append(f"    %o{len(operands)} = irdl.any")
                variadicity = "optional " if operand.is_variadic or operand.is_optional else ""
                operands.append(f"{operand.name}{slot}: {variadicity}%o{len(operands)}")
        for index in range(len(definition.results)):
            lines.append(f"    %r{index} = irdl.any")
            results.append(f"out{index}: %r{index}")
        lines.append(f"    irdl.operands({', '.join(operands)})")
        lines.append(f"    irdl.results({', '.join(results)})")
        required = [a for a in definition.attributes if not a.is_mark]
        if required:
            for index, _ in enumerate(required):
                lines.append(f"    %a{index} = irdl.any")
            names = ", ".join(f'"{a.name}" = %a{i}' for i, a in enumerate(required))
            lines.append(f"    irdl.attributes {{ {names} }}")
        lines.append("  }")
    return "\n".join([*lines, "}"])


def make_context() -> ir.Context:
    """A context with the mlc dialect loaded. Threading is off: modules are small and determinism matters."""
    # The bindings look for a Python module a dialect whenever they meet one of its ops, and do not remember a miss.
    sys.modules.setdefault("mlir.dialects.mlc", ModuleType("mlir.dialects.mlc"))
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        irdl.load_dialects(ir.Module.parse(irdl_text()))
    return context


def to_attr(kind: str, value: Any) -> ir.Attribute:
    """An attribute of declared `kind` (see dialects/op.py) from its Python value."""
    if kind == "int":
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))
    if kind == "float":
        return ir.FloatAttr.get(ir.F64Type.get(), float(value))
    if kind in ("bool", "Mark"):
        return ir.BoolAttr.get(bool(value))
    if kind == "list[int]":
        return ir.DenseI64ArrayAttr.get([int(v) for v in value])
    if kind == "list[float]":
        return ir.DenseF64ArrayAttr.get([float(v) for v in value])
    if kind == "Size":
        return _size_attr(value)
    if kind == "Dims":
        return ir.ArrayAttr.get([_size_attr(v) for v in value])
    if kind == "Array":
        return _array_attr(np.asarray(value))
    assert kind in ("str", "DType"), kind
    if kind == "DType" and value not in types.DTYPES:
        raise OpError(f"'{value}' is no element type; there are: {', '.join(types.DTYPES)}")
    return ir.StringAttr.get(value)


def _size_attr(size: dims.Size) -> ir.Attribute:
    if isinstance(size, dims.Dim):
        return ir.StringAttr.get(str(size))
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(size))


def _array_attr(array: np.ndarray) -> ir.Attribute:
    """Raw bytes with type and shape, so that every dtype and NaN payload survives."""
    type_ = TensorType(types.dtype_of_numpy(array.dtype), array.shape)
    return ir.ArrayAttr.get(
        [ir.TypeAttr.get(type_.to_ir()), ir.StringAttr.get(np.ascontiguousarray(array).tobytes().hex())]
    )


def from_attr(kind: str, attr: ir.Attribute) -> Any:
    """The inverse of `to_attr`."""
    if kind in ("int", "float", "bool", "str", "DType"):
        wrap = {"int": ir.IntegerAttr, "float": ir.FloatAttr, "bool": ir.BoolAttr}.get(kind, ir.StringAttr)
        return wrap(attr).value
    if kind == "list[int]":
        return [int(v) for v in ir.DenseI64ArrayAttr(attr)]
    if kind == "list[float]":
        return [float(v) for v in ir.DenseF64ArrayAttr(attr)]
    if kind == "Size":
        return _size_from(attr)
    if kind == "Dims":
        return [_size_from(a) for a in ir.ArrayAttr(attr)]
    assert kind == "Array", kind
    type_attr, data = ir.ArrayAttr(attr)
    type_ = types.from_ir(ir.TypeAttr(type_attr).value)
    raw = bytes.fromhex(ir.StringAttr(data).value)
    return np.frombuffer(raw, types.DTYPES[type_.dtype].numpy).reshape(type_.shape)


def _size_from(attr: ir.Attribute) -> dims.Size:
    return dims.parse(ir.StringAttr(attr).value) if isinstance(attr, ir.StringAttr) else ir.IntegerAttr(attr).value


def definition_of(operation: ir.Operation | ir.OpView) -> OpDef | None:
    """The declaration of an mlc op; None for an op of another dialect."""
    name = operation.operation.name
    return load_ops().get(name[4:]) if name.startswith("mlc.") else None


def group_operands(definition: OpDef, values: Sequence[Any], segments: Sequence[int] | None = None) -> list[Any]:
    """Flat operand values as one entry a declared operand: a value, None if absent, a list if variadic."""
    if segments is None:
        flexible = sum(o.is_optional or o.is_variadic for o in definition.operands)
        assert flexible <= 1, definition.name
        spare = len(values) - (len(definition.operands) - flexible)
        segments = [spare if (o.is_optional or o.is_variadic) else 1 for o in definition.operands]
    grouped, at = [], 0
    for operand, count in zip(definition.operands, segments, strict=True):
        part = list(values[at : at + count])
        grouped.append(part if operand.is_variadic else (part[0] if part else None))
        at += count
    return grouped


def operands_of(operation: ir.Operation) -> list[Any]:
    """Operand values of an mlc op, one entry a declared operand."""
    definition = definition_of(operation)
    assert definition is not None
    operation = operation.operation
    segments = list(ir.DenseI32ArrayAttr(operation.attributes[_SEGMENTS])) if _has_segments(definition) else None
    if any(o.is_variadic for o in definition.operands):
        fixed = len(definition.operands) - 1  # the variadic one is last
        counts = segments or []
        segments = [*counts[:fixed], sum(counts[fixed:])]
    return group_operands(definition, list(operation.operands), segments)


def attrs_of(operation: ir.Operation) -> dict[str, Any]:
    """Attribute values of an mlc op as Python values."""
    definition = definition_of(operation)
    assert definition is not None
    attributes = operation.operation.attributes
    return {
        a.name: a.name in attributes if a.is_mark else from_attr(a.kind, attributes[a.name])
        for a in definition.attributes
    }


def type_of(value: ir.Value) -> TensorType:
    return types.from_ir(value.type)


def create(name: str, /, *operands: Any, loc: ir.Location | None = None, **attrs: Any) -> Any:
    """Creates `mlc.<name>` at the insertion point with inferred result types.

    `operands`: one value a declared operand (None: absent); variadic values last, spread. Returns the result, or a
    tuple when the op has several. Raises OpError when operands or attributes do not fit.
    """
    definition = load_ops().get(name)
    if definition is None:
        raise OpError(f"there is no op mlc.{name}")
    grouped = _group_call(definition, operands)
    values = definition.attribute_values(attrs)
    while grouped and isinstance(grouped[-1], list) and len(grouped[-1]) > _VARIADIC_SLOTS:
        many = grouped[-1]
        parts = [many[i : i + _VARIADIC_SLOTS] for i in range(0, len(many), _VARIADIC_SLOTS)]
        grouped[-1] = [p[0] if len(p) == 1 else create(name, *grouped[:-1], *p, loc=loc, **attrs) for p in parts]
    operand_types = [
        [type_of(v) for v in g] if isinstance(g, list) else (None if g is None else type_of(g)) for g in grouped
    ]
    result_types = definition.infer(operand_types, values)
    attributes = {a.name: to_attr(a.kind, values[a.name]) for a in definition.attributes if _is_written(a, values)}
    flat: list[ir.Value] = []
    for group in grouped:
        flat.extend(group if isinstance(group, list) else [] if group is None else [group])
    if _has_segments(definition):
        counts: list[int] = []
        for group in grouped:
            used = len(group) if isinstance(group, list) else int(group is not None)
            counts.extend([1] * used + [0] * (_VARIADIC_SLOTS - used) if isinstance(group, list) else [used])
        attributes[_SEGMENTS] = ir.DenseI32ArrayAttr.get(counts)
    operation = ir.Operation.create(
        f"mlc.{name}", results=[t.to_ir() for t in result_types], operands=flat, attributes=attributes, loc=loc
    )
    results = list(operation.results)
    return results[0] if len(results) == 1 else tuple(results)


def _is_written(attribute: Attribute, values: dict[str, Any]) -> bool:
    return not attribute.is_mark or bool(values[attribute.name])


def _group_call(definition: OpDef, operands: Sequence[Any]) -> list[Any]:
    grouped: list[Any] = []
    for index, operand in enumerate(definition.operands):
        if operand.is_variadic:
            grouped.append(list(operands[index:]))
            return grouped
        grouped.append(operands[index] if index < len(operands) else None)
    if len(operands) > len(definition.operands):
        raise OpError(f"mlc.{definition.name} takes {len(definition.operands)} operands, got {len(operands)}")
    return grouped


def symbol_ranges(module: ir.Module) -> dict[str, tuple[int, int]]:
    """Symbols of the module with their ranges, in order."""
    attributes = module.operation.attributes
    if "mlc.symbols" not in attributes:
        return {}
    return {n.name: tuple(ir.DenseI64ArrayAttr(n.attr)) for n in ir.DictAttr(attributes["mlc.symbols"])}


def sizes_from_data(module: ir.Module) -> dict[str, dims.Size]:
    """Symbols that `mlc.read_size` gives values while the model runs, each with its greatest value, in program
    order."""
    found: dict[str, dims.Size] = {}

    def note(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "mlc.read_size":
            attrs = attrs_of(operation)
            if attrs["size"] != attrs["bound"]:
                found[str(attrs["size"])] = dims.most(attrs["bound"], found)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return found


def loop_marker(operation: ir.Operation) -> tuple[str, int] | None:
    """Which loop op this is, or that a kernel is made of, and the loop's number: ("loop_test", 0); None for others."""
    operations = [operation]
    if operation.name == "func.func":
        operations = [op.operation for op in operation.regions[0].blocks[0].operations]
    for op in operations:
        if op.name.startswith("mlc.loop_"):
            return op.name.removeprefix("mlc."), attrs_of(op)["loop"]
    return None
