"""ONNX recurrent layers: LSTM, GRU, RNN in either layout, with sequence lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.graph import Value

_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _batch_first(c: Call) -> bool:
    return bool(c.attr("layout", 0))


def _check(c: Call) -> list[str]:
    """The activations of the first direction. Raises UnsupportedNodeError for what the ops do not compute."""
    directions = 2 if c.attr("direction", "forward") == "bidirectional" else 1
    default = _DEFAULT_ACTIVATIONS[c.node.op]
    given = c.attr("activations") or default * directions
    if c.attr("clip"):
        raise c.unsupported("clipped gates")
    if given[: len(default)] * directions != given:
        raise c.unsupported(f"activations {given} that differ by direction")
    given = [name.capitalize() for name in given[: len(default)]]
    if given != default and not (c.node.op == "RNN" and given == ["Relu"]):
        raise c.unsupported(f"activations {given}")
    return given


def _time_first(c: Call, x: Value, *states: Value | None) -> list[Any]:
    """The input [T, B, I] and states [D, B, H] in the order the ops take; all have one batch."""
    x = c.transpose(x, perm=[1, 0, 2]) if _batch_first(c) else x
    moved = [_swap(c, state) for state in states]
    for state in moved:
        if state is not None:
            c.same_size(x.shape[1], state.shape[1])
    return [x, *moved]


def _swap(c: Call, x: Value | None) -> Value | None:
    """A state [B, D, H] as [D, B, H] where the layout is batch first, and back."""
    return c.transpose(x, perm=[1, 0, 2]) if x is not None and _batch_first(c) else x


def _outputs(c: Call, y: Value, *states: Value) -> list[Any]:
    if _batch_first(c):
        y = c.transpose(y, perm=[2, 0, 1, 3])
    return [y, *(_swap(c, state) for state in states)]


def _refuse_lengths(c: Call, x: Value, lengths: Any) -> None:
    """Sequence lengths that are all the whole sequence say nothing; others change what the op computes."""
    if lengths is None:
        return
    steps = x.shape[1] if _batch_first(c) else x.shape[0]
    if isinstance(lengths, Known) and not lengths.is_symbolic and isinstance(steps, int) and np.all(lengths.array == steps):
        return
    raise c.unsupported("sequences of different lengths")


@row("LSTM")
def _lstm(
    c: Call, x: Value, w: Value, r: Value, bias: Value = None, lengths: Any = None, h0: Value = None, c0: Value = None,
    peephole: Any = None,
) -> list[Any]:  # fmt: skip
    _check(c)
    _refuse_lengths(c, x, lengths)
    if c.attr("input_forget", 0):
        raise c.unsupported("coupled input and forget gates")
    if peephole is not None and not (isinstance(peephole, Known) and not peephole.array.any()):
        raise c.unsupported("peephole connections")
    x, h0, c0 = _time_first(c, x, h0, c0)
    y, h, cell = c.lstm(x, w, r, bias, h0, c0, direction=c.attr("direction", "forward"))
    return _outputs(c, y, h, cell)


@row("GRU")
def _gru(c: Call, x: Value, w: Value, r: Value, bias: Value = None, lengths: Any = None, h0: Value = None) -> list[Any]:
    _check(c)
    _refuse_lengths(c, x, lengths)
    x, h0 = _time_first(c, x, h0)
    after = bool(c.attr("linear_before_reset", 0))
    direction = c.attr("direction", "forward")
    return _outputs(c, *c.gru(x, w, r, bias, h0, direction=direction, linear_before_reset=after))


@row("RNN")
def _rnn(c: Call, x: Value, w: Value, r: Value, bias: Value = None, lengths: Any = None, h0: Value = None) -> list[Any]:
    activation = _check(c)[0].lower()
    _refuse_lengths(c, x, lengths)
    x, h0 = _time_first(c, x, h0)
    direction = c.attr("direction", "forward")
    return _outputs(c, *c.rnn(x, w, r, bias, h0, direction=direction, activation=activation))
