"""Reads an in-memory torch.export.ExportedProgram into the same record as a `.pt2` file. Imports torch on use."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import torch

_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
# An unbounded range's end: sympy prints torch's integer infinity so, and torch uses large numbers for "no limit" too.
_UNBOUNDED = 1 << 60


def read_exported_program(program: torch.export.ExportedProgram) -> Program:
    """The record of an exported program; weights are views of its tensors."""
    reader = _GraphReader(program.graph_module)
    graph = reader.read()
    signature = program.graph_signature
    inputs = [_input_spec(spec) for spec in signature.input_specs]
    outputs = [_output_spec(spec, reader.renamed) for spec in signature.output_specs]
    weights = {}
    for spec in inputs:
        if spec.kind in ("param", "buffer", "constant"):
            tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
            weights[spec.target] = _weight(tensor, spec.target)
    symbols = {str(symbol): _limits(limits) for symbol, limits in program.range_constraints.items()}
    result = Program("exported program", graph, inputs, outputs, symbols, weights)
    if program.call_spec.in_spec is not None:
        passed = tree_of(_spec_json(program.call_spec.in_spec), {})
        called = next((e.signature for e in program.module_call_graph if e.fqn == ""), None)
        result.input_tree = call_tree(passed, getattr(called, "forward_arg_names", None), inputs)
        result.output_tree = tree_of(_spec_json(program.call_spec.out_spec), {})
    return result


def _spec_json(spec: Any) -> dict[str, Any]:
    """A pytree spec as torch's own JSON has it; tuples that torch cannot name (topk's, sort's) are plain tuples."""
    from torch.utils._pytree import treespec_dumps

    try:
        found: dict[str, Any] = json.loads(treespec_dumps(spec))[1]
    except NotImplementedError:
        if spec.is_leaf():
            return {"type": None}
        context = list(spec.context) if issubclass(spec.type, dict) else None
        children = [_spec_json(child) for child in spec.children()]
        name = f"{spec.type.__module__}.{spec.type.__qualname__}"
        return {"type": name, "context": context, "children_spec": children}
    return found


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    names = {"bfloat16": "bf16", "bool": "bool", "complex64": "c64", "complex128": "c128"}
    for long, short in (("float8_", "f8"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return names.get(name, name)


def _weight(tensor: torch.Tensor | None, name: str) -> Weight:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
        raise ReadError(f"the weight {name!r} is no plain strided tensor")
    tensor = tensor.detach().cpu()
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    return Weight(
        _dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()),
        storage, 0, storage.nbytes,
    )  # fmt: skip


def _limits(limits: Any) -> tuple[int, int | None]:
    low, high = (None if "oo" in str(bound) else int(bound) for bound in (limits.lower, limits.upper))
    return low or 0, high if high is not None and high < _UNBOUNDED else None


def _input_spec(spec: Any) -> Input:
    kind, arg = spec.kind.name, spec.arg
    match kind:
        case "PARAMETER":
            return Input("param", arg.name, spec.target)
        case "BUFFER":
            return Input("buffer", arg.name, spec.target)
        case "CONSTANT_TENSOR":
            return Input("constant", arg.name, spec.target)
        case "USER_INPUT" if hasattr(arg, "value"):
            return Input("fixed", arg.name, value=arg.value)
        case "USER_INPUT":
            return Input("user", arg.name)
    raise ReadError(f"the program takes a {kind.lower()} as input, which mlc does not support")


def _output_spec(spec: Any, renamed: dict[str, Ref]) -> Output:
    kind = spec.kind.name
    arg = spec.arg.value if hasattr(spec.arg, "value") else renamed.get(spec.arg.name, Ref(spec.arg.name))
    match kind:
        case "USER_OUTPUT" | "LOSS_OUTPUT":
            return Output("user", arg)
        case "BUFFER_MUTATION" | "PARAMETER_MUTATION":
            return Output("buffer", arg, spec.target)
        case "USER_INPUT_MUTATION":
            return Output("user_input", arg, spec.target)
    raise ReadError(f"the program returns a {kind.lower()}, which mlc does not support")


class _GraphReader:
    """One GraphModule; subgraphs are read by further readers."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[Arg] = []
        self.outputs: list[Arg] = []
        self.names: dict[Any, Arg] = {}  # fx node -> Ref, list of Refs, Graph
        self.renamed: dict[str, Ref] = {}  # a second node that picks the same result -> the first

    def read(self) -> Graph:
        for node in self.module.graph.nodes:
            match node.op:
                case "placeholder":
                    self.inputs.append(self.define(node, node.name, node.meta.get("val")))
                case "get_attr":
                    self.names[node] = self.attribute(node)
                case "call_function" if _target(node.target) == "operator.getitem" and node.args[0] in self.names:
                    picked = self.names[node.args[0]]
                    self.names[node] = picked[node.args[1]] if isinstance(picked, list) else picked
                    if isinstance(self.names[node], Ref):
                        self.renamed[node.name] = self.names[node]
                case "call_function":
                    self.call(node)
                case "output":
                    result = self.arg(node.args[0])
                    self.outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        return Graph(self.inputs, self.outputs, self.nodes, self.values)

    def define(self, node: Any, name: str, value: Any) -> Arg:
        """Registers one value (tensor or symbolic scalar) and gives its Ref; other constants come back as they are."""
        import torch

        if isinstance(value, torch.Tensor):
            shape = tuple(_size(size) for size in value.shape)
            self.values[name] = Value(name, _dtype_name(value.dtype), shape)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            dtype = {torch.SymInt: "i64", torch.SymFloat: "f64", torch.SymBool: "bool"}.get(type(value), "")
            dtype = dtype or ("bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f64")
            expr = value if isinstance(value, (int, float, bool)) else _symbol(value) if dtype == "i64" else None
            self.values[name] = Value(name, dtype, None, expr)
        else:
            self.names[node] = None
            return None
        ref = Ref(name)
        self.names.setdefault(node, ref)
        return ref

    def call(self, node: Any) -> None:
        value = node.meta.get("val")
        outputs: list[Any]
        if isinstance(value, (list, tuple)):
            # As in a .pt2, a result is named by the node that picks it.
            users = [user for user in reversed(node.users) if _target(user.target) == "operator.getitem"]
            picks = {user.args[1]: user.name for user in users}
            refs = [
                self.define((node, index), picks.get(index, f"{node.name}.{index}"), item)
                for index, item in enumerate(value)
            ]
            self.names[node] = refs
            names = [ref.name if isinstance(ref, Ref) else None for ref in refs]
            returns = getattr(getattr(node.target, "_schema", None), "returns", ())
            outputs = [names] if len(returns) == 1 else names
        else:
            ref = self.define(node, node.name, value)
            outputs = [ref.name if isinstance(ref, Ref) else None]
        kwargs = {key: self.arg(item) for key, item in node.kwargs.items()}
        args = [self.arg(item) for item in node.args]
        self.nodes.append(Node(_target(node.target), args, kwargs, outputs, _loc(node.meta)))

    def attribute(self, node: Any) -> Arg:
        """A subgraph, or None for a tensor attribute (lifted by torch.export, so it is never used)."""
        import torch

        owner: Any = self.module
        for part in node.target.split("."):
            owner = getattr(owner, part)
        return _GraphReader(owner).read() if isinstance(owner, torch.fx.GraphModule) else None

    def arg(self, value: Any) -> Arg:
        import torch

        if isinstance(value, torch.fx.Node):
            return self.names[value]
        if isinstance(value, (list, tuple)):
            return [self.arg(item) for item in value]
        if isinstance(value, dict):
            return {key: self.arg(item) for key, item in value.items()}
        if isinstance(value, torch.dtype):
            return Scalar(_dtype_name(value))
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        return str(value)  # device, layout, memory format: read by no importer


def _size(size: Any) -> Size:
    return size if isinstance(size, int) else read_expr(str(size.node.expr))


def _symbol(value: Any) -> Size | None:
    try:
        return read_expr(str(value.node.expr))
    except ReadError:
        return None  # an intermediate that no tensor's shape uses may be anything


def _target(target: Any) -> str:
    """aten.add.Tensor, operator.mul, math.floor, higher_order.cond, torch.sym_max."""
    namespace = getattr(target, "_namespace", None) or getattr(target, "namespace", None)
    if namespace is not None:
        return str(target) if "." in str(target) else f"{namespace}.{target}"
    module = inspect.getmodule(target)
    owner = getattr(target, "__module__", None) or (module.__name__ if module else "")
    return f"{owner.removeprefix('_')}.{target.__name__}"


def _loc(meta: dict[str, Any]) -> Loc:
    frames = [(file, int(line), function) for file, line, function in _FRAME.findall(meta.get("stack_trace") or "")]
    stack = list((meta.get("nn_module_stack") or {}).values())
    # Nodes that torch itself inserts carry its placeholder for a module.
    module = stack[-1][0] if stack else ""
    return user_loc(frames, "" if module.startswith("_empty_nn_module") else module)
