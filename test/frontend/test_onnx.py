"""The ONNX importer: what it makes of dimensions, shape arithmetic, control flow, functions, weights and bad files.

Numbers come from the numpy reference of the imported module, against ONNX Runtime on the same model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from mlc.dialects.reference import run_function
from mlc.dialects.verify import verify_module
from mlc.frontend.onnx import import_onnx
from mlc.frontend.onnx_proto import OnnxError, read_model
from mlc.frontend.report import UnsupportedError
from onnx import TensorProto, helper, numpy_helper

F32 = TensorProto.FLOAT
RNG = np.random.default_rng(7)


def tensor(name: str, *shape: int | str | None, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def unknown(name: str, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, None)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def scalar(name: str, value: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, np.int64), name)


def model(nodes: list, inputs: list, outputs: list, weights: list = (), opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def assert_like_ort(proto: onnx.ModelProto, *feeds: np.ndarray, **options: Any) -> Any:
    """Imports, runs and compares; returns the module."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), feeds, strict=True)})
    module = import_onnx(proto, **options)
    verify_module(module)
    for got, want in zip(run_function(module, feeds), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return module


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# --- dimensions ---


def test_dimension_names_become_identifiers_and_unnamed_ones_get_names():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", "a.b", None, -1, 3)], [unknown("y")])
    text = str(import_onnx(proto))
    assert 'tensor<?x?x?x3xf32, ["a_b", "x_1", "x_2", "3"]>' in text
    assert "mlc.symbols = {a_b = array<i64: 1, 2147483647>" in text


def test_dims_option_gives_ranges_and_numbers():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", "n", "m")], [unknown("y")])
    text = str(import_onnx(proto, dims={"n": (2, 9), "m": 5}))
    assert 'tensor<?x5xf32, ["n", "5"]>' in text and "array<i64: 2, 9>" in text
    with pytest.raises(OnnxError, match="no dimension 'q'; it has: n, m"):
        import_onnx(proto, dims={"q": 1})


def test_expression_in_an_input_dimension():
    proto = model([helper.make_node("Relu", ["y"], ["z"])], [tensor("x", "s"), tensor("y", "2*s + 1")], [unknown("z")])
    assert '["2*s+1"]' in str(import_onnx(proto))


def test_sizes_that_meet_become_one():
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    proto = model(nodes, [tensor("x", "n", 3), tensor("y", "m", 3)], [unknown("z")])
    module = assert_like_ort(proto, data(4, 3), data(4, 3))
    assert '"m"' not in str(module)


def test_halving_and_doubling_makes_a_dimension_a_multiple():
    nodes = [
        helper.make_node("AveragePool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node(
            "Resize",
            ["half", "", "twice"],
            ["up"],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        helper.make_node("Add", ["x", "up"], ["y"]),
    ]
    scales = numpy_helper.from_array(np.asarray([1, 1, 2, 2], np.float32), "twice")
    proto = model(nodes, [tensor("x", 1, 1, "h", "w")], [unknown("y")], [scales])
    module = assert_like_ort(proto, data(1, 1, 6, 8))
    assert '["1", "1", "2*h_div2", "2*w_div2"]' in str(module)


def test_a_table_of_positions_bounds_the_length():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "s", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    weights = [numpy_helper.from_array(data(20, 3), "table"), ints("zero", 0)]
    module = assert_like_ort(model(nodes, [tensor("x", 2, "n", 3)], [unknown("y")], weights), data(2, 7, 3))
    assert "n = array<i64: 1, 20>" in str(module)


# --- shape arithmetic ---


def test_reshape_chain_leaves_no_shape_tensors():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Mul", ["n1", "two"], ["n2"]),
        helper.make_node("Concat", ["n2", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [scalar("zero", 0), ints("axis", 0), ints("two", 2), ints("rest", -1)]
    proto = model(nodes, [tensor("x", "n", 6)], [unknown("y")], weights)
    module = assert_like_ort(proto, data(5, 6))
    body = [op.operation.name for op in module.body.operations[0].regions[0].blocks[0].operations]
    assert body == ["mlc.reshape", "func.return"]


def test_expand_by_the_where_equal_idiom():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=ints("", 1)),
        helper.make_node("Equal", ["s", "minus"], ["is"]),
        helper.make_node("Where", ["is", "ones", "s"], ["target"]),
        helper.make_node("Expand", ["y", "target"], ["z"]),
    ]
    proto = model(nodes, [tensor("x", "n", 4), tensor("y", 1, 4)], [unknown("z")], [ints("rank", 2), ints("minus", -1)])
    assert_like_ort(proto, data(3, 4), data(1, 4))


def test_range_and_slice_over_a_symbolic_size():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["f"], to=F32),
        helper.make_node("Mul", ["x", "f"], ["m"]),
        helper.make_node("Slice", ["m", "ones", "ends", "axis", "ones"], ["y"]),
    ]
    weights = [scalar("zero", 0), scalar("one", 1), ints("ones", 1), ints("ends", 2**63 - 1), ints("axis", 1)]
    module = assert_like_ort(model(nodes, [tensor("x", 2, "n")], [unknown("y")], weights), data(2, 7))
    assert 'tensor<2x?xf32, ["2", "n-1"]>' in str(module)


