"""The systems compared: each gives a function that runs the workload once and returns its outputs.

Each is called by its leanest way from Python: inputs bound beforehand, outputs left where the peer puts them.
To add one: a function `(workload, thread_count) -> Prepared` with its row in PEERS; what it needs, it imports itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.workloads import Workload, zoo_model


@dataclass(frozen=True)
class Prepared:
    """A loaded workload: `run` is what is timed; `read` makes arrays (or tensors) of what it returned.

    `kept` stays alive with it: inputs that the peer knows by address.
    """

    run: Callable[[], Any]
    read: Callable[[Any], Any] = lambda outputs: outputs
    kept: Any = None


class NotHereError(Exception):
    """A peer cannot run this workload on this machine; the message is a sentence for the report."""


def mlc_peer(workload: Workload, thread_count: int) -> Prepared:
    """mlc, from the artifact that the harness compiled before."""
    artifact = artifact_path(workload)
    if not artifact.exists():
        raise NotHereError("mlc did not compile it")
    return _loaded(workload, artifact, thread_count)


def mlc_bf16_peer(workload: Workload, thread_count: int) -> Prepared:
    """The same with factors of bf16, compiled here, since few runs ask for it."""
    import mlc

    artifact = artifact_path(workload).with_suffix(".bf16.mlc")
    if not artifact.exists():
        model = zoo_model(workload.main)
        mlc.compile(model.path, symbols=model.symbols or None, precision="bf16").save(artifact)
    return _loaded(workload, artifact, thread_count)


def _loaded(workload: Workload, artifact: Path, thread_count: int) -> Prepared:
    import mlc

    model = mlc.load(artifact, threads=thread_count)
    feed = _feed(workload)
    # Inputs and outputs bound beforehand, as those of ONNX Runtime and OpenVINO are.
    return Prepared(model.bind(*feed), kept=(model, feed))


def torch_peer(workload: Workload, thread_count: int) -> Prepared:
    """Eager PyTorch: the operators of the exported program, one call each."""
    if workload.pt2 is None:
        raise NotHereError("published as ONNX only")
    torch = _package("torch")
    torch.set_num_threads(thread_count)
    module = _torch_module(workload)
    feed = [torch.from_numpy(array) for array in _feed(workload)]

    def run() -> Any:
        with torch.inference_mode():
            return module(*feed)

    return Prepared(run)


def _torch_module(workload: Workload) -> Any:
    torch = _package("torch")
    if workload.source:
        import zoo_bench

        return zoo_bench.make(workload.source)[0]
    return torch.export.load(str(zoo_model(workload.pt2 or "").path)).module()


def compiled_torch_peer(workload: Workload, thread_count: int) -> Prepared:
    """torch.compile with Inductor and frozen weights."""
    if workload.pt2 is None:
        raise NotHereError("published as ONNX only")
    torch = _package("torch")
    torch.set_num_threads(thread_count)
    import torch._inductor.config as config

    config.freezing = True
    module = torch.compile(_torch_module(workload))
    feed = [torch.from_numpy(array) for array in _feed(workload)]

    def run() -> Any:
        with torch.no_grad():
            return module(*feed)

    return Prepared(run)


def onnxruntime_peer(workload: Workload, thread_count: int) -> Prepared:
    """ONNX Runtime, all graph optimisations, its own thread pool."""
    if workload.onnx is None:
        raise NotHereError("no ONNX file of it in the zoo")
    ort = _package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = thread_count, 1
    options.log_severity_level = 3
    model = zoo_model(workload.onnx)
    session = ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in zip(model.input_names, _feed(workload), strict=True):
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return Prepared(run, lambda found: found.copy_outputs_to_cpu())


def openvino_peer(workload: Workload, thread_count: int, precision: str = "f32") -> Prepared:
    """OpenVINO, tuned for latency."""
    if workload.onnx is None:
        raise NotHereError("no ONNX file of it in the zoo")
    openvino = _package("openvino")
    core = openvino.Core()
    model = zoo_model(workload.onnx)
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": thread_count,
        "NUM_STREAMS": 1,
    }
    graph = core.read_model(str(model.path))
    feed = _feed(workload)
    graph.reshape({port.any_name: list(array.shape) for port, array in zip(graph.inputs, feed, strict=True)})
    request = core.compile_model(graph, "CPU", settings).create_infer_request()
    for position, array in enumerate(feed):
        request.set_input_tensor(position, openvino.Tensor(array, shared_memory=True))
    # The binding's own method: without the dictionary of results that the public one builds at every call.
    infer = openvino._pyopenvino.InferRequest.infer

    def run() -> Any:
        infer(request, {}, True, False)
        return request

    return Prepared(run, lambda found: [port.data.copy() for port in found.output_tensors], feed)


def numpy_peer(workload: Workload, thread_count: int) -> Prepared:
    """numpy with the OpenBLAS of its wheel, for plain matrix products."""
    if not workload.name.startswith("gemm"):
        raise NotHereError("not a matrix product")
    a, b = _feed(workload)
    return Prepared(lambda: a @ b)


def aoti_peer(workload: Workload, thread_count: int) -> Prepared:
    """AOTInductor with frozen weights, its package built once a thread count."""
    if workload.pt2 is None:
        raise NotHereError("published as ONNX only")
    torch = _package("torch")
    torch.set_num_threads(thread_count)
    model = zoo_model(workload.pt2)
    package = _artifacts() / f"{workload.name}.aoti{thread_count}.pt2"
    if not package.exists():
        program = torch.export.load(str(model.path))
        options = {"freezing": True}
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
    loaded = torch._inductor.aoti_load_package(str(package))
    feed = [torch.from_numpy(array) for array in model.feeds[workload.feed_index]]
    return Prepared(lambda: loaded.loader.run(feed))


def iree_peer(workload: Workload, thread_count: int) -> Prepared:
    """IREE's llvm-cpu back end from the ONNX file, with data tiling."""
    if workload.onnx is None:
        raise NotHereError("no ONNX file of it in the zoo")
    runtime = _package("iree.runtime")
    module = iree_module(workload)
    if thread_count > 1:
        # Its default worker stack is smaller than what some of its functions take.
        runtime.flags.parse_flags(f"--task_topology_group_count={thread_count}", "--task_worker_stack_size=4194304")
    config = runtime.Config("local-sync" if thread_count == 1 else "local-task")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.mmap(config.vm_instance, str(module)))
    found = next(found for name, found in context.modules.items() if name not in ("hal", "io_parameters"))
    names = found.vm_module.function_names
    function = found[next(name for name in names if not name.startswith("__") and not name.endswith("$async"))]
    feed = [runtime.asdevicearray(config.device, array) for array in _feed(workload)]

    def read(outputs: Any) -> Any:
        return [value.to_host() for value in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]

    return Prepared(lambda: function(*feed), read)


