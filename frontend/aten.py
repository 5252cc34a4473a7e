"""Imports a torch program record into the mlc dialect: walks the nodes, looks up rows, collects what is unsupported.

Rows are functions in the `aten_<family>.py` files; ops that equal an mlc op come from the op declarations. Torch's
in-place ops are turned into pure ones here, with `aten_views.Views` tracking which tensors share memory.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects import dims
from mlc.dialects.build import load_ops
from mlc.dialects.dims import Dim
from mlc.dialects.op import OpDef, OpError
from mlc.dialects.types import DTYPES
from mlc.frontend.aten_data import read_item
from mlc.frontend.aten_rows import ALIASES, IGNORED_KEYWORDS, ROWS, AtenBuilder, Row, is_tensor
from mlc.frontend.aten_subgraphs import CALLS, is_elementwise, without_block_mask
from mlc.frontend.aten_views import Views, functional_target, written_argument
from mlc.frontend.custom_ops import LoweringError, apply, torch_lowering
from mlc.frontend.graph import GraphBuilder
from mlc.frontend.record import Arg, Graph, Node, Program, Ref, refs
from mlc.frontend.report import Report, UnsupportedCaseError

if TYPE_CHECKING:
    from mlir import ir

_POISON = object()
"""Stands for a value that could not be imported, so that one unsupported op is reported once and not with its users."""

# Checks that torch inserts for its own tracing; sizes they speak of are in the shapes already.
_DROPPED = re.compile(
    r"aten\.(_assert_|_functional_assert|sym_constrain_range)|profiler\.|operator\.(le|lt|ge|gt|eq|ne|and_|or_|not_)$"
)


_ITEMS = ("aten.item.default", "aten._local_scalar_dense.default")


@dataclass
class Imported:
    """The module, and how callers' structures map to its flat inputs and outputs."""

    module: ir.Module
    input_names: list[str]
    input_tree: dict[str, Any]
    output_tree: dict[str, Any]


def import_program(program: Program) -> Imported:
    """The mlc module of a program. Raises: UnsupportedError with everything that cannot be compiled."""
    return _Importer(program).run()


