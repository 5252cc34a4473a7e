"""The systems compared: each gives a function that runs the workload once and returns its outputs.

To add one: a function `(workload, thread_count) -> run` with its row in PEERS; what it needs, it imports itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.workloads import Workload, zoo_model

Run = Callable[[], Any]


class NotHereError(Exception):
    """A peer cannot run this workload on this machine; the message is a sentence for the report."""


def mlc_peer(workload: Workload, thread_count: int) -> Run:
    """mlc, from the artifact that the harness compiled before."""
    import mlc

    artifact = artifact_path(workload)
    if not artifact.exists():
        raise NotHereError("mlc did not compile it")
    model = mlc.load(artifact, threads=thread_count)
    feed = _feed(workload)
    return lambda: model(*feed)


def torch_peer(workload: Workload, thread_count: int) -> Run:
    """Eager PyTorch: the operators of the exported program, one call each."""
    if workload.pt2 is None:
        raise NotHereError("published as ONNX only")
    torch = _package("torch")
    torch.set_num_threads(thread_count)
    model = zoo_model(workload.pt2)
    module = torch.export.load(str(model.path)).module()
    feed = [torch.from_numpy(array) for array in model.feeds[workload.feed_index]]

    def run() -> Any:
        with torch.inference_mode():
            return module(*feed)

    return run


def compiled_torch_peer(workload: Workload, thread_count: int) -> Run:
    """torch.compile with Inductor and frozen weights."""
    if workload.pt2 is None:
        raise NotHereError("published as ONNX only")
    torch = _package("torch")
    torch.set_num_threads(thread_count)
    import torch._inductor.config as config

    config.freezing = True
    model = zoo_model(workload.pt2)
    module = torch.compile(torch.export.load(str(model.path)).module())
    feed = [torch.from_numpy(array) for array in model.feeds[workload.feed_index]]

    def run() -> Any:
        with torch.no_grad():
            return module(*feed)

    return run


def onnxruntime_peer(workload: Workload, thread_count: int) -> Run:
    """ONNX Runtime, all graph optimisations, its own thread pool."""
    if workload.onnx is None:
        raise NotHereError("no ONNX file of it in the zoo")
    ort = _package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = thread_count, 1
    options.log_severity_level = 3
    model = zoo_model(workload.onnx)
    session = ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    feed = dict(zip(model.input_names, _feed(workload), strict=True))
    return lambda: session.run(None, feed)


def openvino_peer(workload: Workload, thread_count: int) -> Run:
    """OpenVINO in float32, tuned for latency."""
    if workload.onnx is None:
        raise NotHereError("no ONNX file of it in the zoo")
    openvino = _package("openvino")
    core = openvino.Core()
    model = zoo_model(workload.onnx)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": thread_count,
        "NUM_STREAMS": 1,
    }
    graph = core.read_model(str(model.path))
    feed = _feed(workload)
    graph.reshape({port.any_name: list(array.shape) for port, array in zip(graph.inputs, feed, strict=True)})
    request = core.compile_model(graph, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(list(feed), share_inputs=True, share_outputs=False).values())


PEERS: dict[str, Callable[[Workload, int], Run]] = {
    "mlc": mlc_peer,
    "torch": torch_peer,
    "torch.compile": compiled_torch_peer,
    "onnxruntime": onnxruntime_peer,
    "openvino": openvino_peer,
}
DEFAULT = ("mlc", "torch", "onnxruntime", "openvino")


def artifact_path(workload: Workload) -> Path:
    """Where the harness puts and a worker finds the compiled model."""
    return Path(os.environ["MLC_BENCH_ARTIFACTS"]) / f"{workload.main}.mlc"


def reference(workload: Workload) -> list[np.ndarray[Any, Any]]:
    """Outputs that every peer is held to."""
    return list(zoo_model(workload.main).outputs[workload.feed_index])


def _feed(workload: Workload) -> tuple[np.ndarray[Any, Any], ...]:
    feed: tuple[np.ndarray[Any, Any], ...] = zoo_model(workload.main).feeds[workload.feed_index]
    return feed


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotHereError(f"{name} is not installed") from error
