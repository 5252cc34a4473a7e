"""Recurrent layers that the ops do not compute, step by step: other activations, clipping, peepholes, sequence lengths.

The number of steps must be known; the ordinary layers stay whole (frontend/onnx_ops_recurrent.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlc.frontend.onnx_ops import Call

if TYPE_CHECKING:
    from mlc.frontend.graph import Value

LONGEST = 1024
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(frozen=True)
class Layer:
    """One direction of a layer: its weights without the direction axis, and the activations by position."""

    w: Value
    r: Value
    bias: Value | None
    peephole: Value | None
    activations: list[Callable[[Value], Value]]


def activation(c: Call, name: str, alpha: float | None, beta: float | None) -> Callable[[Value], Value]:
    """An activation by its ONNX name, with ONNX's defaults for alpha and beta."""

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    table: dict[str, Callable[[Value], Value]] = {
        "sigmoid": c.sigmoid,
        "tanh": c.tanh,
        "relu": c.relu,
        "softplus": c.softplus,
        "softsign": lambda x: c.div(x, c.add(c.abs(x), c.scalar(1, x))),
        "affine": lambda x: c.add(c.mul(x, c.scalar(given(alpha, 1.0), x)), c.scalar(given(beta, 0.0), x)),
        "hardsigmoid": lambda x: c.hard_sigmoid(x, given(alpha, 0.2), given(beta, 0.5)),
        "leakyrelu": lambda x: c.where(c.lt(x, c.scalar(0, x)), c.mul(x, c.scalar(given(alpha, 0.01), x)), x),
        "thresholdedrelu": lambda x: c.where(c.gt(x, c.scalar(given(alpha, 1.0), x)), x, c.scalar(0, x)),
        "scaledtanh": lambda x: c.mul(c.tanh(c.mul(x, c.scalar(given(beta, 1.0), x))), c.scalar(given(alpha, 1.0), x)),
        "elu": lambda x: c.where(c.gt(x, c.scalar(0, x)), x, c.mul(c.expm1(x), c.scalar(given(alpha, 1.0), x))),
    }
    if name.lower() not in table:
        raise c.unsupported(f"activation {name}")
    return table[name.lower()]


def unrolled(
    c: Call,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    states: list[Value | None],
    peephole: Value | None,
) -> list[Value]:
    """(y [T, D, B, H], then each state's last [D, B, H]) for x [T, B, I] and states [D, B, H]."""
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    if not isinstance(steps, int) or steps > LONGEST:
        raise c.unsupported(f"this layer over {steps} steps")
    direction = c.attr("direction", "forward")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    names = c.attr("activations") or DEFAULTS[c.node.op] * len(ways)
    alphas, betas = list(c.attr("activation_alpha") or []), list(c.attr("activation_beta") or [])
    values = [[v[i] if i < len(v) else None for v in (alphas, betas)] for i in range(len(names))]
    functions = [activation(c, name, *pair) for name, pair in zip(names, values, strict=True)]
    each = len(functions) // len(ways)
    ys, lasts = [], []
    for d, backward in enumerate(ways):
        layer = Layer(
            _of(c, w, d),
            _of(c, r, d),
            None if bias is None else _of(c, bias, d),
            None if peephole is None else _of(c, peephole, d),
            functions[d * each : (d + 1) * each],
        )
        start = [_zeros(c, batch, hidden, x.dtype) if s is None else _of(c, s, d) for s in states]
        y, last = _one_direction(c, layer, x, lengths, start, backward)
        ys.append(y)
        lasts.append(last)
    join = [c.shaped(y, [steps, 1, batch, hidden]) for y in ys]
    outputs = [join[0] if len(join) == 1 else c.concat(*join, axis=1)]
    for i in range(len(states)):
        parts = [c.shaped(last[i], [1, batch, hidden]) for last in lasts]
        outputs.append(parts[0] if len(parts) == 1 else c.concat(*parts, axis=0))
    return outputs


def _of(c: Call, v: Value, direction: int) -> Value:
    return c.shaped(c.sliced(v, 0, direction, direction + 1), v.shape[1:])


def _zeros(c: Call, batch: Any, hidden: Any, dtype: str) -> Value:
    return c.full(shape=[batch, hidden], value=0, dtype=dtype)


