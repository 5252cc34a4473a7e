"""An ONNX graph evaluated in float64: its float32 weights, inputs and casts widened, run by ONNX's reference operators.

Convolutions go through PyTorch where it is installed, for speed; float64 either way is far finer than what is judged.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def run_float64(file: Path, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of the model in `file`, computed in float64 from the float32 weights and `feeds`.

    Raises: NotImplementedError or RuntimeError where ONNX's reference lacks an operator or a variant of it.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(str(file))
    widen(model)
    evaluator = ReferenceEvaluator(model, new_ops=[*_corrected_ops(), *_torch_ops()])
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()}
    return tuple(np.asarray(array) for array in evaluator.run(None, wide))


def widen(model: Any) -> None:
    """Turns every float32 of an ONNX model into float64, in place: constants, casts, declared types, subgraphs."""
    for function in model.functions:
        _widen_nodes(function.node)
    _widen_graph(model.graph)


def _widen_graph(graph: Any) -> None:
    import onnx

    for weight in graph.initializer:
        _widen_tensor(weight)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[Any]) -> None:
    import onnx

    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif attribute.name in ("to", "dtype") and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                attribute.CopyFrom(
                    onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.array(values, np.float64)))
                )


def _widen_tensor(tensor: Any) -> None:
    import onnx

    if tensor.data_type == onnx.TensorProto.FLOAT:
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))


def _corrected_ops() -> list[Any]:
    """Operators whose versions in onnx 1.23 are wrong: batch norm before opset 14 takes the batch's own statistics for
    inference, and global max pooling takes the wrong axes unless there are two spatial ones."""
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):  # type: ignore[misc]
        def _run(  # type: ignore[no-untyped-def]
            self, x, scale, bias, mean, var, epsilon=None, momentum=None, spatial=None, training_mode=None
        ):
            if training_mode:
                raise NotImplementedError("BatchNormalization in training mode")
            shape = (-1,) + (1,) * (x.ndim - 2)
            factor = scale / np.sqrt(var + (1e-5 if epsilon is None else epsilon))
            return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)

    class GlobalMaxPool(OpRun):  # type: ignore[misc]
        def _run(self, x):  # type: ignore[no-untyped-def]
            return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)

    return [BatchNormalization, GlobalMaxPool]


def _torch_ops() -> list[Any]:
    """Conv and ConvTranspose for the evaluator by way of PyTorch, or none where it is missing."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch
    from onnx.reference.op_run import OpRun

    functional = torch.nn.functional

    def tensors(*arrays: np.ndarray | None) -> list[Any]:
        return [None if array is None else torch.from_numpy(np.array(array)) for array in arrays]

    class Conv(OpRun):  # type: ignore[misc]
        def _run(  # type: ignore[no-untyped-def]
            self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None
        ):
            rank = w.ndim - 2
            strides, dilations = strides or [1] * rank, dilations or [1] * rank
            begins, ends = _pads(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
            x, w, b = tensors(np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)]), w, b)
            conv = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
            return (conv(x, w, b, stride=strides, dilation=dilations, groups=group or 1).numpy(),)

    class ConvTranspose(OpRun):  # type: ignore[misc]
        def _run(  # type: ignore[no-untyped-def]
            self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, output_padding=None,
            output_shape=None, pads=None, strides=None,
        ):  # fmt: skip
            if output_shape or auto_pad not in (None, b"NOTSET", "NOTSET"):
                raise NotImplementedError("ConvTranspose with output_shape or auto_pad")
            rank = w.ndim - 2
            pads = pads or [0] * (2 * rank)
            x, w, b = tensors(x, w, b)
            conv = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
            whole = conv(
                x,
                w,
                b,
                stride=strides or 1,
                output_padding=output_padding or 0,
                groups=group or 1,
                dilation=dilations or 1,
            ).numpy()
            kept = tuple(slice(pads[i], whole.shape[2 + i] - pads[rank + i]) for i in range(rank))
            return (np.ascontiguousarray(whole[(slice(None), slice(None), *kept)]),)

    return [Conv, ConvTranspose]


def _pads(
    auto_pad: str | bytes | None,
    pads: list[int] | None,
    image: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: list[int],
    dilations: list[int],
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial axis of a convolution."""
    rank = len(kernel)
    mode = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    if mode in (None, "NOTSET"):
        whole = list(pads or [0] * (2 * rank))
        return whole[:rank], whole[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    begins, ends = [], []
    for size, taps, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
        small = total // 2
        begins.append(small if mode == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
    return begins, ends
