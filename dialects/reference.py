"""Runs a module on numpy, each op by its own body: the independent meaning that compiled code is judged against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlir import ir

from . import dims
from .build import attrs_of, definition_of, loop_marker, operands_of, sizes_from_data, type_of
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

    operations = [operation.operation for operation in block.operations]
    loops = _Loops(operations, functions)
    step = 0
    while step < len(operations):
        op = operations[step]
        if op.name == "func.return":
            return [env[v] for v in op.operands]
        if op.name == "func.call":
            inner = _callee(op, functions).regions[0].blocks[0]
            results = _run_block(inner, [env[v] for v in op.operands], symbols, module, functions)
        else:
            results = run_op(op, [read(v) for v in operands_of(op)], symbols, module)
            if op.name == "mlc.read_size":
                _bind_size(op, int(results[0]), symbols)
        env.update(zip(op.results, results, strict=True))
        step = loops.after(step, env)
    raise ValueError("a function without func.return")


def _callee(call: ir.Operation, functions: dict) -> ir.Operation:
    return functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value].operation


class _Loops:
    """Where to go on behind each op or call of a block with loops."""

    def __init__(self, operations: Sequence[ir.Operation], functions: dict) -> None:
        self.operations = operations
        self.steps: dict[tuple[str, int], list[int]] = {}
        self.markers: dict[int, tuple[str, int]] = {}
        for step, op in enumerate(operations):
            marker = loop_marker(_callee(op, functions) if op.name == "func.call" else op)
            if marker is not None:
                self.markers[step] = marker
                self.steps.setdefault(marker, []).append(step)
        whole = {loop for kind, loop in self.steps if kind == "loop_begin" and ("loop_end", loop) in self.steps}
        self.markers = {step: marker for step, marker in self.markers.items() if marker[1] in whole}

    def after(self, step: int, env: dict[ir.Value, np.ndarray]) -> int:
        """The step that follows; the states are moved on in `env`."""
        kind, loop = self.markers.get(step, ("", 0))
        ends = self.steps.get(("loop_end", loop), [])
        if kind == "loop_test" and not env[self.operations[step].results[0]]:
            for end in ends:
                env[self.operations[end].results[0]] = env[self.operations[end].operands[0]]
            return ends[-1] + 1
        if kind == "loop_end" and step == ends[-1]:
            for end in ends:
                env[self.operations[end].operands[0]] = env[self.operations[end].results[0]]
            return self.steps["loop_begin", loop][-1] + 1
        return step + 1
