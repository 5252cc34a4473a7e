"""ONNX recurrent layers: LSTM, GRU, RNN in either layout, with sequence lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend import onnx_steps
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


def _batch_first(c: Call) -> bool:
    return bool(c.attr("layout", 0))


def _plain_activations(c: Call) -> list[str] | None:
    """The activations where the op computes them, the same both ways; None: this layer is unrolled."""
    default = onnx_steps.DEFAULTS[c.node.op]
    ways = 2 if c.attr("direction", "forward") == "bidirectional" else 1
    given = [name.lower() for name in c.attr("activations") or default * ways]
    plain = [name.lower() for name in default]
    if c.attr("clip") or c.attr("input_forget", 0):
        return None
    if given == plain * ways or (c.node.op == "RNN" and given == ["relu"] * ways):
        return given
    return None


def _all_whole(x: Value, lengths: Any) -> bool:
    """Whether every sequence is known to fill all the steps of x [T, B, I]."""
    if lengths is None:
        return True
    known = isinstance(lengths, Known) and not lengths.is_symbolic and isinstance(x.shape[0], int)
    return known and bool(np.all(lengths.array == x.shape[0]))


def _step_by_step(
    c: Call, x: Value, w: Value, r: Value, bias: Any, lengths: Any, states: list, peep: Any = None
) -> list[Any]:
    if lengths is not None:
        lengths = c.importer.materialize(lengths, "sequence_lens")
    if peep is not None:
        peep = c.importer.materialize(peep, "P")
    return _outputs(c, *onnx_steps.unrolled(c, x, w, r, bias, lengths, states, peep))


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


@row("LSTM")
def _lstm(
    c: Call,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None = None,
    lengths: Any = None,
    h0: Value | None = None,
    c0: Value | None = None,
    peephole: Any = None,
) -> list[Any]:
    x, h0, c0 = _time_first(c, x, h0, c0)
    if isinstance(peephole, Known) and not peephole.array.any():
        peephole = None
    if _plain_activations(c) is None or not _all_whole(x, lengths) or peephole is not None:
        return _step_by_step(c, x, w, r, bias, lengths, [h0, c0], peephole)
    return _outputs(c, *c.lstm(x, w, r, bias, h0, c0, direction=c.attr("direction", "forward")))


@row("GRU")
def _gru(
    c: Call, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Any = None, h0: Value | None = None
) -> list[Any]:
    x, h0 = _time_first(c, x, h0)
    if _plain_activations(c) is None or not _all_whole(x, lengths):
        return _step_by_step(c, x, w, r, bias, lengths, [h0])
    after = bool(c.attr("linear_before_reset", 0))
    direction = c.attr("direction", "forward")
    return _outputs(c, *c.gru(x, w, r, bias, h0, direction=direction, linear_before_reset=after))


@row("RNN")
def _rnn(
    c: Call, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Any = None, h0: Value | None = None
) -> list[Any]:
    x, h0 = _time_first(c, x, h0)
    plain = _plain_activations(c)
    if plain is None or not _all_whole(x, lengths):
        return _step_by_step(c, x, w, r, bias, lengths, [h0])
    return _outputs(c, *c.rnn(x, w, r, bias, h0, direction=c.attr("direction", "forward"), activation=plain[0]))
