"""Recurrent layers.

What does not depend on the step before, x w^T, is one matrix product over all steps; a `*_steps` op owns the loop over
time, with one tile a direction and batch element.
"""

from __future__ import annotations

import numpy as np

from . import pointwise, pointwise_math
from .matmul import accumulator
from .op import op
from .types import TensorType

DIRECTIONS = ("forward", "reverse", "bidirectional")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _is_reversed(direction: str, d: int) -> bool:
    return direction == "reverse" or d == 1


def _numpy_gates(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """[T, D, B, G], accumulated wide."""
    wide = accumulator(x.dtype)
    gates = np.einsum("tbi,dgi->tdbg", x.astype(wide, copy=False), w.astype(wide, copy=False), optimize=True)
    return gates if bias is None else gates + bias.astype(wide)[:, None, :]


def _numpy_scan(gates: np.ndarray, direction: str, states: list[np.ndarray], step) -> tuple[np.ndarray, ...]:
    """y and last states; `step(d, gates [B, G], *states [B, H]) -> states`, the first of which is the output."""
    y = np.zeros((*gates.shape[:3], states[0].shape[-1]), gates.dtype)
    last = [s.astype(gates.dtype) for s in states]
    for d in range(gates.shape[1]):
        now = [s[d] for s in last]
        times = range(gates.shape[0])
        for t in reversed(times) if _is_reversed(direction, d) else times:
            now = step(d, gates[t, d], *now)
            y[t, d] = now[0]
        for s, value in zip(last, now, strict=True):
            s[d] = value
    return y, *last


def _turned(r: np.ndarray, dtype) -> np.ndarray:
    """[D, H, G]"""
    return np.swapaxes(r, 1, 2).astype(dtype)


def _zeros(x, r) -> np.ndarray:
    return np.zeros((r.shape[0], x.shape[1], r.shape[2]), x.dtype)


def _layer_types(x, w, r, bias, states: dict, direction: str, gate_count: int, bias_size: int):
    """[y, h, c?] types. Raises ValueError naming the operand that does not fit."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction '{direction}' is none of {', '.join(DIRECTIONS)}")
    directions, hidden = w.shape[0], r.shape[2]
    if directions != 1 + (direction == "bidirectional"):
        raise ValueError(f"w is {w}, which has not the directions of '{direction}'")
    if r.shape != (directions, gate_count * hidden, hidden) or w.shape[1] != gate_count * hidden:
        raise ValueError(f"w is {w}, r is {r}, expected {gate_count} gates of {hidden}")
    if bias is not None and bias.shape != (directions, bias_size * hidden):
        raise ValueError(f"bias is {bias}, expected [{directions}, {bias_size * hidden}]")
    state = TensorType(x.dtype, (directions, x.shape[1], hidden))
    for name, found in states.items():
        if found is not None and found != state:
            raise ValueError(f"{name} is {found}, expected {state}")
    return [TensorType(x.dtype, (x.shape[0], *state.shape)), *[state] * len(states)]


# lowering ------------------------------------------------------------------------------------------------------------
def _cut_last(g, x, start: int, limit: int):
    """x[:, start:limit]"""
    return g.slice(x, starts=[0, start], limits=[x.shape[0], limit], steps=[1, 1])


def _gates(g, x, w, bias):
    """x w^T + bias as [T, B, D, G], from `bias` [D, G]."""
    steps, batch, width = x.shape
    directions, gates, _ = w.shape
    flat = g.matmul(
        g.reshape(x, shape=[steps * batch, width]), g.reshape(w, shape=[directions * gates, width]), transpose_b=True
    )
    flat = flat if bias is None else g.add(flat, g.reshape(bias, shape=[directions * gates]))
    return g.reshape(flat, shape=[steps, batch, directions, gates])


def _state(g, given, x, r):
    return g.full(shape=[r.shape[0], x.shape[1], r.shape[2]], value=0.0, dtype=x.dtype) if given is None else given


# the loop over time, shared by the kernels ---------------------------------------------------------------------------
def _tiles(gates, r, *others, **attrs):
    return gates.shape[1] * gates.shape[2]


class _Scan:
    """One direction of one batch element.

    The state before a step is the row of y written last, so that no memory is needed but the results'.
    """

    def __init__(self, k, tile, gates, r, direction: str) -> None:
        self.k, self.gates, self.r = k, gates, r
        self.steps, batch, directions, _ = k.shape(gates)
        self.hidden = k.shape(r)[2]
        self.d, self.b = k.delinearize(tile, [directions, batch])
        self.direction = direction
        self.wide = "f64" if k.dtype(gates) == "f64" else "f32"

    def each(self, count, body) -> None:
        def one(i, _):
            body(i)
            return []

        self.k.loop(count, [], one)

    def given(self, source, j):
        return self.k.read(source, [self.d, self.b, j]).cast(self.wide)

    def kept(self, buffer, j):
        """`given` of a result."""
        return self.k.load_out(buffer, [self.d, self.b, j]).cast(self.wide)

    def keep(self, buffer, j, value) -> None:
        self.k.write(buffer, [self.d, self.b, j], value.cast(self.k.dtype(self.gates)))

    def _time(self, number):
        last = self.k.ix(self.steps) - 1
        if self.direction == "bidirectional":
            return number + self.d * (last - number - number)
        return last - number if self.direction == "reverse" else number

    def over_time(self, h0, y, h, step) -> None:
        """`step(t, before)` gives the writer of one unit's state: `unit(j) -> Val`; `before(j)` is the state before."""

        def at(number, before) -> None:
            t = self._time(number)
            unit = step(t, before)
            dtype = self.k.dtype(self.gates)
            self.each(self.hidden, lambda j: self.k.write(y, [t, self.d, self.b, j], unit(j).cast(dtype)))

        def row(number):
            t = self._time(number)
            return lambda j: self.k.load_out(y, [t, self.d, self.b, j]).cast(self.wide)

        def some() -> None:
            at(self.k.ix(0), lambda j: self.given(h0, j))
            self.each(self.k.ix(self.steps) - 1, lambda i: at(i + 1, row(i)))
            last = row(self.k.ix(self.steps) - 1)
            self.each(self.hidden, lambda j: self.keep(h, j, last(j)))

        def none() -> None:
            self.each(self.hidden, lambda j: self.keep(h, j, self.given(h0, j)))

        self.k.when(self.k.size_val(self.steps, "i64").gt(0), some, none)

    def gate(self, t, j):
        return self.k.read(self.gates, [t, self.b, self.d, j]).cast(self.wide)

    def products(self, starts, places, state):
        """For each start and place in r: start + sum over i of state(i) * r[d, place, i]."""

        def add(i, sums):
            value = state(i)
            factors = [self.k.read(self.r, [self.d, place, i]).cast(self.wide) for place in places]
            return [value.fma(factor, total) for factor, total in zip(factors, sums, strict=True)]

        return self.k.loop(self.hidden, starts, add)

    def all_gates(self, t, j, count: int, state):
        """The first `count` gates of unit j."""
        places = [j + n * self.hidden for n in range(count)]
        return self.products([self.gate(t, place) for place in places], places, state)


def _emit(definition, value):
    return definition.rules["emit"](value)


def _packed_together(count: int):
    """A `layouts` rule: r, operand 1, with `count` gates of the same hidden units side by side."""
    return lambda **attrs: {1: f"gates-{count}"}


# LSTM ----------------------------------------------------------------------------------------------------------------
def _lstm_step(r: np.ndarray):
    """`r` is [D, H, 4H]."""

    def step(d, gates, h, c):
        i, o, f, g = np.split(gates + h @ r[d], 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c

    return step


def _narrow(results, dtype):
    return tuple(a.astype(dtype, copy=False) for a in results)


@op("special", is_internal=True)
def lstm_steps(
    gates: F[T, B, D, G], r: F[D, G, H], h0: F[D, B, H], c0: F[D, B, H], *, direction: str
) -> tuple[F[T, D, B, H], F[D, B, H], F[D, B, H]]:
    """The recurrence of `lstm` from gates x w^T + bias. Source: mlc."""
    wide = accumulator(gates.dtype)
    moved = np.swapaxes(gates, 1, 2).astype(wide)
    return _narrow(_numpy_scan(moved, direction, [h0, c0], _lstm_step(_turned(r, wide))), gates.dtype)


lstm_steps.rule("tiles")(_tiles)
lstm_steps.rule("layouts")(_packed_together(4))


@lstm_steps.rule("kernel")
def _(k, tile, ins, outs, *, direction):
    gates, r, h0, c0 = ins
    y, h, c = outs
    scan = _Scan(k, tile, gates, r, direction)
    scan.each(scan.hidden, lambda j: scan.keep(c, j, scan.given(c0, j)))

    def step(t, before):
        def unit(j):
            i, o, f, g = scan.all_gates(t, j, 4, before)
            i, o, f = (_emit(pointwise_math.sigmoid, v) for v in (i, o, f))
            cell = f * scan.kept(c, j) + i * _emit(pointwise_math.tanh, g)
            scan.keep(c, j, cell)
            return o * _emit(pointwise_math.tanh, cell)

        return unit

    scan.over_time(h0, y, h, step)


@op("composite")
def lstm(
    x: F[T, B, I], w: F[D, G, I], r: F[D, G, H], bias: F = None, h0: F = None, c0: F = None, *,
    direction: str = "forward",
) -> tuple[F[T, D, B, H], F[D, B, H], F[D, B, H]]:
    """A long short-term memory layer: outputs of every step, last hidden and cell state.

    Gates in order input, output, forget, cell in `w` [D, 4H, I], `r` [D, 4H, H] and `bias` [D, 8H], w's then r's; D is
    2 when bidirectional. States default to 0. Source: Hochreiter & Schmidhuber 1997; ONNX LSTM-22.
    """
    size = r.shape[1]
    both = None if bias is None else bias[:, :size].astype(accumulator(x.dtype)) + bias[:, size:]
    states = [_zeros(x, r) if s is None else s for s in (h0, c0)]
    gates = _numpy_gates(x, w, both)
    return _narrow(_numpy_scan(gates, direction, states, _lstm_step(_turned(r, gates.dtype))), x.dtype)


@lstm.rule("infer")
def _(x, w, r, bias, h0, c0, *, direction):
    return _layer_types(x, w, r, bias, {"h0": h0, "c0": c0}, direction, 4, 8)


def _both_biases(g, bias, size: int):
    return None if bias is None else g.add(_cut_last(g, bias, 0, size), _cut_last(g, bias, size, 2 * size))


@lstm.rule("lower")
def _(g, x, w, r, bias, h0, c0, *, direction):
    gates = _gates(g, x, w, _both_biases(g, bias, r.shape[1]))
    return g.lstm_steps(gates, r, _state(g, h0, x, r), _state(g, c0, x, r), direction=direction)


# GRU -----------------------------------------------------------------------------------------------------------------
def _gru_step(r: np.ndarray, hidden_bias: np.ndarray, linear_before_reset: bool):
    """`r` is [D, H, 3H]; `hidden_bias` [D, H]."""
    hidden = r.shape[1]

    def step(d, gates, h):
        z, reset = np.split(_sigmoid(gates[:, : 2 * hidden] + h @ r[d, :, : 2 * hidden]), 2, axis=-1)
        last = r[d, :, 2 * hidden :]
        if linear_before_reset:
            new = np.tanh(gates[:, 2 * hidden :] + reset * (h @ last + hidden_bias[d]))
        else:
            new = np.tanh(gates[:, 2 * hidden :] + (reset * h) @ last + hidden_bias[d])
        return ((1 - z) * new + z * h,)

    return step


@op("special", is_internal=True)
def gru_steps(
    gates: F[T, B, D, G], r: F[D, G, H], hidden_bias: F[D, H], h0: F[D, B, H], *, direction: str,
    linear_before_reset: bool,
) -> tuple[F[T, D, B, H], F[D, B, H]]:
    """The recurrence of `gru` from gates x w^T + bias; `hidden_bias` belongs to r. Source: mlc."""
    wide = accumulator(gates.dtype)
    moved = np.swapaxes(gates, 1, 2).astype(wide)
    step = _gru_step(_turned(r, wide), hidden_bias.astype(wide), linear_before_reset)
    return _narrow(_numpy_scan(moved, direction, [h0], step), gates.dtype)


gru_steps.rule("tiles")(_tiles)


@gru_steps.rule("layouts")
def _(*, direction, linear_before_reset):
    return _packed_together(3 if linear_before_reset else 1)()


@gru_steps.rule("kernel")
def _(k, tile, ins, outs, *, direction, linear_before_reset):
    gates, r, hidden_bias, h0 = ins
    y, h = outs
    scan = _Scan(k, tile, gates, r, direction)
    hidden = scan.hidden

    def new_state(j, z, inside, before):
        new = _emit(pointwise_math.tanh, inside)
        return new + _emit(pointwise_math.sigmoid, z) * (before(j) - new)

    def bias(j):
        return k.read(hidden_bias, [scan.d, j]).cast(scan.wide)

    def step(t, before):
        def unit(j):
            places = [j, j + hidden, j + 2 * hidden]
            starts = [scan.gate(t, places[0]), scan.gate(t, places[1]), bias(j)]
            z, reset, recurrent = scan.products(starts, places, before)
            inside = scan.gate(t, places[2]) + _emit(pointwise_math.sigmoid, reset) * recurrent
            return new_state(j, z, inside, before)

        return unit

    def reset_first(t, before):
        def scale(j):  # `h` is free until the last step is done
            (reset,) = scan.products([scan.gate(t, j + hidden)], [j + hidden], before)
            scan.keep(h, j, _emit(pointwise_math.sigmoid, reset) * before(j))

        def unit(j):
            place = j + 2 * hidden
            (z,) = scan.products([scan.gate(t, j)], [j], before)
            (inside,) = scan.products([scan.gate(t, place) + bias(j)], [place], lambda i: scan.kept(h, i))
            return new_state(j, z, inside, before)

        scan.each(hidden, scale)
        return unit

    scan.over_time(h0, y, h, step if linear_before_reset else reset_first)


@op("composite")
def gru(
    x: F[T, B, I], w: F[D, G, I], r: F[D, G, H], bias: F = None, h0: F = None, *, direction: str = "forward",
    linear_before_reset: bool = False,
) -> tuple[F[T, D, B, H], F[D, B, H]]:
    """A gated recurrent layer: outputs of every step, last hidden state.

    Gates in order update, reset, hidden in `w` [D, 3H, I], `r` [D, 3H, H] and `bias` [D, 6H], w's then r's.
    linear_before_reset: the reset gate scales the hidden product (PyTorch), not the state. Source: Cho et al. 2014;
    ONNX GRU-22.
    """
    size, hidden = r.shape[1], r.shape[2]
    wide = accumulator(x.dtype)
    both, hidden_bias = None, np.zeros((r.shape[0], hidden), wide)
    if bias is not None:
        both = bias[:, :size].astype(wide)
        both[:, : 2 * hidden] += bias[:, size : size + 2 * hidden].astype(wide)
        hidden_bias = bias[:, size + 2 * hidden :].astype(wide)
    gates = _numpy_gates(x, w, both)
    step = _gru_step(_turned(r, wide), hidden_bias, linear_before_reset)
    return _narrow(_numpy_scan(gates, direction, [_zeros(x, r) if h0 is None else h0], step), x.dtype)


@gru.rule("infer")
def _(x, w, r, bias, h0, *, direction, linear_before_reset):
    return _layer_types(x, w, r, bias, {"h0": h0}, direction, 3, 6)


@gru.rule("lower")
def _(g, x, w, r, bias, h0, *, direction, linear_before_reset):
    size, hidden = r.shape[1], r.shape[2]
    both = None
    if bias is None:
        hidden_bias = g.full(shape=[r.shape[0], hidden], value=0.0, dtype=x.dtype)
    else:
        updates = g.add(_cut_last(g, bias, 0, 2 * hidden), _cut_last(g, bias, size, size + 2 * hidden))
        both = g.concat(updates, _cut_last(g, bias, 2 * hidden, size), axis=1)
        hidden_bias = _cut_last(g, bias, size + 2 * hidden, 2 * size)
    return g.gru_steps(
        _gates(g, x, w, both), r, hidden_bias, _state(g, h0, x, r), direction=direction,
        linear_before_reset=linear_before_reset,
    )


# simple RNN ----------------------------------------------------------------------------------------------------------
_ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def _rnn_step(r: np.ndarray, activation: str):
    return lambda d, gates, h: (_ACTIVATIONS[activation](gates + h @ r[d]),)


@op("special", is_internal=True)
def rnn_steps(
    gates: F[T, B, D, G], r: F[D, G, H], h0: F[D, B, H], *, direction: str, activation: str
) -> tuple[F[T, D, B, H], F[D, B, H]]:
    """The recurrence of `rnn` from gates x w^T + bias. Source: mlc."""
    wide = accumulator(gates.dtype)
    moved = np.swapaxes(gates, 1, 2).astype(wide)
    return _narrow(_numpy_scan(moved, direction, [h0], _rnn_step(_turned(r, wide), activation)), gates.dtype)


rnn_steps.rule("tiles")(_tiles)
rnn_steps.rule("layouts")(_packed_together(1))


@rnn_steps.rule("kernel")
def _(k, tile, ins, outs, *, direction, activation):
    gates, r, h0 = ins
    y, h = outs
    scan = _Scan(k, tile, gates, r, direction)
    definition = pointwise_math.tanh if activation == "tanh" else pointwise.relu
    scan.over_time(h0, y, h, lambda t, before: lambda j: _emit(definition, *scan.all_gates(t, j, 1, before)))


@op("composite")
def rnn(
    x: F[T, B, I], w: F[D, H, I], r: F[D, H, H], bias: F = None, h0: F = None, *, direction: str = "forward",
    activation: str = "tanh",
) -> tuple[F[T, D, B, H], F[D, B, H]]:
    """h = activation(x w^T + h r^T + bias) step by step: outputs of every step, last state. bias [D, 2H], w's then r's.

    activation: "tanh" or "relu". Source: Elman 1990; ONNX RNN-22.
    """
    size = r.shape[1]
    both = None if bias is None else bias[:, :size].astype(accumulator(x.dtype)) + bias[:, size:]
    gates = _numpy_gates(x, w, both)
    step = _rnn_step(_turned(r, gates.dtype), activation)
    return _narrow(_numpy_scan(gates, direction, [_zeros(x, r) if h0 is None else h0], step), x.dtype)


@rnn.rule("infer")
def _(x, w, r, bias, h0, *, direction, activation):
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation '{activation}' is none of {', '.join(_ACTIVATIONS)}")
    return _layer_types(x, w, r, bias, {"h0": h0}, direction, 1, 2)


@rnn.rule("lower")
def _(g, x, w, r, bias, h0, *, direction, activation):
    gates = _gates(g, x, w, _both_biases(g, bias, r.shape[1]))
    return g.rnn_steps(gates, r, _state(g, h0, x, r), direction=direction, activation=activation)
