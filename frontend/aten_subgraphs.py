"""Higher-order ops: calls that hold subgraphs. Each function takes a scope of the importer and the call's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlc.frontend import loops
from mlc.frontend.aten_index import index
from mlc.frontend.aten_rows import AtenBuilder, is_tensor
from mlc.frontend.record import Graph, Node, Ref, refs
from mlc.frontend.report import UnsupportedCaseError

if TYPE_CHECKING:
    from mlc.frontend.aten import Scope

Call = Callable[["Scope", list[Any]], Any]
CALLS: dict[str, Call] = {}

# Rows that hold for whole arrays where a subgraph is written for one element.
_ELEMENTWISE = ("aten_pointwise", "aten_activation", "aten_index", "aten_create", "aten")


def higher_order(*names: str) -> Callable[[Call], Call]:
    """Registers the function for `higher_order.<name>`."""

    def register(function: Call) -> Call:
        for name in names:
            CALLS[f"higher_order.{name}"] = function
        return function

    return register


def is_elementwise(module: str) -> bool:
    """Whether rows of this module may stand in a score_mod or mask_mod."""
    return module.rsplit(".", 1)[-1] in _ELEMENTWISE


@higher_order("wrap_with_set_grad_enabled", "wrap_with_autocast")
def in_place(scope: Scope, args: list[Any]) -> Any:
    """Regions that only switch gradients or autocasting: the dtypes in them are recorded already."""
    first = next(position for position, arg in enumerate(args) if isinstance(arg, Graph))
    return tuple(scope.inline(args[first], args[first + 1 :]))


@higher_order("cond")
def cond(scope: Scope, args: list[Any]) -> Any:
    """Both branches are pure, finite work: choosing between their results is choosing between them."""
    condition, then, other, operands = args
    if isinstance(condition, bool):
        return tuple(scope.inline(then if condition else other, operands))
    pairs = zip(scope.inline(then, operands), scope.inline(other, operands), strict=True)
    return tuple(scope.importer.builder.where(condition, a, b, a.dtype) for a, b in pairs)


@higher_order("while_loop")
def while_loop(scope: Scope, args: list[Any]) -> Any:
    """A loop that runs as one: nothing is unrolled."""
    condition, body, carried, shared = args
    builder: AtenBuilder = scope.importer.builder
    initial = [x if is_tensor(x) else builder.scalar(x, "i64") for x in carried]

    def following(states: list[Any]) -> list[Any]:
        results = scope.inline(body, [*states, *(shared or [])])
        return [builder.scalar(x, state.dtype) for x, state in zip(results, states, strict=True)]

    def goes_on(states: list[Any]) -> Any:
        return builder.scalar(scope.inline(condition, [*states, *(shared or [])])[0], "bool")

    return tuple(loops.while_loop(scope.importer.graph, initial, goes_on, following))


@higher_order("scan")
def scan(scope: Scope, args: list[Any]) -> Any:
    """Unrolled over its static leading dimension."""
    graph, carries, sequences, shared = args
    builder = scope.importer.builder
    count = sequences[0].shape[0]
    if not isinstance(count, int):
        raise UnsupportedCaseError(f"a scan over a dynamic length ({count}); export it with a fixed length")
    rows: list[list[Any]] = []
    for step in range(count):
        items = [builder.squeeze(builder.slice(x, 0, step, step + 1), 0) for x in sequences]
        results = scope.inline(graph, [*carries, *items, *(shared or [])])
        carries = results[: len(carries)]
        rows.append(results[len(carries) :])
    stacked = [builder.concat([builder.unsqueeze(x, 0) for x in column], 0) for column in zip(*rows, strict=True)]
    return (*carries, *stacked)


@higher_order("map_impl", "map")
def map_(scope: Scope, args: list[Any]) -> Any:
    graph, sequences, shared = args
    return scan(scope, [graph, [], sequences, shared])


# --- flex_attention ---


def without_block_mask(node: Node) -> Node:
    """The call without its block mask but for mask_mod: the rest is a hint, made by code that is dead without it."""
    if node.target != "higher_order.flex_attention":
        return node
    args = list(node.args)
    args[4] = [args[4][-1]]
    return Node(node.target, args, node.kwargs, node.outputs, node.loc)


@higher_order("flex_attention")
def flex_attention(scope: Scope, args: list[Any]) -> Any:
    """score_mod and mask_mod are taken for all scores at once: their index operands become [B,1,1,1] ... [1,1,1,K]."""
    query, key, value, score_mod, [mask_mod], scale, _, score_captures, mask_captures = args[:9]
    b: AtenBuilder = scope.importer.builder
    shape = [*query.shape[:3], key.shape[2]]
    places = []
    for axis, size in enumerate(shape):
        places.append(b.reshape(b.iota(size, "i32"), [size if i == axis else 1 for i in range(4)]))
    [mask] = scope.inline(mask_mod, [*places, *(mask_captures or [])], is_elementwise=True)
    mask = _of_rank_4(b, b.cast(mask, "bool"))
    found = None
    bias = _added_bias(scope, score_mod, places, score_captures or [])
    if bias is not None:
        visible = mask
        if not is_zero(bias):
            visible = b.where(mask, _of_rank_4(b, b.cast(bias, query.dtype)), -math.inf, query.dtype)
        found = b.op("attention", query, key, value, visible, scale=float(scale), is_causal=False)
    wanted = [bool((args[6] or {}).get(name)) for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")]
    if found is not None and not any(wanted):
        return found, None, None
    key, value = (_all_heads(b, x, shape[1]) for x in (key, value))
    scores = b.mul(b.op("matmul", query, key, transpose_b=True), float(scale), query.dtype)
    [scores] = scope.inline(score_mod, [scores, *places, *(score_captures or [])], is_elementwise=True)
    scores = b.where(mask, b.expand(b.cast(scores, query.dtype), shape), -math.inf, query.dtype)
    if found is None:
        # A row with nothing visible gives NaN, which the mask turns into zeros.
        weights = b.where(mask, b.op("softmax", scores, axis=3), 0, query.dtype)
        found = b.op("matmul", weights, value)
    return found, *_score_statistics(b, scores, *wanted)


def _score_statistics(b: AtenBuilder, scores: Any, has_logsumexp: bool, has_max: bool) -> tuple[Any, Any]:
    """Logarithm to base 2 of the sum of exponentials of each row, and its largest score; None where not wanted."""
    if not has_logsumexp and not has_max:
        return None, None
    peak = b.op("max", scores, axes=[3], keepdims=False)
    if not has_logsumexp:
        return None, peak
    finite = b.where(b.op("eq", peak, b.scalar(-math.inf, peak.dtype)), 0, peak, peak.dtype)
    shifted = b.op("exp", b.sub(scores, b.unsqueeze(finite, 3), scores.dtype))
    total = b.op("log", b.op("sum", shifted, axes=[3], keepdims=False))
    logsumexp = b.mul(b.op("add", total, finite), 1 / math.log(2), peak.dtype)
    return logsumexp, peak if has_max else None


class _Zero:
    """The bias of a score_mod that returns the score."""


def is_zero(bias: Any) -> bool:
    return isinstance(bias, _Zero)


def _added_bias(scope: Scope, graph: Graph, places: list[Any], captures: list[Any]) -> Any:
    """What score_mod adds to the score, if that is all it does; None otherwise."""
    score = graph.inputs[0].name if isinstance(graph.inputs[0], Ref) else ""
    output = graph.outputs[0]
    if isinstance(output, Ref) and output.name == score:
        return _Zero()
    users = [node for node in graph.nodes if any(ref.name == score for ref in node.inputs())]
    last = graph.nodes[-1] if graph.nodes else None
    if users != [last] or last is None or last.target != "aten.add.Tensor" or last.kwargs or len(last.args) != 2:
        return None
    if output != Ref(last.outputs[0]):
        return None
    [other] = [arg for arg in last.args if arg != Ref(score)] or [None]
    if not isinstance(other, Ref) or sum(1 for _ in refs(last.args)) != 2:
        return None
    inner = Graph(graph.inputs, [other], graph.nodes[:-1], graph.values)
    placeholder = places[0]  # score_mod reads its score in the last node only
    return scope.inline(inner, [placeholder, *places, *captures], is_elementwise=True)[0]


def _of_rank_4(b: AtenBuilder, x: Any) -> Any:
    return b.reshape(x, [1] * (4 - len(x.shape)) + list(x.shape))


def _all_heads(b: AtenBuilder, x: Any, heads: Any) -> Any:
    """Key or value heads, each repeated for the query heads that share it."""
    batch, own, keys, depth = x.shape
    if own == heads:
        return x
    group = heads // own
    wide = b.expand(b.reshape(x, [batch, own, 1, keys, depth]), [batch, own, group, keys, depth])
    return b.reshape(wide, [batch, heads, keys, depth])


@higher_order("flat_apply")
def flat_apply(scope: Scope, args: list[Any]) -> Any:
    """Reading a captured tensor at computed places, which export wraps in a function of its own."""
    if not any(isinstance(arg, str) and "ModIndex" in arg for arg in args):
        raise UnsupportedCaseError("a wrapped function other than indexing")
    tensors = [arg for arg in args if arg is not None and not isinstance(arg, str)]
    return index(scope.importer.builder, tensors[0], tensors[1:])