def test_a_size_used_as_data():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=F32),
        helper.make_node("ReduceMean", ["f"], ["mean"], keepdims=0),
        helper.make_node("Div", ["x", "mean"], ["y"]),
    ]
    assert_like_ort(model(nodes, [tensor("x", "n", 4)], [unknown("y")], opset=13), data(6, 4))


# --- control flow and functions ---


def branch(name: str, op: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [unknown(name)])


def test_if_with_a_condition_from_shapes_takes_its_branch():
    nodes = [
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Equal", ["n", "twelve"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")),
    ]
    proto = model(nodes, [tensor("x", 3, 4)], [unknown("y")], [scalar("twelve", 12)])
    module = assert_like_ort(proto, data(3, 4))
    assert "mlc.relu" in str(module) and "mlc.neg" not in str(module)


def test_if_with_a_condition_from_data_selects():
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg"))
    proto = model([node], [tensor("c", dtype=TensorProto.BOOL), tensor("x", 3)], [unknown("y")])
    for flag in (True, False):
        assert_like_ort(proto, np.asarray(flag), data(3))


def test_if_with_a_branch_that_the_sizes_do_not_fit():
    """Two layers for two lengths: the one that cannot be is NaN when it is asked for."""
    branches = [
        helper.make_graph([helper.make_node("MatMul", ["x", w], [y])], y, [], [unknown(y)])
        for w, y in (("long", "a"), ("short", "b"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    weights = [numpy_helper.from_array(data(6, 2), "long"), numpy_helper.from_array(data(3, 2), "short")]
    inputs = [tensor("c", dtype=TensorProto.BOOL), tensor("x", 1, 6)]
    proto = model([node], inputs, [unknown("y")], weights)
    module, x = import_onnx(proto), data(1, 6)
    wanted = x @ numpy_helper.to_array(weights[0])
    np.testing.assert_allclose(run_function(module, [np.asarray(True), x])[0], wanted, rtol=1e-5, atol=1e-6)
    assert np.isnan(run_function(module, [np.asarray(False), x])[0]).all()


def test_squeeze_of_whatever_is_one_and_a_declared_rank():
    node = helper.make_node("Squeeze", ["x"], ["y"])
    module = assert_like_ort(model([node], [tensor("x", "n", 1)], [tensor("y")]), data(1, 1))
    assert "mlc.symbols = {}" in str(module)
    assert_like_ort(model([node], [tensor("x", "n", 1)], [tensor("y", "n")]), data(3, 1))


def test_values_option_fixes_an_input():
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg"))
    proto = model([node], [tensor("c", dtype=TensorProto.BOOL), tensor("x", 3)], [unknown("y")])
    module = import_onnx(proto, values={"c": False})
    x = data(3)
    np.testing.assert_array_equal(run_function(module, [x])[0], -x)
    with pytest.raises(OnnxError, match="no input 'd'"):
        import_onnx(proto, values={"d": 1})


def test_functions_with_attributes_are_inlined():
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    sets = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Leaky", ["a"], ["b"], [inner], sets, ["slope"])
    node = helper.make_node("Leaky", ["x"], ["y"], domain="own", slope=0.25)
    graph = helper.make_graph([node], "g", [tensor("x", 5)], [unknown("y")])
    sets.append(helper.make_opsetid("own", 1))
    proto = helper.make_model(graph, functions=[function], opset_imports=sets, ir_version=8)
    assert_like_ort(proto, data(5))


def test_squeeze_of_a_frame_count_and_its_guard():
    """A length of 8 gives one frame; the exporter guards the squeeze by comparing the count with 1."""
    squeezed = helper.make_graph([helper.make_node("Squeeze", ["f", "axis"], ["a"])], "then", [], [unknown("a")])
    kept = helper.make_graph([helper.make_node("Identity", ["f"], ["b"])], "else", [], [unknown("b")])
    nodes = [
        helper.make_node("MaxPool", ["x"], ["f"], kernel_shape=[8], strides=[8]),
        helper.make_node("Shape", ["f"], ["s"], start=2),
        helper.make_node("Equal", ["s", "one"], ["c"]),
        helper.make_node("If", ["c"], ["q"], then_branch=squeezed, else_branch=kept),
        helper.make_node("MatMul", ["q", "w"], ["y"]),
    ]
    weights = [ints("axis", 2), ints("one", 1), numpy_helper.from_array(data(4, 2), "w")]
    assert_like_ort(model(nodes, [tensor("x", 3, 4, "n")], [unknown("y")], weights), data(3, 4, 8))


def test_sequences_are_gone_after_import():
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0),
        helper.make_node("SequenceErase", ["s", "one"], ["t"]),
        helper.make_node("SequenceInsert", ["t", "z"], ["u"]),
        helper.make_node("SequenceAt", ["u", "one"], ["v"]),
        helper.make_node("ConcatFromSequence", ["u"], ["w"], axis=0),
    ]
    inputs = [tensor("x", 2, 3), tensor("z", 2)]
    assert_like_ort(model(nodes, inputs, [unknown("v"), unknown("w")], [scalar("one", 1)]), data(2, 3), data(2))


def test_loop_of_known_length():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Mul", ["v", "x"], ["w"]),
            helper.make_node("Identity", ["w"], ["out"]),
        ],
        "body",
        [tensor("i", dtype=TensorProto.INT64), tensor("go", dtype=TensorProto.BOOL), tensor("v", 3)],
        [tensor("on", dtype=TensorProto.BOOL), tensor("w", 3), tensor("out", 3)],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last", "all"], body=body)]
    weights = [scalar("count", 4)]
    assert_like_ort(model(nodes, [tensor("x", 3)], [unknown("last"), unknown("all")], weights), data(3))


