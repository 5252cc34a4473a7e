"""Evaluates ONNX nodes whose inputs are known at import: size arithmetic with symbols in it, and small constants.

A rule takes the node, its inputs as Known and the Sizes to decide by, and gives the output's Known (a list where there
are several). Rules work on symbols; a node of numbers alone that has no rule is run by onnx's own reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from mlc.dialects.dims import Dim
from mlc.frontend import shape_values as sv
from mlc.frontend.onnx_proto import Node
from mlc.frontend.shape_values import SMALL_ELEMS, Known, Ratio, Sizes, UndecidedError, elementwise
from onnx.reference import ReferenceEvaluator

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# These may turn a few numbers into many, or are not functions of their inputs; as graph ops they cost nothing here.
_NOT_HERE = {"Bernoulli", "ConstantOfShape", "Dropout", "Expand", "EyeLike", "Multinomial", "OneHot", "Pad", "Range"}
_NOT_HERE |= {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Resize", "Tile", "Upsample"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the folding rule of the named ops."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def fold(node: Node, inputs: list[Known | None], sizes: Sizes) -> list[Known] | None:
    """The outputs of a node with known inputs; None where it is the graph's work after all."""
    if node.domain or sum(x.array.size for x in inputs if x) > SMALL_ELEMS:
        return None
    symbolic = any(x.is_symbolic for x in inputs if x)
    function = RULES.get(node.op)
    try:
        if function is not None:
            out = function(node, sizes, *inputs)
            if out is not None:
                return out if isinstance(out, list) else [out]
    except UndecidedError:
        return None
    if symbolic or node.op in _NOT_HERE or node.attr_refs:
        return None
    return run_reference(node, inputs)


def fold_view(node: Node, inputs: list[Known | None], sizes: Sizes) -> list[Known] | None:
    """A large constant seen in another shape: costs no memory, so that weights behind a Reshape stay weights."""
    if node.domain or node.op not in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten") or inputs[0] is None:
        return None
    out = RULES[node.op](node, sizes, *inputs)
    return out if isinstance(out, list) else [out]


def run_reference(node: Node, inputs: list[Known | None]) -> list[Known] | None:
    """The outputs by onnx's reference evaluator; None for what it cannot do."""
    if node.proto is None:
        return None
    names = [name for name in node.inputs if name]
    feeds = {name: x.array for name, x in zip(node.inputs, inputs, strict=True) if name and x is not None}
    infos = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in dict.fromkeys(names)]
    outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.outputs if name]
    graph = onnx.helper.make_graph([node.proto], "fold", infos, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.version)])
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except Exception:
        return None  # the evaluator lacks the op or this use of it; the graph has it
    found = [next(results) if name else np.empty(0) for name in node.outputs]
    if not all(isinstance(array, np.ndarray | np.generic) for array in found):
        return None
    return [Known.of(np.asarray(array)) for array in found]


# --- elementwise ---


@rule("Identity", "Dropout")
def _identity(node: Node, sizes: Sizes, x: Known, *_: Known) -> Known | None:
    return x if len([o for o in node.outputs if o]) == 1 else None


