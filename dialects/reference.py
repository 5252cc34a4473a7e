"""Runs a module on numpy, each op by its own body: the independent meaning that compiled code is judged against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlir import ir

from . import dims
from .build import attrs_of, definition_of, operands_of, sizes_from_data, type_of
from .types import DTYPES
from .weights import store_of


def solve_symbols(shapes: Sequence[tuple[dims.Size, ...]], actual: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Symbol values that make each declared shape equal its actual one. Raises ValueError when none do."""
    values: dict[str, int] = {}
    pending = [(s, n) for shape, sizes in zip(shapes, actual, strict=True) for s, n in zip(shape, sizes, strict=True)]
    for size, number in sorted(pending, key=lambda p: len(str(p[0]))):
        unknown = [s for s in dims.symbols(size) if s not in values]
        if len(unknown) == 1:
            zero = dims.evaluate(dims.substitute(size, {unknown[0]: 0}), values)
            slope = dims.evaluate(dims.substitute(size, {unknown[0]: 1}), values) - zero
            values[unknown[0]] = (number - zero) // slope if slope else number
    for size, number in pending:
        if dims.evaluate(size, values) != number:
            raise ValueError(f"a dimension is {number}, expected {size} with {values}")
    return values


def _concrete(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, dims.Dim):
        return dims.evaluate(value, symbols)
    return [_concrete(v, symbols) for v in value] if isinstance(value, list) else value


def run_op(
    operation: ir.Operation, inputs: list[Any], symbols: Mapping[str, int], module: ir.Module
) -> list[np.ndarray]:
    """One op on numpy arrays; narrow floats come and go as their own dtype."""
    definition = definition_of(operation)
    assert definition is not None
    if definition.name == "weight":
        return [store_of(module).get(attrs_of(operation)["name"])]
    flat: list[Any] = []
    for declared, value in zip(definition.operands, inputs, strict=True):
        flat.extend(value) if declared.is_variadic else flat.append(value)
    attrs = {k: _concrete(v, symbols) for k, v in attrs_of(operation).items()}
    with np.errstate(all="ignore"):
        result = definition.reference(*flat, **attrs)
    results = result if isinstance(result, tuple) else (result,)
    out = []
    for value, array in zip(operation.results, results, strict=True):
        type_ = type_of(value)
        out.append(np.asarray(array).astype(DTYPES[type_.dtype].numpy, copy=False))
    return out


def _bind_size(operation: ir.Operation, value: int, symbols: dict[str, int]) -> None:
    """What `mlc.read_size` does beside its result. Raises ValueError for a value that it refuses."""
    attrs = attrs_of(operation)
    is_known, most = attrs["size"] == attrs["bound"], dims.evaluate(attrs["bound"], symbols)
    if value != most if is_known else not 0 <= value <= most:
        raise ValueError(f"the size {attrs['size']} is {value}, expected {'' if is_known else '0..'}{most}")
    if not is_known:
        symbols[str(attrs["size"])] = value


def run_function(module: ir.Module, inputs: Sequence[np.ndarray], name: str = "forward") -> list[np.ndarray]:
    """Runs function `name` of an L0 or L1 module. Raises ValueError for shapes that no symbol values explain."""
    functions = {
        ir.StringAttr(f.attributes["sym_name"]).value: f
        for f in module.body.operations
        if f.operation.name == "func.func"
    }
    main = functions[name]
    block = main.regions[0].blocks[0]
    declared = [type_of(a).shape for a in block.arguments]
    symbols = solve_symbols(declared, [np.shape(x) for x in inputs])
    symbols |= {name: dims.evaluate(most, symbols) for name, most in sizes_from_data(module).items()}
    return _run_block(block, [np.asarray(x) for x in inputs], symbols, module, functions)


def _run_block(
    block: ir.Block, inputs: list, symbols: dict[str, int], module: ir.Module, functions: dict
) -> list[np.ndarray]:
    env: dict[ir.Value, np.ndarray] = dict(zip(block.arguments, inputs, strict=True))

    def read(value: Any) -> Any:
        return [env[v] for v in value] if isinstance(value, list) else (None if value is None else env[value])

    for operation in block.operations:
        op = operation.operation
        if op.name == "func.return":
            return [env[v] for v in op.operands]
        if op.name == "func.call":
            callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            inner = callee.regions[0].blocks[0]
            results = _run_block(inner, [env[v] for v in op.operands], symbols, module, functions)
        else:
            results = run_op(op, [read(v) for v in operands_of(op)], symbols, module)
            if op.name == "mlc.read_size":
                _bind_size(op, int(results[0]), symbols)
        env.update(zip(op.results, results, strict=True))
    raise ValueError("a function without func.return")