def test_loop_that_data_ends():
    """v doubles while its sum is below a bound, ten times at most."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("ReduceSum", ["w"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "bound"], ["on"]),
        ],
        "body",
        [tensor("i", dtype=TensorProto.INT64), tensor("go", dtype=TensorProto.BOOL), tensor("v", 3)],
        [tensor("on", dtype=TensorProto.BOOL), tensor("w", 3)],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["start"], keepdims=0),
        helper.make_node("Less", ["start", "bound"], ["first"]),
        helper.make_node("Loop", ["limit", "first", "x"], ["y"], body=body),
    ]
    proto = model(nodes, [tensor("x", 3), tensor("bound")], [unknown("y")], [scalar("limit", 10)])
    for bound in (-1.0, 5.0, 90.0, 1e9):
        assert_like_ort(proto, np.asarray([1, 0.5, 0.25], np.float32), np.asarray(bound, np.float32))


def test_nested_loops_see_the_values_around_them():
    inner = helper.make_graph(
        [
            helper.make_node("Mul", ["u", "x"], ["scaled"]),
            helper.make_node("Add", ["scaled", "v"], ["u1"]),
            helper.make_node("Identity", ["g"], ["g1"]),
        ],
        "inner",
        [tensor("j", dtype=TensorProto.INT64), tensor("g", dtype=TensorProto.BOOL), tensor("u", 3)],
        [tensor("g1", dtype=TensorProto.BOOL), tensor("u1", 3)],
    )
    outer = helper.make_graph(
        [
            helper.make_node("Loop", ["two", "", "v"], ["w"], body=inner),
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["w"], ["out"]),
        ],
        "outer",
        [tensor("i", dtype=TensorProto.INT64), tensor("go", dtype=TensorProto.BOOL), tensor("v", 3)],
        [tensor("on", dtype=TensorProto.BOOL), tensor("w", 3), tensor("out", 3)],
    )
    nodes = [helper.make_node("Loop", ["three", "", "x"], ["last", "all"], body=outer)]
    weights = [scalar("two", 2), scalar("three", 3)]
    assert_like_ort(model(nodes, [tensor("x", 3)], [unknown("last"), unknown("all")], weights), data(3) * 0.5)


# --- weights and files ---


def weighty() -> onnx.ModelProto:
    weight = numpy_helper.from_array(data(300, 4), "w")
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("x", "n", 300)], [unknown("y")], [weight])


def test_weights_are_views_of_the_mapped_file(tmp_path: Path):
    file = tmp_path / "m.onnx"
    onnx.save(weighty(), file)
    weight = read_model(file).graph.weights["w"]
    assert not weight.flags.owndata and not weight.flags.writeable
    np.testing.assert_array_equal(weight, read_model(weighty_bytes := file.read_bytes()).graph.weights["w"])
    assert len(weighty_bytes) > weight.nbytes


def test_external_data(tmp_path: Path):
    proto, file = weighty(), tmp_path / "m.onnx"
    wanted = numpy_helper.to_array(proto.graph.initializer[0])
    onnx.save(proto, file, save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(read_model(file).graph.weights["w"], wanted)
    (tmp_path / "m.data").write_bytes(b"\0" * 16)
    with pytest.raises(OnnxError, match=r"weight 'w': bytes .* past the end of 'm\.data'"):
        read_model(file)
    (tmp_path / "m.data").unlink()
    with pytest.raises(OnnxError, match=r"external data file 'm\.data' is not beside the model"):
        read_model(file)


def test_external_data_stays_in_the_model_folder(tmp_path: Path):
    proto = weighty()
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "../secret")
    proto.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxError, match="outside the model's folder"):
        read_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_other_files_are_refused(tmp_path: Path, content: bytes):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(OnnxError, match=r"not an ONNX model|empty file"):
        read_model(tmp_path / "m.onnx")


def test_truncated_files_are_refused(tmp_path: Path):
    whole, file = weighty().SerializeToString(), tmp_path / "m.onnx"
    for size in range(1, len(whole), 97):
        file.write_bytes(whole[:size])
        with pytest.raises(OnnxError):
            import_onnx(file)


def test_everything_unsupported_is_listed_at_once():
    nodes = [
        helper.make_node("Multinomial", ["x"], ["a"], name="first"),
        helper.make_node("Made", ["x"], ["b"], name="second", domain="other"),
        helper.make_node("Made", ["b"], ["c"], name="third", domain="other"),
        helper.make_node("Reshape", ["x", "shape"], ["d"], name="fourth"),
    ]
    inputs = [tensor("x", 2, 3), tensor("shape", 2, dtype=TensorProto.INT64)]
    proto = model(nodes, inputs, [unknown("c"), unknown("d")])
    with pytest.raises(UnsupportedError) as error:
        import_onnx(proto)
    text = str(error.value)
    assert "Multinomial" in text and "node 'first'" in text
    assert "other.Made" in text and "x2" in text and "node 'second'" in text
    assert "values={'shape': ...}" in text


def test_locations_name_nodes():
    proto = model([helper.make_node("Relu", ["x"], ["y"], name="here")], [tensor("x", 2)], [unknown("y")])
    text = import_onnx(proto).operation.get_asm(enable_debug_info=True)
    assert "node 'here' (Relu)" in text
