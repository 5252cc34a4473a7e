"""Ops of com.microsoft that exporters and ONNX Runtime's tools leave in models, against ONNX Runtime.

Those that it has on GPUs only are compared with numpy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from mlc.dialects.reference import run_function
from mlc.dialects.verify import verify_module
from mlc.frontend.onnx import import_onnx
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))

from onnx_nodes import run_compiled

RNG = np.random.default_rng(11)


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-60, 60, shape).astype(np.int8)  # ONNX Runtime saturates sums of pairs before AVX512-VNNI


def s(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def z(value: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.asarray(value, dtype)


@dataclass(frozen=True)
class Row:
    """One node: `inputs` in order (None: absent), `weights` the positions that are constants, `steps` how far an
    integer may be off, `oracle` what gives the results where ONNX Runtime does not."""

    op: str
    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    weights: tuple[int, ...] = ()
    outputs: int = 1
    steps: int = 0
    oracle: Callable[..., Any] | None = None
    name: str = ""


HEADS = {"num_heads": 2}
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
TABLE = np.outer(np.arange(16), 1 / 10 ** (np.arange(4) / 4))
WIDE_TABLE = np.outer(np.arange(16), 1 / 10 ** (np.arange(8) / 8)).astype(np.float32)
TURNS = [np.cos(TABLE).astype(np.float32), np.sin(TABLE).astype(np.float32)]


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """[B, S, H * D] of q, k, v [B, S, H, D]."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores), v).reshape(*q.shape[:2], -1)