@rule("Add")
def _add(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    return _symbolic(lambda x, y: x + y, a, b)


@rule("Sub")
def _sub(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    return _symbolic(lambda x, y: x - y, a, b)


@rule("Mul")
def _mul(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    return _symbolic(lambda x, y: x * y, a, b)


def _symbolic(function: Callable[..., Any], *operands: Known) -> Known | None:
    """Numbers alone are left to numpy, which wraps and rounds in the dtype; with symbols, floats become ratios."""
    if not any(x.is_symbolic for x in operands):
        return None
    if operands[0].dtype.kind == "f":
        return elementwise(lambda *args: function(*(Ratio.of(a) for a in args)), *operands)
    return elementwise(function, *operands)


@rule("Div")
def _div(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    return sizes.divide(a, b) if a.is_symbolic or b.is_symbolic or a.dtype.kind in "iu" else None


@rule("Mod")
def _mod(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    if not (a.is_symbolic or b.is_symbolic) or a.dtype.kind == "f":
        return None
    return elementwise(lambda x, y: x - sizes.quotient(x, y) * y if isinstance(y, Dim) else x % y, a, b)


@rule("Pow")
def _pow(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    return _symbolic(sv.power, a, b)


@rule("Neg")
def _neg(node: Node, sizes: Sizes, x: Known) -> Known | None:
    return _symbolic(lambda item: -item, x)


@rule("Abs", "Relu")
def _abs(node: Node, sizes: Sizes, x: Known) -> Known | None:
    return _symbolic(lambda item: sizes.larger_of(item, -item if node.op == "Abs" else 0), x)


@rule("Max", "Min")
def _extreme(node: Node, sizes: Sizes, *xs: Known) -> Known | None:
    pick = sizes.larger_of if node.op == "Max" else sizes.smaller_of
    out = xs[0]
    for x in xs[1:]:
        folded = _symbolic(pick, out, x)
        if folded is None:
            return None
        out = folded
    return out


@rule("Floor", "Ceil")
def _whole(node: Node, sizes: Sizes, x: Known) -> Known | None:
    if not x.is_symbolic:
        return None
    return _symbolic(lambda r: Ratio.of(r.floor() if node.op == "Floor" else r.ceil()), x)


@rule("Cast")
def _cast(node: Node, sizes: Sizes, x: Known) -> Known | None:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if not x.is_symbolic:
        if x.dtype.kind in "biu" and dtype.kind in "biuf":
            return Known(x.array.astype(dtype), dtype)
        return None
    if dtype.kind == "b":
        return elementwise(lambda item: not sizes.equal(item, 0), x, dtype=dtype)
    return elementwise(sv.to_integer if dtype.kind in "iu" else Ratio.of, x, dtype=dtype)


@rule("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def _compare(node: Node, sizes: Sizes, a: Known, b: Known) -> Known | None:
    if not (a.is_symbolic or b.is_symbolic):
        return None
    question: dict[str, Callable[[Any, Any], bool]] = {
        "Equal": sizes.equal,
        "Less": sizes.less,
        "Greater": lambda x, y: sizes.less(y, x),
        "LessOrEqual": lambda x, y: not sizes.less(y, x),
        "GreaterOrEqual": lambda x, y: not sizes.less(x, y),
    }
    return elementwise(question[node.op], a, b, dtype=bool)


@rule("Where")
def _where(node: Node, sizes: Sizes, cond: Known, a: Known, b: Known) -> Known:
    return elementwise(lambda c, x, y: x if c else y, cond, a, b, dtype=a.dtype)


# --- shapes and data movement: numpy's own, on object arrays too ---


@rule("Constant")
def _constant(node: Node, sizes: Sizes) -> Known | None:
    for kind, dtype in (("int", np.int64), ("float", np.float32)):
        for name in (f"value_{kind}", f"value_{kind}s"):
            if name in node.attrs:
                return Known.of(np.asarray(node.attrs[name], dtype))
    value = node.attrs.get("value", node.attrs.get("sparse_value"))
    return None if value is None else Known.of(np.asarray(value))


@rule("ConstantOfShape")
def _constant_of_shape(node: Node, sizes: Sizes, shape: Known) -> Known | None:
    count = sv.product(shape.items())
    if not isinstance(count, int) or count > SMALL_ELEMS:
        return None
    value = node.attrs.get("value", np.zeros(1, np.float32))
    return Known.of(np.full(shape.items(), value.reshape(-1)[0], value.dtype))


@rule("Range")
def _range(node: Node, sizes: Sizes, start: Known, limit: Known, delta: Known) -> Known | None:
    if start.is_symbolic or limit.is_symbolic or delta.is_symbolic:
        return None
    first, last, step = start.item(), limit.item(), delta.item()
    count = max(int(np.ceil((last - first) / step)), 0)
    return Known.of((first + np.arange(count) * step).astype(start.dtype)) if count <= SMALL_ELEMS else None


@rule("Size")
def _size(node: Node, sizes: Sizes, x: Known) -> Known:
    return Known.of(np.asarray(x.array.size, np.int64))


@rule("Shape")
def _shape(node: Node, sizes: Sizes, x: Known) -> Known:
    return shape_of(node, x.shape)


def shape_of(node: Node, shape: tuple[Any, ...]) -> Known:
    """What a Shape node gives for an input of this shape."""
    return Known.of(list(shape[node.attrs.get("start", 0) : node.attrs.get("end", len(shape))]), np.int64)


@rule("Reshape")
def _reshape(node: Node, sizes: Sizes, x: Known, shape: Known | None = None) -> Known | None:
    target = node.attrs["shape"] if shape is None else shape.items()
    if any(sv.is_symbolic(size) for size in target):
        return None
    target = sv.resolve_reshape(x.shape, list(target), zero_copies=not node.attrs.get("allowzero", 0))
    return Known(x.array.reshape(target), x.dtype)


@rule("Flatten")
def _flatten(node: Node, sizes: Sizes, x: Known) -> Known:
    axis = node.attrs.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return Known(x.array.reshape(int(np.prod(x.shape[:axis])), -1), x.dtype)


@rule("Unsqueeze")
def _unsqueeze(node: Node, sizes: Sizes, x: Known, axes: Known | None = None) -> Known:
    return Known(np.expand_dims(x.array, tuple(axes.items() if axes else node.attrs["axes"])), x.dtype)


@rule("Squeeze")
def _squeeze(node: Node, sizes: Sizes, x: Known, axes: Known | None = None) -> Known:
    given = axes.items() if axes else node.attrs.get("axes")
    return Known(np.squeeze(x.array, None if given is None else tuple(given)), x.dtype)


@rule("Concat")
def _concat(node: Node, sizes: Sizes, *xs: Known) -> Known:
    return Known.of(np.concatenate([x.array for x in xs], node.attrs.get("axis", 1)), xs[0].dtype)


@rule("Gather")
def _gather(node: Node, sizes: Sizes, x: Known, indices: Known) -> Known | None:
    if indices.is_symbolic:
        return None
    return Known.of(np.asarray(np.take(x.array, indices.array, node.attrs.get("axis", 0))), x.dtype)


@rule("Slice")
def _slice(node: Node, sizes: Sizes, x: Known, *ranges: Known | None) -> Known | None:
    if any(r is not None and r.is_symbolic for r in ranges):
        return None
    given = [None if r is None else r.items() for r in ranges]
    given = given or [node.attrs["starts"], node.attrs["ends"], node.attrs.get("axes")]
    starts, ends = given[0] or [], given[1] or []
    axes, steps = [*given[2:], None, None][:2]
    index: list[Any] = [slice(None)] * len(x.shape)
    for i, axis in enumerate(axes or range(len(starts))):
        step = steps[i] if steps else 1
        start, limit, _ = sizes.slice_bounds(x.shape[axis], starts[i], ends[i], step)
        index[axis] = slice(start, None if limit < 0 else limit, step)
    return Known.of(x.array[tuple(index)], x.dtype)


@rule("Split")
def _split(node: Node, sizes: Sizes, x: Known, split: Known | None = None) -> list[Known] | None:
    axis = node.attrs.get("axis", 0)
    parts = split.items() if split else node.attrs.get("split")
    if parts is None:
        chunk = -(-x.shape[axis] // len(node.outputs))
        parts = [min(chunk, x.shape[axis] - i * chunk) for i in range(len(node.outputs))]
    return [Known.of(part, x.dtype) for part in np.split(x.array, np.cumsum(parts)[:-1], axis)]


@rule("Transpose")
def _transpose(node: Node, sizes: Sizes, x: Known) -> Known:
    return Known(np.transpose(x.array, node.attrs.get("perm")), x.dtype)


@rule("Expand")
def _expand(node: Node, sizes: Sizes, x: Known, shape: Known) -> Known | None:
    if shape.is_symbolic or np.prod(shape.array) > SMALL_ELEMS:
        return None
    return Known(np.broadcast_to(x.array, np.broadcast_shapes(x.shape, tuple(shape.items()))), x.dtype)


@rule("Tile")
def _tile(node: Node, sizes: Sizes, x: Known, repeats: Known) -> Known | None:
    if repeats.is_symbolic or np.prod(repeats.array) * x.array.size > SMALL_ELEMS:
        return None
    return Known(np.tile(x.array, repeats.items()), x.dtype)


@rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(node: Node, sizes: Sizes, x: Known, axes: Known | None = None) -> Known | None:
    if not x.is_symbolic:
        return None
    given = axes.items() if axes else node.attrs.get("axes")
    if (given is None or not len(given)) and node.attrs.get("noop_with_empty_axes", 0):
        return x
    step: dict[str, Callable[[Any, Any], Any]] = {
        "ReduceProd": lambda a, b: a * b,
        "ReduceSum": lambda a, b: a + b,
        "ReduceMax": sizes.larger_of,
        "ReduceMin": sizes.smaller_of,
    }
    function = np.frompyfunc(step[node.op], 2, 1)
    start = {"ReduceProd": 1, "ReduceSum": 0}
    array = x.array
    keep = bool(node.attrs.get("keepdims", 1))
    for axis in sorted((a % array.ndim for a in given) if given else range(array.ndim), reverse=True):
        slices = [array.take(i, axis) for i in range(array.shape[axis])]
        out = slices[0] if slices else np.full(np.delete(array.shape, axis), start[node.op], object)
        for part in slices[1:]:
            out = function(out, part)
        array = np.expand_dims(_as_object(out), axis) if keep else _as_object(out)
    return Known.of(array, x.dtype)


def _as_object(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else Known.of(value, object).array
