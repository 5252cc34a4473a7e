"""Recurrent ONNX layers in the forms that no node test has, against ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from mlc.dialects.reference import run_function
from mlc.frontend.onnx import import_onnx
from onnx import TensorProto, helper

STEPS, BATCH, INPUT, HIDDEN = 4, 3, 5, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, ways: int, with_lengths: bool, **attrs: object) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    rng = np.random.default_rng(3)

    def data(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    gates = GATES[op] * HIDDEN
    arrays = {"x": data(STEPS, BATCH, INPUT), "w": data(ways, gates, INPUT), "r": data(ways, gates, HIDDEN)}
    arrays["b"] = data(ways, 2 * gates)
    names = ["x", "w", "r", "b", "lengths" if with_lengths else "", "h0"]
    if with_lengths:
        arrays["lengths"] = np.asarray([4, 2, 3], np.int32)
    arrays["h0"] = data(ways, BATCH, HIDDEN)
    outputs = ["y", "h"]
    if op == "LSTM":
        arrays["c0"] = data(ways, BATCH, HIDDEN)
        names, outputs = [*names, "c0"], ["y", "h", "c"]
    node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attrs)
    kinds = {name: TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT for name in arrays}
    inputs = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in arrays.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), list(arrays.values())


FORMS: list[dict] = [
    {},
    {"clip": 0.3},
    {"activations": {"LSTM": ["HardSigmoid", "Tanh", "Softsign"], "GRU": ["HardSigmoid", "Softsign"], "RNN": ["Elu"]}},
]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers(op: str, direction: str):
    ways = 2 if direction == "bidirectional" else 1
    for form, with_lengths in itertools.product(FORMS, (False, True)):
        attrs = dict(form, direction=direction)
        if "activations" in form:
            attrs["activations"] = form["activations"][op] * ways
        for after in (0, 1) if op == "GRU" else (0,):
            extra = {"linear_before_reset": after} if op == "GRU" else {}
            model, feeds = layer(op, ways, with_lengths, **attrs, **extra)
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            wanted = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), feeds, strict=True)})
            for got, want in zip(run_function(import_onnx(model), feeds), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{attrs} lengths={with_lengths}")
