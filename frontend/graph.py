"""GraphBuilder: what both frontends build `@forward` with: values by name, weights, locations, symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlc.dialects import build, dims, types
from mlc.dialects.builder import SMALL_CONSTANT_ELEMENTS, OpBuilder, Value
from mlc.dialects.types import TensorType
from mlc.dialects.weights import WeightStore
from mlir import ir


class GraphBuilder(OpBuilder):
    """Builds one module with one `@forward`.

    Use: `g = GraphBuilder(symbols)`, `x = g.input("x", "f32", (s, 4))` for every input, then ops (`g.add(a, b)`,
    `g.op("softmax", x, axis=-1)`), then `g.finish([("y", y)])`, which returns the module.
    `g.loc` is the location that new ops take; set it before each node.
    """

    def __init__(self, symbols: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.context = build.make_context()
        self.symbols = dict(symbols or {})
        self.weights = WeightStore()
        with self.context:
            self.loc = ir.Location.unknown()
            self.module = ir.Module.create(self.loc)
        self.loop_count = self.open_loops = 0  # loops so far, and how many the op at hand is in
        self._inputs: list[tuple[str, TensorType]] = []
        self._states: list[tuple[str, TensorType, str]] = []  # the last one names the weight that it begins with
        self._weight_values: dict[str, Value] = {}
        self._function: ir.Operation | None = None
        self.block: ir.Block | None = None

    # inputs and outputs ------------------------------------------------------------------------------------------
    def declare_inputs(self, inputs: Sequence[tuple[str, str, Sequence[dims.Size]]]) -> list[Value]:
        """Opens `@forward` with these (name, dtype, shape) inputs; called once, before any op."""
        self._inputs = [(name, TensorType(dtype, tuple(shape))) for name, dtype, shape in inputs]
        with self.context, self.loc:
            arguments = [t.to_ir() for _, t in self._inputs]
            signature = ir.TypeAttr.get(ir.FunctionType.get(arguments, []))
            with ir.InsertionPoint(self.module.body):
                self._function = ir.Operation.create(
                    "func.func", regions=1,
                    attributes={"sym_name": ir.StringAttr.get("forward"), "function_type": signature},
                )
            self.block = ir.Block.create_at_start(self._function.regions[0], arguments)
            self.point = ir.InsertionPoint(self.block)
            return [Value(a) for a in self.block.arguments]

    def declare_state(self, name: str, array: np.ndarray) -> Value:
        """A tensor that is kept from run to run and begins as `array`; called after `declare_inputs`."""
        assert self.block is not None
        type_ = TensorType(types.dtype_of_numpy(array.dtype), tuple(array.shape))
        self._states.append((name, type_, self.weights.add(f"state {name}", array)))
        with self.context, self.loc:
            return Value(self.block.add_argument(type_.to_ir(), self.loc))

    def finish(self, outputs: Sequence[tuple[str, Value]], states: Sequence[Value] = ()) -> ir.Module:
        """Closes `@forward`, writes input and output names and symbol ranges; returns the verified module.

        `states`: what the declared states are after a run, in their order.
        """
        assert self._function is not None and self.block is not None and len(states) == len(self._states)
        with self.context, self.loc:
            returned = [*(v.ir for _, v in outputs), *(v.ir for v in states)]
            results = [v.type for v in returned]
            arguments = [t.to_ir() for _, t in self._inputs] + [t.to_ir() for _, t, _ in self._states]
            attributes = self._function.attributes
            attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(arguments, results))
            attributes["mlc.inputs"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n, _ in self._inputs])
            attributes["mlc.outputs"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n, _ in outputs])
            if self._states:
                attributes["mlc.states"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n, _, _ in self._states])
                attributes["mlc.initial"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for _, _, w in self._states])
            with ir.InsertionPoint(self.block):
                ir.Operation.create("func.return", operands=returned)
            self._raise_lower_bounds()
            ranges = {n: ir.DenseI64ArrayAttr.get(list(r)) for n, r in self.symbols.items()}
            self.module.operation.attributes["mlc.symbols"] = ir.DictAttr.get(ranges)
            self.weights.attach(self.module)
        self.module.operation.verify()
        return self.module

    def _raise_lower_bounds(self) -> None:
        """A symbol starts where every size that depends on it alone is 0 or more: windows and slices need as much."""
        assert self.block is not None
        sizes = {
            size for op in self.block.operations for result in op.operation.results
            if isinstance(result.type, ir.RankedTensorType) for size in build.type_of(result).shape
            if isinstance(size, dims.Dim)
        }
        for size in sizes:
            names = dims.symbols(size)
            if len(names) == 1 and names[0] in self.symbols:
                low, high = self.symbols[names[0]]
                self.symbols[names[0]] = (_least_fitting(size, names[0], low, high), high)

    # locations ---------------------------------------------------------------------------------------------------
    def at(self, file: str, line: int = 0, name: str = "") -> None:
        """New ops come from `file:line`, called `name` (a module path or node name)."""
        with self.context:
            place = ir.Location.file(file, line, 0) if file else ir.Location.unknown()
            self.loc = ir.Location.name(name, place) if name else place

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        """A constant tensor: in the IR when small, else a weight."""
        value = np.asarray(array, None if dtype is None else types.DTYPES[dtype].numpy)
        if not value.size:
            return self.op("full", shape=list(value.shape), value=0, dtype=types.dtype_of_numpy(value.dtype))
        if value.size <= SMALL_CONSTANT_ELEMENTS:
            return self.op("constant", value=value)
        return self.weight("constant", value)

    def weight(self, name: str, array: np.ndarray) -> Value:
        """A weight backed by `array` (borrowed, not copied). The same name and array give the same Value."""
        found = self._weight_values.get(name)
        if found is not None and self.weights.get(name) is array:
            return found
        stored = self.weights.add(name, array)
        value = self.op("weight", name=stored, shape=list(array.shape), dtype=types.dtype_of_numpy(array.dtype))
        if stored == name:
            self._weight_values[name] = value
        return value


def _least_fitting(size: dims.Size, name: str, low: int, high: int) -> int:
    """The least value from `low` on that makes `size` 0 or more; `low` itself where none up to `high` does.

    Bisects, since sizes that start below 0 grow with their symbol.
    """
    if dims.evaluate(size, {name: low}) >= 0 or dims.evaluate(size, {name: high}) < 0:
        return low
    bad, good = low, high
    while good - bad > 1:
        middle = (bad + good) // 2
        if dims.evaluate(size, {name: middle}) >= 0:
            good = middle
        else:
            bad = middle
    return good
