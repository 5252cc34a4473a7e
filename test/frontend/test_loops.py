"""Loops whose trip count data decide, compiled: torch's while_loop against PyTorch eager, ONNX Loop against ONNX
Runtime; and by the numpy reference. Each at trip counts from none to thousands, from one artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlc
import numpy as np
import onnxruntime
import pytest
import torch
from mlc.dialects.reference import run_function
from mlc.frontend.onnx import import_onnx
from mlc.frontend.report import UnsupportedError
from mlc.tools.driver import import_model
from onnx import TensorProto, helper, numpy_helper
from torch._higher_order_ops.while_loop import while_loop


class Doubling(torch.nn.Module):
    """Ends by what the state comes to."""

    def forward(self, x: torch.Tensor, limit: torch.Tensor) -> Any:
        return while_loop(lambda v, n: v.sum() < limit, lambda v, n: (v * 1.5, n + 1), (x, torch.tensor(0)))


class Swapping(torch.nn.Module):
    """Each state becomes another one's next; weights, a view of a state, and code behind the loop that reads what the
    loop does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, n: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        kept = self.linear(a).relu()

        def body(n: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> Any:
            return n - 1, q.flip(0), (self.linear(p) + self.linear(a).relu()).tanh()

        n, p, q = while_loop(lambda n, p, q: n > 0, body, (n, a, b))
        return n, p * 2, q + kept, self.linear(a).relu().exp()


class Nested(torch.nn.Module):
    def forward(self, outer: torch.Tensor, inner: torch.Tensor, x: torch.Tensor) -> Any:
        def body(n: torch.Tensor, x: torch.Tensor) -> Any:
            start = (torch.zeros_like(inner), x)
            _, y = while_loop(lambda k, y: k < inner, lambda k, y: (k + 1, y.flip(0) + x * 0.1), start)
            return n - 1, y * 0.5 + x.mean()

        return while_loop(lambda n, x: n > 0, body, (outer, x))


class Newton(torch.nn.Module):
    """Square roots of any number of values, a dynamic length in a loop."""

    def forward(self, x: torch.Tensor) -> Any:
        def far(y: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return ((y * y - x).abs().max() > 1e-3) & (n < 100)

        return while_loop(far, lambda y, n: ((y + x / y) * 0.5, n + 1), (torch.ones_like(x), torch.tensor(0)))


def number(value: float) -> torch.Tensor:
    return torch.tensor(value)


LOOPS: dict[str, tuple[Callable[[], torch.nn.Module], list[tuple[torch.Tensor, ...]], Any]] = {
    "doubling": (Doubling, [(torch.rand(3) + 1, number(limit)) for limit in (100.0, 0.0, 1e9)], None),
    "swapping": (Swapping, [(number(n), torch.randn(2, 4), torch.randn(2, 4)) for n in (3, 0, 1, 3000)], None),
    "nested": (Nested, [(number(n), number(k), torch.randn(6)) for n, k in ((2, 3), (0, 4), (5, 0), (1, 1))], None),
    "dynamic": (
        Newton, [(torch.rand(n) * 9 + 0.5,) for n in (5, 40, 2)], ({0: torch.export.Dim("n", min=2, max=64)},),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_while_loop(name: str):
    make, calls, dynamic = LOOPS[name]
    torch.manual_seed(5)
    module = make().eval()
    program = torch.export.export(module, calls[0], dynamic_shapes=dynamic)
    model = mlc.load(mlc.compile(program).to_bytes())
    graph = import_model(program).module
    for args in calls:
        with torch.no_grad():
            wanted = module(*args)
        by_reference = run_function(graph, [x.numpy() for x in args])
        for got, reference, want in zip(model(*args), by_reference, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(torch.from_numpy(np.asarray(reference)), want, rtol=1e-5, atol=1e-6)


def test_the_same_bits_on_any_number_of_threads():
    make, calls, _ = LOOPS["swapping"]
    program = torch.export.export(make().eval(), calls[0])
    blob = mlc.compile(program).to_bytes()
    results = [[x.detach().numpy().tobytes() for x in mlc.load(blob, threads=n)(*calls[0])] for n in (1, 2, 3)]
    assert results[0] == results[1] == results[2]


def onnx_loop(most: int | None, *, has_condition: bool) -> Any:
    """x = x * 0.75 + i, as long as its largest element is above `stop`, `most` times at most (None: an input says)."""
    f32, i64, flag = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["f"], to=f32), helper.make_node("Mul", ["v", "factor"], ["scaled"]),
            helper.make_node("Add", ["scaled", "f"], ["w"]),
            helper.make_node("ReduceMax", ["w"], ["peak"], keepdims=0),
            helper.make_node("Less", ["peak", "stop"], ["go_on"]) if has_condition else
            helper.make_node("Identity", ["c"], ["go_on"]),
        ],
        "body", [info("i", i64, []), info("c", flag, []), info("v", f32, [None])],
        [info("go_on", flag, []), info("w", f32, [None])],
    )  # fmt: skip
    inputs = [info("x", f32, ["n"]), info("stop", f32, [])] + ([info("most", i64, [])] if most is None else [])
    weights = [numpy_helper.from_array(np.float32(0.75), "factor")]
    if most is not None:
        weights.append(numpy_helper.from_array(np.int64(most), "most"))
    weights.append(numpy_helper.from_array(np.asarray(True), "yes"))
    loop = helper.make_node("Loop", ["most" if most != 0 else "", "yes", "x"], ["y"], body=body)
    after = helper.make_node("Neg", ["y"], ["z"])
    graph = helper.make_graph([loop, after], "g", inputs, [info("z", f32, ["n"])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("most", "has_condition", "feeds"),
    [(None, False, [(0.0, n) for n in (0, 1, 7, 2000)]), (None, True, [(50.0, 1000), (50.0, 3), (-9.0, 5)]),
     (0, True, [(50.0, None), (300.0, None)]), (5000, False, [(0.0, None)])],
    ids=["count", "count_and_condition", "condition", "long"],
)  # fmt: skip
def test_onnx_loop(most: int | None, has_condition: bool, feeds: list[tuple[float, int | None]]):
    proto = onnx_loop(most, has_condition=has_condition)
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    model, graph = mlc.load(mlc.compile(proto).to_bytes()), import_onnx(proto)
    for stop, count in feeds:
        given = [np.float32([1, -2, 3, 0.5]), np.array(stop, np.float32)] + ([] if count is None else [np.array(count)])
        wanted = peer.run(None, dict(zip((i.name for i in peer.get_inputs()), given, strict=True)))[0]
        np.testing.assert_allclose(model(*given), wanted, rtol=1e-5)
        np.testing.assert_allclose(run_function(graph, given)[0], wanted, rtol=1e-5)


def test_a_state_that_changes_its_shape_is_refused():
    proto = onnx_loop(None, has_condition=False)
    body = next(a for a in proto.graph.node[0].attribute if a.name == "body").g
    body.node[2].CopyFrom(helper.make_node("Concat", ["scaled", "scaled"], ["w"], axis=0))
    with pytest.raises(UnsupportedError, match=r"sizes n and 2\*n of dimension 0"):
        import_onnx(proto)


def test_a_size_read_from_data_in_a_loop_is_refused():
    proto = onnx_loop(None, has_condition=False)
    body = next(a for a in proto.graph.node[0].attribute if a.name == "body").g
    body.node.insert(0, helper.make_node("NonZero", ["v"], ["at"]))
    with pytest.raises(UnsupportedError, match="a size that data decide, in a loop"):
        import_onnx(proto)
