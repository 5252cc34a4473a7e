"""Imports an ONNX model into the mlc dialect.

    module = import_onnx("model.onnx", dims={"batch": (1, 64), "height": 224}, values={"sr": np.int64(16000)})

Nodes are walked in order over a scope of values, each `Known` (a number or a size expression: weights, shapes) or a
tensor in the graph. What is known is evaluated here, so that the graph has no shape arithmetic; the rest goes through
the row of its op (frontend/onnx_ops.py), its function body, or the function that ONNX defines for it. Of declared
shapes only those of inputs are looked at, and the ranks of outputs where a Squeeze leaves them open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlc.dialects import build, types
from mlc.dialects import dims as size_dims
from mlc.dialects.dims import Dim, Size
from mlc.dialects.op import OpError
from mlc.dialects.types import DTYPES
from mlc.frontend import data_sizes, onnx_control, onnx_fold, onnx_sequences
from mlc.frontend.custom_ops import LoweringError, apply, onnx_lowering
from mlc.frontend.graph import SMALL_CONSTANT_ELEMENTS, GraphBuilder, Value
from mlc.frontend.onnx_ops import (
    ByDefinitionError,
    Call,
    MisfitError,
    NeedsKnownError,
    SameSizeError,
    UnsupportedNodeError,
    bind,
    find_row,
    one_to_one,
    one_to_one_attrs,
)
from mlc.frontend.onnx_proto import (
    Function,
    Graph,
    Model,
    Node,
    OnnxError,
    ValueInfo,
    builtin_function,
    read_model,
    with_attrs,
)
from mlc.frontend.onnx_symbols import DimsOption, SymbolNames
from mlc.frontend.report import Report
from mlc.frontend.shape_values import Known, Ratio, Sizes, product
from mlir import ir
from onnx import ModelProto


def import_onnx(
    source: str | Path | bytes | ModelProto,
    *,
    dims: DimsOption | None = None,
    values: Mapping[str, Any] | None = None,
) -> ir.Module:
    """The model as a module with one `@forward`.

    `dims` gives a named dimension a range or fixes it to a number; unnamed ones are called `<input>_<axis>`. Dimensions
    that the model needs to be equal become one; one that it needs to be a multiple becomes `32 * <name>_div32`.
    A size that the model computes from data has no bound but what `dims` gives under the name of its tensor, `<name>_0`
    and so on where it holds several. `values` fixes inputs to constants, which leave the signature.
    Raises: OnnxError for a file that is no model; UnsupportedError with every node that cannot be imported.
    """
    model = read_model(source)
    names = SymbolNames(model.graph.inputs, dims or {})
    while True:
        importer = Importer(model, names, dict(values or {}), str(source) if isinstance(source, str | Path) else "")
        try:
            return importer.run()
        except SameSizeError as error:
            # The model adds or multiplies two sizes that were declared apart: import again with one for both.
            names.unify(error.a, error.b)


class Scope:
    """Values by name within one graph or function body; subgraphs see their parent's."""

    def __init__(self, parent: Scope | None = None, attrs: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = {}
        self.parent = parent
        self.attrs: Mapping[str, Any] = attrs if attrs is not None else (parent.attrs if parent else {})

    def get(self, name: str) -> Any:
        """The value of a name; None for an input that is absent. Raises OnnxError for a name that nothing defines."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise OnnxError(f"value '{name}' is used but nothing before it defines it")

    def child(self) -> Scope:
        """A scope for a subgraph."""
        return Scope(self)

    def resolved(self, node: Node) -> Node:
        """The node with attributes that refer to the enclosing function's replaced by their values."""
        if not node.attr_refs:
            return node
        found = {name: self.attrs[ref] for name, ref in node.attr_refs.items() if ref in self.attrs}
        return with_attrs(node, node.attrs | found)


class _Failed:
    """The value of an output whose node could not be imported; nodes that use it are passed over in silence."""


FAILED = _Failed()


class Importer:
    """One attempt at a model. Rows and control flow reach the graph through it."""

    def __init__(self, model: Model, names: SymbolNames, values: dict[str, Any], file: str) -> None:
        self.model, self.names, self.fixed, self.file = model, names, values, file
        self.sizes = Sizes(names.ranges)
        self.g = GraphBuilder()
        self.report = Report(Path(file).name if file else "the model")
        self.unsqueezed: list[Dim] = []  # sizes that a Squeeze of whatever is 1 left, though they may be 1
        self.of_data: dict[str, int] = {}  # how often the tensor of a name gave a size: loops are unrolled
        self._constants: dict[int, tuple[np.ndarray, Value]] = {}
        self._depth = 0

    def run(self) -> ir.Module:
        scope = Scope()
        self.declare(scope)
        self.run_graph(self.model.graph, scope)
        self.report.raise_if_any()
        outputs = []
        for info in self.model.graph.outputs:
            self.g.at(self.file, 0, f"output '{info.name}'")
            try:
                outputs.append((info.name, self.materialize(scope.get(info.name), info.name)))
            except UnsupportedNodeError as error:
                raise OnnxError(f"output {error}; only tensors can be outputs") from error
            if self.unsqueezed and info.shape is not None and len(info.shape) < len(outputs[-1][1].shape):
                raise SameSizeError(self.unsqueezed[0], 1)
        used = {s for t in self.g.block.arguments for size in build.type_of(t).shape for s in size_dims.symbols(size)}
        self.names.check_offers()
        used |= set(build.sizes_from_data(self.g.module))
        self.g.symbols = {name: range_ for name, range_ in self.names.ranges.items() if name in used}
        return self.g.finish(outputs)

    def declare(self, scope: Scope) -> None:
        """Inputs become arguments of `@forward`, or known values where the caller fixed them."""
        inputs = self.model.graph.inputs
        unknown = [name for name in self.fixed if name not in {info.name for info in inputs}]
        if unknown:
            raise OnnxError(f"there is no input '{unknown[0]}'; there are: {', '.join(i.name for i in inputs)}")
        declared = []
        for info in inputs:
            if info.name in self.fixed:
                scope.values[info.name] = Known.of(_fixed_array(info, self.fixed[info.name]))
                continue
            if info.dtype is None or info.shape is None:
                what = f"is a {info.kind}" if info.kind != "tensor" else "has no element type or no rank"
                raise OnnxError(f"input '{info.name}' {what}: only tensors of known rank can be inputs")
            try:
                dtype = types.dtype_of_numpy(info.dtype)
            except TypeError as error:
                raise OnnxError(f"input '{info.name}': {error}") from error
            declared.append((info.name, dtype, self.names.shape(info)))
        for (name, _, _), value in zip(declared, self.g.declare_inputs(declared), strict=True):
            scope.values[name] = value

    # --- graphs and nodes ---

    def run_graph(self, graph: Graph, scope: Scope) -> None:
        """Imports a graph's nodes; its initializers and results land in `scope`."""
        scope.values.update((name, Known.of(array)) for name, array in graph.weights.items())
        self.run_nodes(graph.nodes, scope)

    def run_nodes(self, nodes: Sequence[Node], scope: Scope) -> None:
        for node in nodes:
            node = scope.resolved(node)
            inputs = [scope.get(name) if name else None for name in node.inputs]
            try:
                results = self.run_node(node, inputs, scope)
            except (UnsupportedNodeError, OpError, LoweringError) as error:
                self.refuse(node, error)
                results = [FAILED] * len(node.outputs)
            scope.values.update(zip(node.outputs, results, strict=False))

    def run_node(self, node: Node, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        """The outputs of one node."""
        control = onnx_control.CONTROL.get(node.op) if not node.domain else None
        if control is None and any(isinstance(x, onnx_sequences.Items) for x in inputs) and node.op != "Identity":
            raise UnsupportedNodeError("a sequence as input")
        row_, own = find_row(node), onnx_lowering(node.domain, node.op)
        if any(x is FAILED for x in inputs):
            found = own or row_ or control or one_to_one(node) or self.function_of(node, inputs)
            if found is None:
                self.refuse(node)
            return [FAILED] * len(node.outputs)
        self.locate(node)
        if own is not None:
            operands = [None if x is None else self.materialize(x, n) for x, n in zip(inputs, node.inputs, strict=True)]
            return _as_list(apply(own, self.g, operands, _plain_attrs(node)))
        if control is not None:
            return control(self, node, inputs, scope)
        if all(x is None or isinstance(x, Known) for x in inputs):
            folded = onnx_fold.fold(node, inputs, self.sizes) or onnx_fold.fold_view(node, inputs, self.sizes)
            if folded is not None:
                return folded
        if row_ is not None:
            try:
                return _as_list(row_.function(Call(self, node, self.sizes), *bind(row_, inputs, self, node)))
            except ByDefinitionError:
                pass
        definition = one_to_one(node)
        if definition is not None:
            operands = [None if x is None else self.materialize(x, n) for x, n in zip(inputs, node.inputs, strict=True)]
            return _as_list(self.emit(definition.name, *operands, **one_to_one_attrs(definition, node)))
        function = self.function_of(node, inputs)
        if function is None:
            self.refuse(node)
            return [FAILED] * len(node.outputs)
        return self.call(function, node, inputs)

    def function_of(self, node: Node, inputs: list[Any]) -> Function | None:
        """The model's own function of this name, else the body that the ONNX standard gives the op."""
        own = self.model.functions.get((node.domain, node.op))
        return own or builtin_function(node, [onnx_control.element_type(x) for x in inputs])

    def call(self, function: Function, node: Node, inputs: list[Any]) -> list[Any]:
        """A function's body in place of its call."""
        if self._depth > 64:
            raise UnsupportedNodeError("functions call each other without end")
        scope = Scope(attrs=function.attrs | node.attrs)
        scope.values.update(dict.fromkeys(function.inputs))
        scope.values.update(zip(function.inputs, inputs, strict=False))
        self._depth += 1
        self.run_nodes(function.nodes, scope)
        self._depth -= 1
        return [scope.values.get(name) for name in function.outputs]

    def refuse(self, node: Node, error: Exception | None = None) -> None:
        """Notes a node that cannot be imported; the rest of the model is looked at before anything is raised."""
        reason = "" if error is None else str(error)
        if isinstance(error, NeedsKnownError) and error.name in {info.name for info in self.model.graph.inputs}:
            reason += f"; fix it with values={{'{error.name}': ...}}"
        op = f"{node.domain}.{node.op}" if node.domain else node.op
        self.report.add(op, f"node '{node.label}'", reason, is_misfit=isinstance(error, OpError | MisfitError))

    def attempt(self, run: Callable[[], list[Any]]) -> tuple[list[Any], Report]:
        """What `run()` gives, and what it would have reported, which is left to the caller."""
        outer, self.report = self.report, Report(self.report.source)
        try:
            return run(), self.report
        finally:
            self.report = outer

    failed = FAILED

    def has_failed(self, x: Any) -> bool:
        return x is FAILED

    def locate(self, node: Node) -> None:
        """New ops come from this node."""
        self.g.at(self.file, 0, f"node '{node.label}' ({node.op})")

    # --- what rows call ---

    def emit(self, name: str, *operands: Any, **attrs: Any) -> Any:
        """Adds an mlc op. Raises SameSizeError where elementwise operands have sizes that only a symbol keeps apart."""
        definition = build.load_ops().get(name)
        if definition is not None and definition.kind == "pointwise" and len(operands) > 1:
            Call(self, _NO_NODE, self.sizes).joined(*(x.shape for x in operands if x is not None))
        return self.g.op(name, *operands, **attrs)

    def constant(self, array: np.ndarray) -> Value:
        """A constant that a row makes; equal small ones are merged by cse."""
        return self.g.constant(array)

    def materialize(self, x: Any, name: str) -> Value:
        """A graph value for `x`: itself, or a known tensor as constant, weight or size arithmetic."""
        if isinstance(x, Value):
            return x
        if not isinstance(x, Known):
            raise UnsupportedNodeError(f"'{name}' is not a tensor")
        if x.is_symbolic:
            return self._sizes_tensor(x)
        found = self._constants.get(id(x.array))
        if found is None:
            found = self._constants[id(x.array)] = (x.array, self._stored(x.array, name))
        return found[1]

    def data_size(self, name: str, most: Size) -> data_sizes.DataSize:
        """A new size, at most `most`, that the tensor `name` gives when the model runs."""
        number = self.of_data[name] = self.of_data.get(name, -1) + 1
        text = name if number == 0 else f"{name}_{number}"
        size = self.names.data_size(text, size_dims.bounds(most, self.sizes.ranges)[1])
        return data_sizes.DataSize(size, most if str(size) == self.names.of_data[text] else size)

    def known_sizes(self, x: Any, name: str) -> Known | None:
        """What an integer tensor holds, as sizes; None where the caller gives none of them a range."""
        if isinstance(x, Known) or not isinstance(x, Value) or DTYPES[x.dtype].is_float or len(x.shape) > 1:
            return x if isinstance(x, Known) else None
        count = product(x.shape)
        names = [name] if count == 1 else [f"{name}_{i}" for i in range(count)] if isinstance(count, int) else []
        if not names or any(one not in self.names.offers for one in names):
            return None
        sizes = []
        for place, one in enumerate(names):
            wanted = self.data_size(one, self.names.offers[one][1])
            part = x if len(names) == 1 else self.g.op("slice", x, starts=[place], limits=[place + 1], steps=[1])
            data_sizes.read_size(self.g, part, wanted)
            sizes.append(wanted.size)
        return Known.of(np.asarray(sizes, object).reshape(x.shape), DTYPES[x.dtype].numpy)

    def materialize_size(self, size: Size) -> Value:
        """A size as a 0-D i64 tensor."""
        return self._size_scalar(size, "i64")

    def _stored(self, array: np.ndarray, name: str) -> Value:
        try:
            types.dtype_of_numpy(array.dtype)
        except TypeError as error:
            raise UnsupportedNodeError(f"'{name}': {error}") from error
        if array.size <= SMALL_CONSTANT_ELEMENTS:
            return self.g.constant(array)
        return self.g.weight(name, np.ascontiguousarray(array))

    def _sizes_tensor(self, x: Known) -> Value:
        dtype = types.dtype_of_numpy(x.dtype)
        parts = [self._size_scalar(item, dtype) for item in x.items()]
        if not x.shape:
            return parts[0]
        flat = self.g.op("concat", *(self.g.op("reshape", part, shape=[1]) for part in parts), axis=0)
        return flat if len(x.shape) == 1 else self.g.op("reshape", flat, shape=list(x.shape))

    def _size_scalar(self, item: Any, dtype: str) -> Value:
        if isinstance(item, Dim):
            return self.g.op("dim_value", value=item, dtype=dtype)
        if isinstance(item, Ratio):
            ends = [self._size_scalar(end, "i64") for end in (item.num, item.den)]
            num, den = (self.g.op("cast", end, dtype=dtype) for end in ends)
            return self.g.op("div", num, den)
        return self.g.scalar(item, dtype)


_NO_NODE = Node("", "", 0, "", [], [], {})


def _fixed_array(info: ValueInfo, value: Any) -> np.ndarray:
    """The constant that a caller gives for an input, checked against what the file says of it."""
    try:
        array = np.asarray(value, info.dtype)
    except (TypeError, ValueError) as error:
        raise OnnxError(f"the value given for input '{info.name}' is no {info.dtype} array: {error}") from error
    if info.shape is not None and (
        len(info.shape) != array.ndim
        or any(isinstance(s, int) and s != n for s, n in zip(info.shape, array.shape, strict=True))
    ):
        shapes = f"{list(array.shape)}; the model takes {list(info.shape)}"
        raise OnnxError(f"the value given for input '{info.name}' has shape {shapes}")
    return array


def _plain_attrs(node: Node) -> dict[str, Any]:
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in node.attrs.items()}


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]