@cache
def load_rows() -> dict[str, Row]:
    """All rows by target: those of the family files, and those that follow from the op declarations.

    A declaration gives a row to every op it names (`torch="aten.relu.default"`), a pointwise op to its ATen namesake.
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("aten_"):
            importlib.import_module(f"{__package__}.{module.name}")
    rows = dict(ROWS)
    for definition in load_ops().values():
        namesake = [f"aten.{definition.name}"] if definition.kind == "pointwise" else []
        for target in [*definition.torch, *namesake]:
            if target not in rows and target.rsplit(".", 1)[0] not in rows:
                rows[target] = _declared_row(definition)
    return rows


def _declared_row(definition: OpDef) -> Row:
    """The row of an op that equals an mlc op: arguments are its operands, then its attributes, in order."""
    operand_count = len(definition.operands)
    takes_bool = all(operand.pattern.dtype == "bool" for operand in definition.operands)
    gives_bool = definition.results[0].dtype == "bool"

    def import_it(b: AtenBuilder, *args: Any, **attrs: Any) -> Any:
        operands = list(args[:operand_count])
        attrs |= {a.name: v for a, v in zip(definition.attributes, args[operand_count:], strict=False)}
        if definition.kind == "pointwise":
            dtype = "bool" if takes_bool else b.promote(*operands) if gives_bool else b.out_dtype
            operands = b.aligned(*(b.scalar(operand, dtype) for operand in operands))
        return b.op(definition.name, *operands, **attrs)

    return import_it


def find_row(target: str) -> Row | None:
    """The row of "aten.add.Tensor": its own, or the one for all of aten.add; under its other name, if it has one."""
    own = torch_lowering(target)
    if own is not None:
        return lambda b, *args, **kwargs: apply(own, b.graph, list(args), kwargs)
    rows = load_rows()
    for name in (target, target.rsplit(".", 1)[0]):
        for known in (name, ALIASES.get(name)):
            if known in rows:
                return rows[known]
    return None


class _Importer:
    """Holds one import's state: builder, values by name, shared memory, findings."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.report = Report(program.source)
        ranges = _ranges(program.symbols)
        self.graph = GraphBuilder(ranges)
        self.builder = AtenBuilder(self.graph, ranges)
        self.weights: dict[tuple[Any, ...], np.ndarray] = {}
        self.weight_names: dict[tuple[Any, ...], str] = {}

    def run(self) -> Imported:
        program = self.program
        specs = []
        for name in program.user_inputs:
            value = program.graph.values[name]
            if value.shape is None:
                reason = f"a number ({value.dtype}) cannot be an input; pass a tensor"
                self.report.add(f"input {name}", "the signature", reason)
            elif value.dtype not in DTYPES:
                self.report.add(f"input {name}", "the signature", f"dtype {value.dtype} is not supported")
            else:
                specs.append((name, value.dtype, [_size(size) for size in value.shape]))
        self.report.raise_if_any()
        env: dict[str, Any] = {spec.name: spec.value for spec in program.inputs if spec.kind == "fixed"}
        env |= zip((name for name, _, _ in specs), self.graph.declare_inputs(specs), strict=True)
        weights = {spec.name: spec.target for spec in program.inputs if spec.kind in ("param", "buffer", "constant")}
        scope = Scope(self, program.graph, env, weights)
        states = self.written_weights(scope)
        env |= {name: self.state(name, target) for name, target in states.items()}
        scope.run([output.arg for output in program.outputs])
        self.check_mutations(scope)
        outputs, tree = self.outputs(scope)
        kept = [self.state_after(scope, name, target) for name, target in states.items()]
        self.report.raise_if_any()
        for name in [n for n in self.graph.symbols if n in self.builder.unread or n.startswith("zuf")]:
            del self.graph.symbols[name]
        module = self.graph.finish(outputs, kept)
        return Imported(module, [name for name, _, _ in specs], program.input_tree, tree)

    def written_weights(self, scope: Scope) -> dict[str, str]:
        """Stored tensors that a run writes, by the name of their placeholder: the model's state.

        In place, or as a result of the signature where the program was made functional.
        """
        targets = {scope.views.root(name) for node in scope.nodes if (name := written_argument(node)) is not None}
        new = {output.target for output in self.program.outputs if output.kind == "buffer"}
        return {
            name: target for name, target in scope.weights.items() if name in targets or target in new
        }

    def state(self, name: str, target: str) -> Any:
        weight = self.program.weights[target]
        return self.graph.declare_state(target, np.ascontiguousarray(weight.array()).reshape(weight.shape))

    def state_after(self, scope: Scope, name: str, target: str) -> Any:
        """What the state is at the end of the run."""
        new = next((o.arg for o in self.program.outputs if o.kind == "buffer" and o.target == target), None)
        return scope.read(name) if new is None else scope.arg(new)

    def check_mutations(self, scope: Scope) -> None:
        """Reports writes to the caller's inputs."""
        inputs = {spec.name for spec in self.program.inputs if spec.kind == "user"}
        written = {name for name in scope.views.written if name in inputs}
        written |= {output.target for output in self.program.outputs if output.kind == "user_input"}
        for name in sorted(written):
            reason = "inputs are not written; return the new value as an output, or make the tensor a buffer"
            self.report.add(f"write to input {name}", scope.views.written.get(name, "the signature"), reason)

    def outputs(self, scope: Scope) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
        """Named results, and the output tree with None written into it; numbers and sizes are 0-D tensors."""
        outputs: list[tuple[str, Any]] = []
        is_none: list[bool] = []
        for position, output in enumerate(o for o in self.program.outputs if o.kind == "user"):
            value = scope.arg(output.arg)
            name = output.arg.name if isinstance(output.arg, Ref) else f"output{position}"
            is_none.append(value is None)
            if isinstance(value, (Dim, bool, int, float)):
                dtype = "bool" if isinstance(value, bool) else "f64" if isinstance(value, float) else "i64"
                value = self.builder.scalar(value, dtype)
            elif isinstance(value, (str, complex)):
                self.report.add(f"output {name}", "the signature", f"the result {value!r} is no tensor")
            if is_tensor(value):
                outputs.append((name, value))
        return outputs, _with_none(self.program.output_tree, iter(is_none))

    def weight(self, target: str) -> Any:
        """A stored tensor as a value; tensors that share memory and layout are one weight."""
        weight = self.program.weights[target]
        if weight.dtype not in DTYPES:
            raise UnsupportedCaseError(f"the weight {target} has dtype {weight.dtype}, which is not supported")
        place = (*weight.place, weight.storage_offset)
        key = (*place, weight.dtype, weight.shape, weight.strides)
        if key not in self.weights:
            self.weights[key] = np.ascontiguousarray(weight.array()).reshape(weight.shape)
            self.weight_names[key] = target
        return self.graph.weight(self.weight_names[key], self.weights[key])


