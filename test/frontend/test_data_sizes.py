"""Results whose sizes data decide, compiled: ONNX models against ONNX Runtime, exports against PyTorch eager.

Each model runs on several data, shorter results after longer ones and the other way round, from one artifact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import mlc
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from mlc.frontend.onnx_proto import OnnxError
from mlc.frontend.report import UnsupportedError
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(11)


def onnx_model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str], **weights: Any) -> Any:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run_both(proto: Any, feeds: list[list[Any]], **symbols: Any) -> Any:
    """Compares each feed's results with ONNX Runtime's; returns the loaded model."""
    model = mlc.load(mlc.compile(proto, symbols=symbols).to_bytes())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        wanted = peer.run(None, {info.name: x for info, x in zip(peer.get_inputs(), feed, strict=True)})
        got = model(*feed)
        for a, b in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    return model


def sparse(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * (RNG.random(shape) < 0.4)).astype(np.float32)


def test_what_follows_a_size_from_data_runs_at_that_size():
    """Values at the positions found, their running sum, their number, and a product as wide as they are."""
    proto = onnx_model(
        [
            helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Transpose", ["at"], ["rows"]),
            helper.make_node("GatherND", ["x", "rows"], ["v"]), helper.make_node("CumSum", ["v", "axis"], ["sums"]),
            helper.make_node("Shape", ["v"], ["count"]), helper.make_node("Unsqueeze", ["v", "one"], ["column"]),
            helper.make_node("MatMul", ["column", "w"], ["product"]), helper.make_node("Softmax", ["product"], ["y"]),
        ],
        {"x": (F32, ["n", 6])}, ["at", "sums", "count", "y"],
        axis=np.int64(0), one=np.int64([1]), w=RNG.standard_normal((1, 9)).astype(np.float32),
    )
    feeds = [[sparse(5, 6)], [sparse(5, 6)], [np.zeros((5, 6), np.float32)], [np.ones((17, 6), np.float32)]]
    model = run_both(proto, feeds, n=(1, 40))
    assert model.outputs[0].dims == (2, "*")


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress_by_a_condition_of_the_run(axis: int | None):
    attrs = {} if axis is None else {"axis": axis}
    proto = onnx_model(
        [helper.make_node("Compress", ["x", "c"], ["y"], **attrs)],
        {"x": (F32, [7, 7]), "c": (BOOL, [7])}, ["y"],
    )
    run_both(proto, [[sparse(7, 7), RNG.random(7) < p] for p in (0.5, 1.0, 0.0, 0.3)])


@pytest.mark.parametrize("attrs", [{}, {"sorted": 0}, {"axis": 0}, {"axis": 1, "sorted": 0}])
def test_unique(attrs: dict[str, int]):
    proto = onnx_model(
        [helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], **attrs)],
        {"x": (I64, [9, 2] if attrs.get("axis") != 1 else [2, 9])}, ["y", "first", "inverse", "counts"],
    )
    shape = (9, 2) if attrs.get("axis") != 1 else (2, 9)
    run_both(proto, [[RNG.integers(0, high, shape)] for high in (3, 1, 40)])


def test_non_max_suppression_with_limits_of_the_run():
    proto = onnx_model(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["y"])],
        {"boxes": (F32, [2, "n", 4]), "scores": (F32, [2, 3, "n"]), "most": (I64, [1]), "iou": (F32, [1]),
         "least": (F32, [1])}, ["y"],
    )  # fmt: skip
    feeds = []
    for count, most, iou, least in ((30, 5, 0.5, 0.2), (30, 30, 0.9, 0.0), (12, 4, 0.1, 2.0), (30, 0, 0.5, 0.0)):
        corner = RNG.random((2, count, 2)) * 4
        boxes = np.concatenate([corner, corner + 0.5 + RNG.random((2, count, 2))], -1).astype(np.float32)
        scores = RNG.random((2, 3, count)).astype(np.float32)
        feeds.append([boxes, scores, np.int64([most]), np.float32([iou]), np.float32([least])])
    run_both(proto, feeds, n=(1, 50))


RUNTIME_VALUES: dict[str, tuple[list[Any], dict[str, tuple[int, list[Any]]], dict[str, Any], list[list[Any]]]] = {
    "topk": (
        [helper.make_node("TopK", ["x", "k"], ["y", "i"]), helper.make_node("Relu", ["y"], ["z"])],
        {"x": (F32, [4, 20]), "k": (I64, [1])}, {"k": (1, 12)},
        [[sparse(4, 20).argsort(1).astype(np.float32), np.int64([k])] for k in (3, 12, 1)],
    ),
    "range": (
        [helper.make_node("Range", ["zero", "n", "two"], ["r"]), helper.make_node("Mul", ["r", "r"], ["z"])],
        {"n": (I64, [])}, {"n": (0, 50)}, [[np.array(n)] for n in (7, 50, 0)],
    ),
    "slice": (
        [helper.make_node("Slice", ["x", "start", "end"], ["s"]), helper.make_node("Neg", ["s"], ["z"])],
        {"x": (F32, [30, 3]), "start": (I64, [1]), "end": (I64, [1])}, {"start": (0, 30), "end": (0, 30)},
        [[sparse(30, 3), np.int64([a]), np.int64([b])] for a, b in ((2, 9), (0, 30), (5, 5))],
    ),
    "reshape": (
        [helper.make_node("Reshape", ["x", "shape"], ["z"])],
        {"x": (F32, [24]), "shape": (I64, [1])}, {"shape": (24, 24)}, [[sparse(24), np.int64([24])]],
    ),
    "expand": (
        [helper.make_node("Expand", ["x", "shape"], ["e"]), helper.make_node("ReduceSum", ["e"], ["z"])],
        {"x": (F32, [1, 5]), "shape": (I64, [2])}, {"shape_0": (1, 8), "shape_1": 5},
        [[sparse(1, 5), np.int64([n, 5])] for n in (3, 8, 1)],
    ),
    "resize": (
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["z"], mode="nearest",
                          coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"x": (F32, [1, 1, 4, 4]), "sizes": (I64, [4])},
        {"sizes_0": 1, "sizes_1": 1, "sizes_2": (1, 16), "sizes_3": (1, 16)},
        [[sparse(1, 1, 4, 4), np.int64([1, 1, h, w])] for h, w in ((8, 4), (16, 12))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNTIME_VALUES)
def test_sizes_that_are_inputs(name: str):
    nodes, inputs, symbols, feeds = RUNTIME_VALUES[name]
    run_both(onnx_model(nodes, inputs, ["z"], zero=np.int64(0), two=np.int64(2)), feeds, **symbols)


def test_a_size_without_a_range_is_refused_with_what_to_do():
    nodes, inputs, _, _ = RUNTIME_VALUES["topk"]
    with pytest.raises(UnsupportedError, match=r"input 'k' \(k\) must be known .* dims=\{'k': \(1, 4096\)\}"):
        mlc.compile(onnx_model(nodes, inputs, ["z"]))
    with pytest.raises(OnnxError, match="no dimension 'q'"):
        mlc.compile(onnx_model(nodes, inputs, ["z"]), symbols={"k": (1, 4), "q": (1, 4)})


def test_a_size_outside_its_range_ends_the_run_with_a_status():
    nodes, inputs, symbols, feeds = RUNTIME_VALUES["topk"]
    model = mlc.load(mlc.compile(onnx_model(nodes, inputs, ["z"]), symbols=symbols).to_bytes())
    for count in (0, 13, -1, 2**40):
        with pytest.raises(mlc.MlcError, match=f"OUT_OF_RANGE.*is {count}.*1.*12"):
            model(feeds[0][0], np.int64([count]))
    assert model(*feeds[0]).shape == (4, 3)


def test_a_size_that_the_model_needs_to_be_another():
    """What is left after Compress meets a tensor of 3: only runs that keep 3 have a result."""
    nodes = [helper.make_node("Compress", ["x", "c"], ["y"]), helper.make_node("Add", ["y", "b"], ["z"])]
    inputs = {"x": (F32, [6]), "c": (BOOL, [6]), "b": (F32, [3])}
    model = mlc.load(mlc.compile(onnx_model(nodes, inputs, ["z"])).to_bytes())
    x, b = sparse(6), sparse(3)
    mask = np.array([1, 0, 1, 0, 0, 1], bool)
    np.testing.assert_array_equal(model(x, mask, b), x[mask] + b)
    for kept in (np.ones(6, bool), np.zeros(6, bool)):
        with pytest.raises(mlc.MlcError, match=r"OUT_OF_RANGE: a size computed from the inputs' data is .; the model"):
            model(x, kept, b)


def test_results_into_arrays_of_the_callers():
    proto = onnx_model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (F32, [8])}, ["y"])
    model = mlc.load(mlc.compile(proto).to_bytes())
    x, out = np.float32([0, 1, 0, 0, 2, 3, 0, 0]), np.full((1, 8), -1)
    got = model(x, out=[out])
    got = got[0] if isinstance(got, (list, tuple)) else got
    np.testing.assert_array_equal(got, [np.flatnonzero(x)])
    assert np.shares_memory(got, out)
    with pytest.raises(mlc.MlcError, match="data decide the size of 'y'"):
        model.bind(x)


def _narrowed(n: torch.Tensor, x: torch.Tensor) -> Any:
    size = n.item()
    torch._check(size >= 1)
    torch._check(size <= x.shape[0])
    return torch.zeros(size) + torch.arange(size), x.narrow(0, 0, size).softmax(0)


def _repeated(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    y = torch.repeat_interleave(x, counts, dim=0)
    torch._check(y.shape[0] <= 50)
    return y.relu()


EXPORTS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "masks": (
        lambda x: (x[x > 0] * 2, x.nonzero(), torch.masked_select(x, x < 0).sort()[0], x[:, x[0] > 0, None]),
        [(torch.randn(5, 4),), (torch.ones(5, 4),), (-torch.ones(5, 4),)],
    ),
    "nonzero_tuple": (lambda x: torch.nonzero(x, as_tuple=True)[1] + 1, [(torch.eye(4),), (torch.ones(4, 4),)]),
    "unique": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        [(torch.randint(0, high, (4, 5)),) for high in (5, 1, 99)],
    ),
    "unique_rows": (
        lambda x: (*torch.unique(x, dim=1, return_inverse=True), torch.unique_consecutive(x, dim=0)),
        [(torch.randint(0, high, (3, 7)),) for high in (2, 1)],
    ),
    "unique_consecutive": (
        lambda x: torch.unique_consecutive(x, return_counts=True), [(torch.randint(0, 2, (20,)),) for _ in range(2)],
    ),
    "item": (lambda x: x * x.sum().item(), [(torch.randn(4),)]),
    "item_as_size": (_narrowed, [(torch.tensor(n), torch.randn(30)) for n in (5, 30, 1)]),
    "repeat_interleave": (
        _repeated, [(torch.randn(4, 3), torch.tensor(c)) for c in ([1, 0, 2, 3], [0, 0, 0, 0], [0, 9, 0, 0])],
    ),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name: str):
    function, calls = EXPORTS[name]
    model = mlc.load(mlc.compile(torch.export.export(Module(function), calls[0])).to_bytes())
    for args in calls:
        got, wanted = model(*args), function(*args)
        for a, b in zip(got if isinstance(got, tuple) else (got,), wanted if isinstance(wanted, tuple) else (wanted,),
                        strict=True):  # fmt: skip
            torch.testing.assert_close(a, b)


def test_sizes_from_data_beside_dynamic_dimensions():
    n = torch.export.Dim("n", min=1, max=64)
    function = EXPORTS["masks"][0]
    program = torch.export.export(Module(function), (torch.randn(5, 4),), dynamic_shapes=(({0: n},),))
    model = mlc.load(mlc.compile(program).to_bytes())
    for rows in (1, 5, 64):
        x = torch.randn(rows, 4)
        for a, b in zip(model(x), function(x), strict=True):
            torch.testing.assert_close(a, b)


def test_an_export_without_a_bound_says_how_to_give_one():
    function = torch.repeat_interleave
    program = torch.export.export(Module(function), (torch.randn(4), torch.tensor([1, 0, 2, 3])))
    with pytest.raises(UnsupportedError, match=r"torch\._check\(u0 <= 4096\)"):
        mlc.compile(program)


def test_an_input_whose_size_data_decide_is_no_model():
    """Only outputs may be so described: a reader checks it, whoever wrote the file."""
    proto = onnx_model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (F32, [8])}, ["y"])
    artifact = mlc.compile(proto)
    x = artifact.meta.inputs[0]
    artifact.meta = dataclasses.replace(artifact.meta, inputs=(x._replace(dims=("*",)),))
    with pytest.raises(mlc.MlcError, match=r"BAD_MODEL: .*a dim names a symbol that is not there"):
        mlc.load(artifact.to_bytes())
