"""ONNX sequences and optionals, as lists of values while a model is imported: none is left in the graph.

Positions must be known. A sequence cannot be an input or an output of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.onnx_control import Control, control
from mlc.frontend.onnx_ops import Call, NeedsKnownError, UnsupportedNodeError
from mlc.frontend.onnx_proto import Node
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.onnx import Importer, Scope


class Items(tuple):
    """The elements of a sequence."""


def _on_inputs(name: str) -> Callable[[Callable[..., list[Any]]], Control]:
    """Registers an importer that needs no scope: (call, inputs) -> outputs; failed inputs give failed outputs."""

    def register(function: Callable[..., list[Any]]) -> Control:
        def run(importer: Importer, node: Node, inputs: list[Any], scope: Scope) -> list[Any]:
            importer.locate(node)
            return function(Call(importer, node, importer.sizes), inputs)

        return control(name)(run)

    return register


def _position(c: Call, inputs: list[Any], index: int, count: int, most: int | None = None) -> int:
    """The position that an input gives in a sequence of `count`, counted from the front; up to `most` or the last."""
    given = inputs[index]
    if not isinstance(given, Known) or given.is_symbolic:
        raise NeedsKnownError(c.node.inputs[index], "the position")
    at = int(given.item())
    if not -count <= at <= (count - 1 if most is None else most):
        raise UnsupportedNodeError(f"position {at} of a sequence of {count}")
    return at + count if at < 0 else at


@_on_inputs("SequenceEmpty")
def _empty(c: Call, inputs: list[Any]) -> list[Any]:
    return [Items()]


@_on_inputs("SequenceConstruct")
def _construct(c: Call, inputs: list[Any]) -> list[Any]:
    return [Items(inputs)]


@_on_inputs("SequenceAt")
def _at(c: Call, inputs: list[Any]) -> list[Any]:
    return [inputs[0][_position(c, inputs, 1, len(inputs[0]))]]


@_on_inputs("SequenceInsert")
def _insert(c: Call, inputs: list[Any]) -> list[Any]:
    items = list(inputs[0])
    at = len(items) if len(inputs) < 3 or inputs[2] is None else _position(c, inputs, 2, len(items), len(items))
    return [Items([*items[:at], inputs[1], *items[at:]])]


@_on_inputs("SequenceErase")
def _erase(c: Call, inputs: list[Any]) -> list[Any]:
    items = list(inputs[0])
    at = len(items) - 1 if len(inputs) < 2 or inputs[1] is None else _position(c, inputs, 1, len(items))
    return [Items([*items[:at], *items[at + 1 :]])]


@_on_inputs("SequenceLength")
def _length(c: Call, inputs: list[Any]) -> list[Any]:
    return [Known.of(np.asarray(len(inputs[0]), np.int64))]


@_on_inputs("SplitToSequence")
def _split(c: Call, inputs: list[Any]) -> list[Any]:
    x = c.importer.materialize(inputs[0], c.node.inputs[0])
    axis = c.axis(x, c.attr("axis", 0))
    size = x.shape[axis]
    given = inputs[1] if len(inputs) > 1 else None
    if given is not None and not isinstance(given, Known):
        raise NeedsKnownError(c.node.inputs[1], "split")
    if given is None or given.shape == ():
        step = 1 if given is None else int(given.item())
        if not isinstance(size, int):
            raise UnsupportedNodeError(f"a split of {size} elements: their number must be known")
        parts = [min(step, size - start) for start in range(0, size, step)]
    else:
        parts = given.items()
    out, start = [], 0
    for part in parts:
        piece = c.sliced(x, axis, start, start + part)
        if given is None and not c.attr("keepdims", 1):
            piece = c.shaped(piece, [*x.shape[:axis], *x.shape[axis + 1 :]])
        out.append(piece)
        start = start + part
    return [Items(out)]


@_on_inputs("ConcatFromSequence")
def _concat(c: Call, inputs: list[Any]) -> list[Any]:
    values = [c.importer.materialize(x, c.node.inputs[0]) for x in inputs[0]]
    if not values:
        raise UnsupportedNodeError("an empty sequence")
    axis = c.attr("axis")
    if c.attr("new_axis", 0):
        axis %= len(values[0].shape) + 1
        values = [c.shaped(v, [*v.shape[:axis], 1, *v.shape[axis:]]) for v in values]
    return [c.concat(*values, axis=c.axis(values[0], axis)) if len(values) > 1 else values[0]]


@_on_inputs("Optional")
def _optional(c: Call, inputs: list[Any]) -> list[Any]:
    return [inputs[0] if inputs else None]


@_on_inputs("OptionalHasElement")
def _has_element(c: Call, inputs: list[Any]) -> list[Any]:
    return [Known.of(np.asarray(bool(inputs) and inputs[0] is not None))]


@_on_inputs("OptionalGetElement")
def _get_element(c: Call, inputs: list[Any]) -> list[Any]:
    if not inputs or inputs[0] is None:
        raise UnsupportedNodeError("the element of an empty optional")
    return [inputs[0]]