def iree_module(workload: Workload) -> Path:
    """The compiled module, made by the wheel's command-line tools where it is not there yet."""
    module = _artifacts() / f"{workload.name}.vmfb"
    if module.exists():
        return module
    tools, text = Path(sys.executable).parent, module.with_suffix(".mlir")
    target = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    tuned = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3", "--iree-opt-data-tiling"]
    # The default limit refuses fusions of layer norm and product.
    limit = ["--iree-llvmcpu-stack-allocation-limit=1048576"]
    onnx = str(zoo_model(workload.onnx or "").path)
    for command in (
        [tools / "iree-import-onnx", onnx, "-o", text],
        [tools / "iree-compile", text, *target, *tuned, *limit, "-o", module],
    ):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            raise NotHereError(f"{Path(str(command[0])).name} failed: {(errors or ['no message'])[0][:150]}")
    text.unlink()
    return module


PEERS: dict[str, Callable[[Workload, int], Prepared]] = {
    "mlc": mlc_peer,
    "mlc_bf16": mlc_bf16_peer,
    "torch": torch_peer,
    "torch.compile": compiled_torch_peer,
    "onnxruntime": onnxruntime_peer,
    "openvino": openvino_peer,
    "openvino_bf16": partial(openvino_peer, precision="bf16"),
    "numpy": numpy_peer,
    "aoti": aoti_peer,
    "iree": iree_peer,
}
DEFAULT = ("mlc", "torch", "onnxruntime", "openvino", "numpy")


def artifact_path(workload: Workload) -> Path:
    """Where the harness puts and a worker finds the compiled model."""
    return _artifacts() / f"{workload.main}.mlc"


def _artifacts() -> Path:
    return Path(os.environ["MLC_BENCH_ARTIFACTS"])


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