def _ranges(limits: Mapping[str, tuple[int, int | None]]) -> dict[str, tuple[int, int]]:
    """Ranges of the symbols. Torch also states those of derived sizes ("8*s0"), which narrow the one they are made
    of."""
    ranges: dict[str, tuple[int, int]] = {}
    for text, (low, most) in limits.items():
        high, size = dims.INFINITY if most is None else most, dims.parse(text)
        names = dims.symbols(size)
        if len(names) != 1:
            continue
        offset = dims.substitute(size, {names[0]: 0})
        slope = dims.substitute(size, {names[0]: 1}) - offset
        if size != dims.symbol(names[0]) * slope + offset or not isinstance(slope, int) or slope < 1:
            continue
        least, largest = ranges.get(names[0], (0, dims.INFINITY))
        within = dims.INFINITY if high == dims.INFINITY else (high - offset) // slope
        ranges[names[0]] = (max(least, -(-(low - offset) // slope)), min(largest, within))
    return ranges


def _with_none(tree: dict[str, Any], is_none: Iterator[bool]) -> dict[str, Any]:
    if tree["kind"] == "leaf":
        return {"kind": "none"} if next(is_none, False) else tree
    return {**tree, "items": [_with_none(item, is_none) for item in tree["items"]]}


def _size(size: Any) -> Any:
    return dims.parse(size) if isinstance(size, str) else size


class Scope:
    """One graph (the program's or a subgraph's) being walked: `env` has values by name, `weights` stored tensors."""

    def __init__(
        self, importer: _Importer, graph: Graph, env: dict[str, Any], weights: dict[str, str],
        is_elementwise: bool = False,
    ) -> None:  # fmt: skip
        self.importer, self.graph, self.env, self.weights = importer, graph, env, weights
        self.is_elementwise = is_elementwise
        self.nodes = [without_block_mask(node) for node in graph.nodes]
        self.views = Views(graph)

    def run(self, outputs: list[Arg]) -> list[Any]:
        """Imports every node that the outputs, or a visible write, depend on; returns the outputs' values."""
        for node in self.live_nodes(outputs):
            self.node(node)
        return [self.arg(output) for output in outputs]

    def live_nodes(self, outputs: list[Arg]) -> list[Node]:
        """Program order, dead ones left out. A write is live when anything that shares its memory is read later."""
        live = {self.views.root(ref.name) for ref in refs(outputs)} | {ref.name for ref in refs(outputs)}
        live |= set(self.weights) | {ref.name for ref in refs(self.graph.inputs)}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if _DROPPED.match(node.target):
                continue
            written = written_argument(node)
            is_live = any(name in live for name in node.output_names())
            if is_live or (written is not None and self.views.root(written) in live):
                kept.append(node)
                for ref in node.inputs():
                    live |= {ref.name, self.views.root(ref.name)}
        return kept[::-1]

    def node(self, node: Node) -> None:
        loc = node.loc
        self.importer.graph.at(loc.file, loc.line, loc.module)
        try:
            result = self.call(node)
        except (UnsupportedCaseError, OpError, LoweringError) as error:
            self.importer.report.add(node.target, loc, str(error))
            result = _POISON
        except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
            self.importer.report.add(node.target, loc, f"this use is not understood: {type(error).__name__}: {error}")
            result = _POISON
        self.bind(node, result)

    def call(self, node: Node) -> Any:
        """The node's result; _POISON when an operand is, or when the op is unknown (then reported)."""
        if node.target == "operator.getitem" or (node.output_names() and self.is_symbolic(node)):
            return self.symbolic(node)
        row = find_row(functional_target(node.target))
        call = CALLS.get(node.target)
        if row is None and call is None:
            self.importer.report.add(node.target, node.loc)
            return _POISON
        args = [self.arg(arg) for arg in node.args]
        kwargs = {key: self.arg(arg) for key, arg in node.kwargs.items() if key not in IGNORED_KEYWORDS}
        if any(_has_poison(arg) for arg in [*args, *kwargs.values()]):
            return _POISON
        if call is not None:
            return call(self, args)
        assert row is not None
        if self.is_elementwise and not is_elementwise(row.__module__):
            raise UnsupportedCaseError("an op in a score_mod or mask_mod that is not elementwise")
        builder = self.importer.builder
        builder.outs = [self.graph.values.get(name) for name in node.output_names()]
        result = row(builder, *args, **kwargs)
        written = written_argument(node)
        return result if written is None else self.write(node, written, result)

    def is_symbolic(self, node: Node) -> bool:
        value = self.graph.values.get(node.output_names()[0])
        return value is not None and value.shape is None

    def symbolic(self, node: Node) -> Any:
        """A size: its expression is in the record. Floats computed from sizes become 0-D tensors."""
        if node.target == "operator.getitem":
            owner, index = (self.arg(arg) for arg in node.args)
            return owner if owner is _POISON else owner[index]
        value = self.graph.values[node.output_names()[0]]
        if value.expr is not None:
            size = _size(value.expr)
            if node.target in _ITEMS and str(size) in self.importer.builder.unread:
                return read_item(self.importer.builder, self.arg(node.args[0]), size)
            known, unread = self.importer.program.symbols, self.importer.builder.unread
            if isinstance(size, Dim) and any(name not in known or name in unread for name in dims.symbols(size)):
                raise UnsupportedCaseError("a size read from data by an op that mlc does not take sizes from")
            return size
        if node.target in _ITEMS:
            return self.importer.builder.reshape(self.arg(node.args[0]), [])
        row = find_row(node.target)
        if row is None:
            raise UnsupportedCaseError("arithmetic on a number that is no integer size")
        self.importer.builder.outs = [value]
        return row(self.importer.builder, *(self.arg(arg) for arg in node.args))

    def write(self, node: Node, name: str, result: Any) -> Any:
        """Makes `result` the new contents of the written tensor and of what shares its memory."""
        builder = self.importer.builder
        old = self.graph.values[name]
        assert old.shape is not None
        first = result[0] if isinstance(result, tuple) else result
        value = builder.expand(builder.cast(first, old.dtype), [_size(size) for size in old.shape])
        self.views.write(name, value, node.loc, self)
        return value

    def bind(self, node: Node, result: Any) -> None:
        results = result if isinstance(result, tuple) else (result,)
        if len(results) == 1 and len(node.outputs) > 1:
            results = tuple(results[0]) if isinstance(results[0], list) else results * len(node.outputs)
        for output, value in zip(node.outputs, results, strict=False):
            if isinstance(output, list):
                for index, name in enumerate(output):
                    if name is not None:
                        self.env[name] = _POISON if value is _POISON else self.spelt(name, value[index])
            elif output is not None:
                self.env[output] = self.spelt(output, value)

    def spelt(self, name: str, value: Any) -> Any:
        """The value with its sizes written as torch wrote them, which later sizes are computed from."""
        recorded = self.graph.values.get(name)
        if self.is_elementwise or recorded is None or recorded.shape is None or not is_tensor(value):
            return value
        assert len(recorded.shape) == len(value.shape), f"{name} is {value.type}, torch has {recorded.shape}"
        return self.importer.builder.reshape(value, [_size(size) for size in recorded.shape])

    def arg(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self.read(arg.name)
        if isinstance(arg, (list, tuple)):
            return [self.arg(item) for item in arg]
        return arg

    def read(self, name: str) -> Any:
        """The current value: a stale view is taken again from what it views."""
        if name in self.views.stale:
            self.views.stale.discard(name)
            parent, node = self.views.parents[name]
            value = self.read(parent)
            if written_argument(node) is None:
                self.node(node)
            else:
                self.env[name] = value  # what an in-place op returns is the tensor itself
        elif name not in self.env:
            if name not in self.weights:
                raise UnsupportedCaseError("a choice that depends on sizes")
            self.env[name] = self.importer.weight(self.weights[name])
        return self.env[name]

    def inline(self, graph: Graph, operands: list[Any], is_elementwise: bool = False) -> list[Any]:
        """The subgraph's results for these operands, imported in place.

        `is_elementwise`: the subgraph is written for one element, and is taken for whole arrays that broadcast.
        """
        env = {ref.name: value for ref, value in zip(graph.inputs, operands, strict=True) if isinstance(ref, Ref)}
        scope = Scope(self.importer, graph, env, {}, is_elementwise)
        results = scope.run(graph.outputs)
        if any(ref.name in scope.views.written for ref in refs(graph.inputs)):
            raise UnsupportedCaseError("a subgraph that writes to its operands in place")
        if any(result is _POISON for result in results):
            raise UnsupportedCaseError("its subgraph holds an unsupported op")
        return results


def _has_poison(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_poison(item) for item in value)
    return value is _POISON