def _one_direction(
    c: Call, layer: Layer, x: Value, lengths: Value | None, states: list[Value], backward: bool
) -> tuple[Value, list[Value]]:
    """y [T, B, H] and last states. Past an item's length its outputs are 0 and its states stay; a backward pass meets
    those steps first and so starts where the item ends."""
    steps, batch, hidden = x.shape[0], x.shape[1], layer.r.shape[1]
    outputs: list[Any] = [None] * steps
    step = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}[c.node.op]
    for t in reversed(range(steps)) if backward else range(steps):
        now = step(c, layer, c.shaped(c.sliced(x, 0, t, t + 1), x.shape[1:]), states)
        y = now[0]
        if lengths is not None:
            inside = c.shaped(c.lt(c.scalar(t, lengths), lengths), [batch, 1])
            y = c.where(inside, y, c.scalar(0, y))
            now = [c.where(inside, new, old) for new, old in zip(now, states, strict=True)]
        outputs[t], states = c.shaped(y, [1, batch, hidden]), now
    return outputs[0] if steps == 1 else c.concat(*outputs, axis=0), states


def _part(c: Call, v: Value, index: int, size: int) -> Value:
    """The piece of a gate-major vector or matrix for one gate."""
    return c.sliced(v, 0, index * size, (index + 1) * size)


def _gate(c: Call, layer: Layer, x: Value, h: Value, index: int, peep: tuple[int, Value] | None = None) -> Value:
    """x W^T + h R^T + biases (+ P * cell), clipped, of one gate."""
    size = layer.r.shape[1]
    total = c.matmul(x, _part(c, layer.w, index, size), transpose_b=True)
    total = c.add(total, c.matmul(h, _part(c, layer.r, index, size), transpose_b=True))
    if layer.bias is not None:
        gates = GATES[c.node.op]
        total = c.add(total, _part(c, layer.bias, index, size))
        total = c.add(total, _part(c, layer.bias, gates + index, size))
    if peep is not None and layer.peephole is not None:
        total = c.add(total, c.mul(_part(c, layer.peephole, peep[0], size), peep[1]))
    return _clipped(c, total)


def _clipped(c: Call, x: Value) -> Value:
    limit = c.attr("clip")
    return c.clamp(x, -float(limit), float(limit)) if limit else x


def _lstm_step(c: Call, layer: Layer, x: Value, states: list[Value]) -> list[Value]:
    f, g, h = layer.activations
    hidden, cell = states
    enter = f(_gate(c, layer, x, hidden, 0, (0, cell)))
    if c.attr("input_forget", 0):
        keep = c.sub(c.scalar(1, enter), enter)
    else:
        keep = f(_gate(c, layer, x, hidden, 2, (2, cell)))
    new = c.add(c.mul(keep, cell), c.mul(enter, g(_gate(c, layer, x, hidden, 3))))
    leave = f(_gate(c, layer, x, hidden, 1, (1, new)))
    return [c.mul(leave, h(new)), new]


def _gru_step(c: Call, layer: Layer, x: Value, states: list[Value]) -> list[Value]:
    f, g = layer.activations
    hidden, size = states[0], layer.r.shape[1]
    update, reset = f(_gate(c, layer, x, hidden, 0)), f(_gate(c, layer, x, hidden, 1))
    if not c.attr("linear_before_reset", 0):
        new = g(_gate(c, layer, x, c.mul(reset, hidden), 2))
    else:
        seen = c.matmul(hidden, _part(c, layer.r, 2, size), transpose_b=True)
        total = c.matmul(x, _part(c, layer.w, 2, size), transpose_b=True)
        if layer.bias is not None:
            seen = c.add(seen, _part(c, layer.bias, 5, size))
            total = c.add(total, _part(c, layer.bias, 2, size))
        new = g(_clipped(c, c.add(total, c.mul(reset, seen))))
    return [c.add(c.mul(c.sub(c.scalar(1, update), update), new), c.mul(update, hidden))]


def _rnn_step(c: Call, layer: Layer, x: Value, states: list[Value]) -> list[Value]:
    return [layer.activations[0](_gate(c, layer, x, states[0], 0))]
