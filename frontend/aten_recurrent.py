"""ATen rows: LSTM, GRU and RNN, layers and cells.

Torch keeps one weight matrix a layer and direction with its gates stacked in its own order; mlc's ops have ONNX's.
"""

from __future__ import annotations

from typing import Any

from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.report import UnsupportedCaseError

# For each of mlc's gates, its place in torch's stack: LSTM i f g o -> i o f c; GRU r z n -> z r h.
_LSTM_GATES = (0, 3, 1, 2)
_GRU_GATES = (1, 0, 2)


def _gates(b: AtenBuilder, stacked: Any, order: tuple[int, ...]) -> Any:
    """Weights [gates * H, ...] with the gates in another order."""
    size = stacked.shape[0] // len(order)
    return b.concat([b.slice(stacked, 0, place * size, (place + 1) * size) for place in order], 0)


def _layers(
    b: AtenBuilder, op: str, gates: tuple[int, ...], x: Any, states: list[Any], params: list[Any], has_biases: bool,
    num_layers: int, train: bool, dropout: float, bidirectional: bool, batch_first: bool, **attrs: Any,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """All layers of a recurrent module: (outputs, final states as [layers * directions, B, H] each)."""
    if train and dropout > 0 and num_layers > 1:
        raise UnsupportedCaseError("dropout in training mode; call model.eval() before export")
    is_single = len(x.shape) == 2
    if is_single:
        x, states = b.unsqueeze(x, 1), [b.unsqueeze(state, 1) for state in states]
    elif batch_first:
        x = b.swap(x, 0, 1)
    directions = 2 if bidirectional else 1
    per_cell = 4 if has_biases else 2
    if len(params) != num_layers * directions * per_cell:
        raise UnsupportedCaseError("an LSTM with projections (proj_size)")
    finals: list[list[Any]] = [[] for _ in states]
    for layer in range(num_layers):
        cells = [params[(layer * directions + d) * per_cell :][:per_cell] for d in range(directions)]
        first = layer * directions
        parts = [b.slice(state, 0, first, first + directions) for state in states]
        y, *last = b.op(
            op, x, *_packed(b, cells, gates, has_biases), *parts,
            direction="bidirectional" if bidirectional else "forward", **attrs,
        )  # fmt: skip
        time, _, batch, hidden = y.shape
        x = b.reshape(b.transpose(y, [0, 2, 1, 3]), [time, batch, directions * hidden])
        for collected, state in zip(finals, last, strict=True):
            collected.append(state)
    out = [b.concat(collected, 0) for collected in finals]
    if is_single:
        return b.squeeze(x, 1), [b.squeeze(state, 1) for state in out]
    return (b.swap(x, 0, 1) if batch_first else x), out


def _packed(b: AtenBuilder, cells: list[list[Any]], gates: tuple[int, ...], has_biases: bool) -> list[Any]:
    """One layer's weights as [D, gates * H, I], [D, gates * H, H] and biases [D, 2 * gates * H] (or None)."""
    packed = []
    for place in range(2):
        packed.append(b.concat([b.unsqueeze(_gates(b, cell[place], gates), 0) for cell in cells], 0))
    if not has_biases:
        return [*packed, None]
    biases = [b.concat([_gates(b, cell[2], gates), _gates(b, cell[3], gates)], 0) for cell in cells]
    return [*packed, b.concat([b.unsqueeze(bias, 0) for bias in biases], 0)]


@row("aten.lstm.input")
def lstm(
    b: AtenBuilder, x: Any, hx: list[Any], params: list[Any], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    y, finals = _layers(
        b, "lstm", _LSTM_GATES, x, hx, params, has_biases, num_layers, train, dropout, bidirectional, batch_first
    )
    return (y, *finals)


@row("aten.gru.input")
def gru(
    b: AtenBuilder, x: Any, hx: Any, params: list[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    y, finals = _layers(
        b, "gru", _GRU_GATES, x, [hx], params, has_biases, num_layers, train, dropout, bidirectional, batch_first,
        linear_before_reset=True,
    )  # fmt: skip
    return (y, *finals)


for _activation in ("tanh", "relu"):

    @row(f"aten.rnn_{_activation}.input")
    def _rnn(
        b: AtenBuilder, x: Any, hx: Any, params: list[Any], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool, activation: str = _activation,
    ) -> Any:  # fmt: skip
        y, finals = _layers(
            b, "rnn", (0,), x, [hx], params, has_biases, num_layers, train, dropout, bidirectional, batch_first,
            activation=activation,
        )  # fmt: skip
        return (y, *finals)


# --- cells: one step, in plain arithmetic ---


def _affine(b: AtenBuilder, x: Any, weight: Any, bias: Any) -> Any:
    result = b.op("matmul", x, weight, transpose_b=True)
    return result if bias is None else b.add(result, bias)


def _parts(b: AtenBuilder, x: Any, count: int) -> list[Any]:
    size = x.shape[-1] // count
    return [b.slice(x, -1, i * size, (i + 1) * size) for i in range(count)]


@row("aten.lstm_cell")
def lstm_cell(
    b: AtenBuilder, x: Any, hx: list[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    h, c = hx
    i, f, g, o = _parts(b, b.add(_affine(b, x, w_ih, b_ih), _affine(b, h, w_hh, b_hh)), 4)
    kept = b.mul(b.op("sigmoid", f), c)
    c = b.add(kept, b.mul(b.op("sigmoid", i), b.op("tanh", g)))
    return b.mul(b.op("sigmoid", o), b.op("tanh", c)), c


@row("aten.gru_cell")
def gru_cell(b: AtenBuilder, x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    from_x, from_h = _parts(b, _affine(b, x, w_ih, b_ih), 3), _parts(b, _affine(b, h, w_hh, b_hh), 3)
    reset, update = (b.op("sigmoid", b.add(from_x[i], from_h[i])) for i in (0, 1))
    fresh = b.op("tanh", b.add(from_x[2], b.mul(reset, from_h[2])))
    return b.add(fresh, b.mul(update, b.sub(h, fresh)))


for _activation in ("tanh", "relu"):

    @row(f"aten.rnn_{_activation}_cell")
    def _rnn_cell(
        b: AtenBuilder, x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None,
        activation: str = _activation,
    ) -> Any:  # fmt: skip
        return b.op(activation, b.add(_affine(b, x, w_ih, b_ih), _affine(b, h, w_hh, b_hh)))
