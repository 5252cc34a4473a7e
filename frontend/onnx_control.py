"""ONNX control flow, resolved at import.

An `If` whose condition is known takes its branch; any other runs both branches, which have no effects, and selects.
Where the sizes at hand fit one branch only (a voice detector has one for each sampling rate, and chunks have a length
for one of them), the results are NaN when the other is taken: no run of the model has a value there.
`Loop` and `Scan` of known length are unrolled. A `Loop` that data may end earlier runs all its iterations and keeps the
values of the last one that counts. One whose length data decide, or that is long, runs as a loop (frontend/loops.py),
which cannot collect outputs, whose number would depend on data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from mlc.dialects.dims import Dim
from mlc.dialects.types import DTYPES
from mlc.frontend import loops
from mlc.frontend.graph import Value
from mlc.frontend.onnx_ops import Call, NeedsKnownError, SameSizeError, UnsupportedNodeError
from mlc.frontend.onnx_proto import Graph, Node
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.onnx import Importer, Scope

Control = Callable[["Importer", Node, list[Any], "Scope"], list[Any]]
CONTROL: dict[str, Control] = {}
LONGEST_UNROLL = 1024


def control(name: str) -> Callable[[Control], Control]:
    """Registers the importer of a control-flow op: it gets the scope, since its subgraphs see the values around it."""

    def register(function: Control) -> Control:
        CONTROL[name] = function
        return function

    return register


def element_type(x: Any) -> onnx.TypeProto:
    """The ONNX type of a value, for function bodies that depend on it; an empty type for an absent one."""
    if isinstance(x, Known):
        return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))
    if isinstance(x, Value):
        number = onnx.helper.np_dtype_to_tensor_dtype(DTYPES[x.dtype].numpy)
        return onnx.helper.make_tensor_type_proto(number, [str(s) if isinstance(s, Dim) else s for s in x.shape])
    return onnx.TypeProto()


def _run(importer: Importer, graph: Graph, scope: Scope, inputs: list[Any]) -> list[Any]:
    """A subgraph's outputs, given its formal inputs' values."""
    inner = scope.child()
    inner.values.update((info.name, x) for info, x in zip(graph.inputs, inputs, strict=False))
    importer.run_graph(graph, inner)
    return [inner.get(info.name) for info in graph.outputs]


@control("If")
def _if(importer: Importer, node: Node, inputs: list[Any], scope: Scope) -> list[Any]:
    condition = inputs[0]
    if isinstance(condition, Known):
        branch = "then_branch" if condition.array.reshape(-1)[0] else "else_branch"
        return _run(importer, node.attrs[branch], scope, [])
    if _is_guarded_squeeze(node):
        return _run(importer, node.attrs["then_branch"], scope, [])
    branches = [node.attrs[name] for name in ("then_branch", "else_branch")]
    (yes, yes_report), (no, no_report) = (
        importer.attempt(lambda branch=branch: _run(importer, branch, scope, [])) for branch in branches
    )
    importer.locate(node)
    call = Call(importer, node, importer.sizes)
    if yes_report.holds_misfits_only and not no_report.findings:
        yes = [_no_value(importer, call, x, name) for x, name in zip(no, node.outputs, strict=True)]
    elif no_report.holds_misfits_only and not yes_report.findings:
        no = [_no_value(importer, call, x, name) for x, name in zip(yes, node.outputs, strict=True)]
    else:
        importer.report.add_all(yes_report)
        importer.report.add_all(no_report)
    flag = call.shaped(condition, [])
    return [_select(importer, call, flag, a, b, name) for a, b, name in zip(yes, no, node.outputs, strict=True)]


def _no_value(importer: Importer, call: Call, other: Any, name: str) -> Any:
    """What stands for a branch's result that cannot be: NaN in the shape of the other branch's."""
    like = importer.materialize(other, name)
    if not DTYPES[like.dtype].is_float:
        raise UnsupportedNodeError(f"'{name}' of a branch that does not fit the sizes: {like.dtype} has no NaN")
    return call.full(shape=list(like.shape), value=np.nan, dtype=like.dtype)


def _is_guarded_squeeze(node: Node) -> bool:
    """What torch's exporter makes of `squeeze`: If(size == 1, Squeeze(x), x).

    Two ranks cannot both fit what follows, and the model was traced with the squeezed one.
    """
    yes, no = (node.attrs[name].nodes for name in ("then_branch", "else_branch"))
    return bool(yes and no) and yes[-1].op == "Squeeze" and len(no) == 1 and no[0].op == "Identity"


def _select(importer: Importer, call: Call, flag: Value, yes: Any, no: Any, name: str) -> Any:
    if importer.has_failed(yes) or importer.has_failed(no):
        return importer.failed
    if isinstance(yes, Known) and isinstance(no, Known) and _is_same(yes, no):
        return yes
    a, b = importer.materialize(yes, name), importer.materialize(no, name)
    if len(a.shape) != len(b.shape) or a.dtype != b.dtype:
        raise UnsupportedNodeError(f"branches give '{name}' as {a.type} and as {b.type}")
    for left, right in zip(a.shape, b.shape, strict=True):
        if left != right:
            if isinstance(left, int) and isinstance(right, int):
                raise UnsupportedNodeError(f"branches give '{name}' as {a.type} and as {b.type}")
            raise SameSizeError(left, right)
    return call.where(flag, a, b)


def _is_same(a: Known, b: Known) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.all(a.array == b.array))


@control("Loop")
def _loop(importer: Importer, node: Node, inputs: list[Any], scope: Scope) -> list[Any]:
    body: Graph = node.attrs["body"]
    limit, condition, state = inputs[0], inputs[1] if len(inputs) > 1 else None, inputs[2:]
    if _runs_as_loop(importer, node, limit, condition, len(state)):
        return _data_loop(importer, node, limit, condition, state, scope)
    if limit is not None and (not isinstance(limit, Known) or limit.is_symbolic):
        raise NeedsKnownError(node.inputs[0], "the number of iterations")
    scans: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    count = LONGEST_UNROLL + 1 if limit is None else min(int(limit.item()), LONGEST_UNROLL + 1)
    call = Call(importer, node, importer.sizes)
    alive: Value | None = None
    for iteration in range(count):
        if isinstance(condition, Known) and not condition.array.reshape(-1)[0]:
            break
        if iteration == LONGEST_UNROLL:
            raise UnsupportedNodeError(f"a loop of more than {LONGEST_UNROLL} iterations")
        if isinstance(condition, Value):
            _may_end(node, iteration, limit is not None and not scans)
            flag = call.shaped(condition, [])
            alive = flag if alive is None else call.logical_and(alive, flag)
        going = Known.of(np.asarray(True)) if condition is None else condition
        results = _run(importer, body, scope, [Known.of(np.asarray(iteration)), going, *state])
        if any(importer.has_failed(r) for r in results):
            return [importer.failed] * len(node.outputs)
        importer.locate(node)
        condition, new = results[0], results[1 : 1 + len(state)]
        if alive is not None:
            kept = zip(new, state, node.outputs, strict=False)
            new = [_select(importer, call, alive, after, before, name) for after, before, name in kept]
        state = new
        for collected, result in zip(scans, results[1 + len(state) :], strict=True):
            collected.append(result)
    return [*state, *(_stacked(importer, call, parts, 0) for parts in scans)]


def _runs_as_loop(importer: Importer, node: Node, limit: Any, condition: Any, states: int) -> bool:
    """Whether the number of iterations is unknown or large, and nothing is collected from each."""
    if len(node.attrs["body"].outputs) - 1 - states:
        return False
    if limit is not None and not isinstance(limit, Known):
        return True
    if limit is None or limit.is_symbolic or int(limit.item()) > LONGEST_UNROLL:
        return not (isinstance(condition, Known) and not condition.array.reshape(-1)[0])
    return False


def _data_loop(importer: Importer, node: Node, limit: Any, condition: Any, state: list[Any], scope: Scope) -> list[Any]:
    body: Graph = node.attrs["body"]
    call = Call(importer, node, importer.sizes)
    most = None if limit is None else call.to(call.shaped(importer.materialize(limit, node.inputs[0]), []), "i64")
    start = [call.scalar(0, "i64"), call.shaped(importer.materialize(_flag(condition), "condition"), [])]
    names = [info.name for info in body.inputs[2:]]
    start += [importer.materialize(x, name) for x, name in zip(state, names, strict=True)]

    def goes_on(states: list[Any]) -> Any:
        return states[1] if most is None else call.logical_and(states[1], call.lt(states[0], most))

    def following(states: list[Any]) -> list[Any]:
        results = _run(importer, body, scope, states)
        importer.locate(node)
        if any(importer.has_failed(r) for r in results):
            raise UnsupportedNodeError("its body has nodes that cannot be imported, each listed by itself")
        going, *new = (importer.materialize(x, i.name) for x, i in zip(results, body.outputs, strict=True))
        return [call.add(states[0], call.scalar(1, "i64")), call.shaped(going, []), *new]

    return loops.while_loop(importer.g, start, goes_on, following)[2:]


def _flag(condition: Any) -> Any:
    return Known.of(np.asarray(True)) if condition is None else condition


def _may_end(node: Node, iteration: int, is_bounded: bool) -> None:
    """Refuses a loop whose end depends on data where its results cannot be had from a known number of iterations."""
    if is_bounded:
        return
    if iteration == 0:
        raise NeedsKnownError(node.inputs[1], "whether the loop runs")
    raise UnsupportedNodeError("a loop that data ends, without a limit or with collected outputs")


@control("Scan")
def _scan(importer: Importer, node: Node, inputs: list[Any], scope: Scope) -> list[Any]:
    if node.version < 9:
        return _batched_scan(importer, node, inputs, scope)
    scanned = node.attrs["num_scan_inputs"]
    state = inputs[: len(inputs) - scanned]
    call = Call(importer, node, importer.sizes)
    names = node.inputs[len(state) :]
    sequences = [importer.materialize(x, name) for x, name in zip(inputs[len(state) :], names, strict=True)]
    axes = node.attrs.get("scan_input_axes") or [0] * scanned
    axes = [call.axis(x, axis) for x, axis in zip(sequences, axes, strict=True)]
    backwards = node.attrs.get("scan_input_directions") or [0] * scanned
    state, outputs = _scan_steps(importer, node, scope, state, sequences, axes, backwards)
    if any(importer.has_failed(x) for x in state):
        return [importer.failed] * len(node.outputs)
    importer.locate(node)
    out_axes = node.attrs.get("scan_output_axes") or [0] * len(outputs)
    reverse = node.attrs.get("scan_output_directions") or [0] * len(outputs)
    stacked = zip(outputs, out_axes, reverse, strict=True)
    return [*state, *(_stacked(importer, call, parts[::-1] if back else parts, axis) for parts, axis, back in stacked)]


def _scan_steps(
    importer: Importer,
    node: Node,
    scope: Scope,
    state: list[Any],
    sequences: list[Value],
    axes: list[int],
    backwards: list[int],
) -> tuple[list[Any], list[list[Any]]]:
    """The last state, and of each output what every step gave."""
    body: Graph = node.attrs["body"]
    call = Call(importer, node, importer.sizes)
    length = sequences[0].shape[axes[0]]
    if not isinstance(length, int) or length > LONGEST_UNROLL:
        raise UnsupportedNodeError(f"a scan over {length} steps")
    outputs: list[list[Any]] = [[] for _ in range(len(body.outputs) - len(state))]
    for step in range(length):
        importer.locate(node)
        items = []
        for x, axis, backward in zip(sequences, axes, backwards, strict=True):
            at = length - 1 - step if backward else step
            items.append(call.shaped(call.sliced(x, axis, at, at + 1), [*x.shape[:axis], *x.shape[axis + 1 :]]))
        results = _run(importer, body, scope, [*state, *items])
        if any(importer.has_failed(r) for r in results):
            return [importer.failed], outputs
        state = results[: len(state)]
        for collected, result in zip(outputs, results[len(state) :], strict=True):
            collected.append(result)
    return state, outputs


def _batched_scan(importer: Importer, node: Node, inputs: list[Any], scope: Scope) -> list[Any]:
    """Operator set 8: states [B, ...] and sequences [B, T, ...], each item of the batch a scan of its own."""
    lengths, *rest = inputs
    if lengths is not None:
        raise UnsupportedNodeError("sequence lengths")
    call = Call(importer, node, importer.sizes)
    scanned = node.attrs["num_scan_inputs"]
    values = [importer.materialize(x, name) for x, name in zip(rest, node.inputs[1:], strict=True)]
    batch = values[0].shape[0]
    if not isinstance(batch, int):
        raise UnsupportedNodeError(f"a scan over a batch of {batch}")
    columns: list[list[Any]] = [[] for _ in node.outputs]
    for item in range(batch):
        importer.locate(node)
        own = [call.shaped(call.sliced(x, 0, item, item + 1), x.shape[1:]) for x in values]
        start, sequences = own[: len(own) - scanned], own[len(own) - scanned :]
        backwards = node.attrs.get("directions") or [0] * scanned
        state, outputs = _scan_steps(importer, node, scope, start, sequences, [0] * scanned, backwards)
        if any(importer.has_failed(x) for x in state):
            return [importer.failed] * len(node.outputs)
        importer.locate(node)
        results = [*state, *(_stacked(importer, call, parts, 0) for parts in outputs)]
        for column, result in zip(columns, results, strict=True):
            column.append(result)
    return [_stacked(importer, call, column, 0) for column in columns]


def _stacked(importer: Importer, call: Call, parts: list[Any], axis: int) -> Value:
    """The values an iteration gave, along a new axis."""
    if not parts:
        raise UnsupportedNodeError("a loop without iterations that collects outputs")
    values = [importer.materialize(part, "scan output") for part in parts]
    rank = len(values[0].shape) + 1
    at = axis % rank
    return call.concat(*(call.shaped(v, [*v.shape[:at], 1, *v.shape[at:]]) for v in values), axis=at)