def group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Of two groups, channels last, then silu."""
    parts = x.reshape(x.shape[0], -1, 2, x.shape[-1] // 2)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y))


def groups(length: int, past: int, last: list[int], total: int, **more: Any) -> Row:
    """Grouped queries of width 16: 4 heads over 2."""
    batch = len(last)
    inputs = [f(batch, length, 64), f(batch, length, 32), f(batch, length, 32), f(batch, 2, past, 16)]
    inputs += [f(batch, 2, past, 16), np.asarray(last, np.int32), np.asarray(total, np.int32)]
    turned = [np.cos(WIDE_TABLE), np.sin(WIDE_TABLE)] if more.get("do_rotary") else []
    return Row("GroupQueryAttention", inputs + turned, GROUPS | more, (6,), 3)


def attention(mask: Any = None, past: Any = None, **more: Any) -> Row:
    inputs = [f(2, 5, 16), f(16, 48, scale=0.3), f(48), mask, past]
    while inputs[-1] is None:
        inputs.pop()
    return Row("Attention", inputs, HEADS | more, (1, 2), 1 if past is None else 2)


ROWS = [
    attention(),
    attention(unidirectional=1),
    attention(np.asarray([3, 5], np.int32)),
    attention(np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)),
    attention(past=f(2, 2, 2, 3, 8)),
    attention(qkv_hidden_sizes=[16, 16, 16]),
    Row("MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 16)], HEADS),
    Row("MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 16), f(48)], HEADS, (3,)),
    Row("MultiHeadAttention", [f(2, 5, 2, 3, 8)], HEADS, oracle=lambda x: attended(*np.moveaxis(x, 3, 0))),
    Row(
        "MultiHeadAttention",
        [f(2, 5, 16), f(2, 7, 2, 2, 8)],
        HEADS,
        oracle=lambda q, kv: attended(q.reshape(2, 5, 2, 8), *np.moveaxis(kv, 3, 0)),
    ),
    Row("MultiHeadAttention", [f(2, 5, 16), f(2, 2, 7, 8), f(2, 2, 7, 8)], HEADS, name="cross"),
    Row("MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 16), None, None, f(1, 2, 5, 7)], HEADS),
    Row("MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 16), None, np.asarray([4, 7], np.int32)], HEADS),
    Row(
        "MultiHeadAttention",
        [f(2, 1, 16), f(2, 1, 16), f(2, 1, 16), None, None, None, f(2, 2, 6, 8), f(2, 2, 6, 8)],
        HEADS,
        outputs=3,
    ),
    groups(5, 0, [4, 4], 5),
    groups(1, 6, [6, 6], 7),
    groups(1, 6, [6, 3], 7),
    groups(1, 6, [6], 7, do_rotary=1),
    groups(1, 6, [6], 7, do_rotary=1, rotary_interleaved=1),
    groups(5, 0, [4], 5, do_rotary=1),
    groups(1, 6, [6], 7, local_window_size=3),
    Row("RotaryEmbedding", [f(2, 3, 16), np.asarray([[0, 1, 2], [4, 5, 6]]), *TURNS]),
    Row("RotaryEmbedding", [f(2, 2, 3, 8), np.asarray([3]), *TURNS], {"interleaved": 1}),
    Row("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], {"epsilon": 1e-5}, (2, 3, 4)),
    Row("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8)], {"epsilon": 1e-5}, (2,)),
    Row("Gelu", [f(3, 9)]),
    Row("FastGelu", [f(3, 9), f(9)]),
    Row("BiasGelu", [f(3, 9), f(9)]),
    Row("QuickGelu", [f(3, 9)], {"alpha": 1.702}),
    Row("FusedMatMul", [f(4, 3), f(5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    Row("FusedMatMul", [f(3, 2, 4), f(2, 4, 5)], {"transBatchA": 1}, name="batch"),
    Row("FusedGemm", [f(3, 4), f(4, 5), f(5)], {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    Row("FusedConv", [f(1, 2, 6, 6), f(3, 2, 3, 3), f(3)], {"activation": "Relu"}, (1, 2)),
    Row("FusedConv", [f(1, 2, 6, 6), f(3, 2, 1, 1), f(3), f(1, 3, 6, 6)], {"activation": "Relu"}, (1, 2)),
    Row(
        "BiasSoftmax",
        [f(2, 3, 4), f(1, 3, 4)],
        {"axis": 2, "is_inner_broadcast": 0},
        oracle=lambda x, b: softmax(x + b),
    ),
    Row("BiasAdd", [f(2, 3, 4), f(4), f(2, 3, 4)], oracle=lambda x, b, y: x + b + y),
    Row("BiasSplitGelu", [f(2, 3, 8), f(8)], oracle=lambda x, b: (x + b)[..., :4] * gelu((x + b)[..., 4:])),
    Row("GroupNorm", [f(2, 3, 5, 8), f(8), f(8)], {"groups": 2, "activation": 1}, oracle=group_norm),
    Row(
        "SkipGroupNorm",
        [f(2, 3, 5, 8), f(8), f(8), f(2, 8), f(8)],
        {"groups": 2, "activation": 1},
        outputs=2,
        oracle=lambda x, g, b, skip, bias: [
            group_norm(x + skip[:, None, None] + bias, g, b),
            x + skip[:, None, None] + bias,
        ],
    ),
    Row("NhwcConv", [f(1, 4, 5, 3), f(2, 1, 1, 3), f(2)], {}, oracle=lambda x, w, b: x @ w.reshape(2, 3).T + b),
    Row("MatMulIntegerToFloat", [u8(3, 8), i8(8, 5), s(0.1), s(0.2), z(120), z(3, np.int8), f(5)]),
    Row("MatMulIntegerToFloat", [u8(3, 8), i8(8, 5), s(0.1), f(5), z(120), i8(5)]),
    Row("DynamicQuantizeMatMul", [f(3, 8), i8(8, 5), s(0.2), z(3, np.int8), f(5)]),
    Row(
        "QGemm",
        [u8(3, 8), s(0.1), z(9), u8(8, 5), s(0.2), z(7), np.arange(5, dtype=np.int32), s(4.0), z(100)],
        {},
        (3,),
        steps=1,
    ),
    Row("QGemm", [u8(3, 8), s(0.1), z(9), i8(5, 8), f(5) ** 2, np.zeros(5, np.int8)], {"transB": 1}, (3, 4, 5)),
    Row("QLinearAdd", [u8(3, 8), s(0.1), z(9), u8(3, 8), s(0.2), z(7), s(0.3), z(100)], steps=1),
    Row("QLinearMul", [u8(3, 8), s(0.1), z(9), u8(8), s(0.2), z(7), s(2.0), z(100)], steps=1),
    Row("QLinearSigmoid", [u8(3, 8), s(0.05), z(128), s(1 / 256), z(0)], steps=1),
    Row("QLinearLeakyRelu", [i8(3, 8), s(0.05), z(0, np.int8), s(0.05), z(3, np.int8)], {"alpha": 0.1}, steps=1),
    Row("QLinearGlobalAveragePool", [u8(1, 3, 4, 4), s(0.05), z(128), s(0.02), z(128)], steps=1),
    Row("QLinearConcat", [s(0.1), z(3), u8(2, 3), s(0.1), z(3), u8(2, 4), s(0.2), z(7)], {"axis": 1}, steps=1),
    Row(
        "QLinearSoftmax",
        [u8(3, 8), s(0.05), z(128), s(1 / 256), z(0)],
        {"axis": -1, "opset": 13},
        (1, 2, 3, 4),
        steps=1,
    ),
    Row(
        "QAttention",
        [u8(2, 4, 16), i8(16, 48), f(48), s(0.02), s(0.02), None, z(128), z(0, np.int8)],
        HEADS,
        (1, 2),
    ),
    Row("MatMulNBits", [f(3, 32), u8(5, 2, 8), f(10)], {"K": 32, "N": 5, "bits": 4, "block_size": 16}, (1, 2)),
    Row(
        "GatherBlockQuantized",
        [u8(6, 16), np.asarray([4, 0, 5]), f(6, 2)],
        {"block_size": 16, "bits": 4, "quantize_axis": 1, "gather_axis": 0},
        (0, 2),
    ),
    Row(
        "EmbedLayerNormalization",
        [np.asarray([[1, 2, 0]], np.int32), np.asarray([[0, 1, 1]], np.int32), f(4, 8), f(5, 8), f(2, 8), f(8), f(8)],
        {"epsilon": 1e-5},
        (2, 3, 4, 5, 6),
        2,
    ),
    Row("QuantizeLinear", [f(3, 4), s(0.05), z(128)]),
    Row("DequantizeLinear", [u8(3, 4), s(0.05), z(128)]),
    Row("ExpandDims", [f(3, 4), np.asarray(1, np.int32)], {}, (1,)),
]


def _model(row: Row) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    names = [f"i{n}" if x is not None else "" for n, x in enumerate(row.inputs)]
    outputs = [f"o{n}" for n in range(row.outputs)]
    node = helper.make_node(row.op, names, outputs, domain="com.microsoft", **row.attrs)
    given = [(n, x) for n, x in enumerate(row.inputs) if x is not None]
    weights = [numpy_helper.from_array(x, names[n]) for n, x in given if n in row.weights]
    fed = [(n, x) for n, x in given if n not in row.weights]
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for _, x in fed]
    inputs = [helper.make_tensor_value_info(names[n], k, x.shape) for (n, x), k in zip(fed, kinds, strict=True)]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), [x for _, x in fed]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.op}-{r.name}-{r.attrs}".replace(" ", ""))
def test_as_in_onnx_runtime(row: Row):
    model, feeds = _model(row)
    if row.oracle is None:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), feeds, strict=True)})
    else:
        wanted = row.oracle(*row.inputs)
        wanted = wanted if isinstance(wanted, list) else [wanted]
    module = import_onnx(model)
    verify_module(module)
    for got, want in zip(run_function(module, feeds), wanted, strict=True):
        assert got.dtype == want.dtype or row.oracle
        if want.dtype.kind in "iu":
            assert np.abs(got.astype(int) - want.astype(int)).max() <= row.steps
        else:
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("row", ROWS[::6], ids=lambda r: r.op)
def test_compiled_as_by_the_reference(row: Row):
    model, feeds = _model(row)
    wanted = run_function(import_onnx(model), feeds)
    for got, want in zip(run_compiled(import_onnx(model), feeds), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
