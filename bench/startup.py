"""A fresh process until its first output: seconds, peak memory, and what compiling took and made.

    python -m bench.startup                       # mlp and resnet50 on every peer that is installed
    python -m bench.startup mlp --peers mlc,mlc-c,onnxruntime --json out.json

Files are in the page cache, interpreters warm; each number is the least of several starts, alternating between peers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.peers import NotHereError, artifact_path, iree_module
from bench.runner import ROOT, compile_workload
from bench.workloads import WORKLOADS, Workload, zoo_model

# Each reads the file argv[1] and the inputs argv[2], runs once, and says so; argv[3] is the number of threads.
_READ = "import sys, numpy as np; feed = list(np.load(sys.argv[2]).values()); threads = int(sys.argv[3])\n"
_SAY = "\nprint('done', flush=True)"
PROGRAMS = {
    "mlc": "import mlc; mlc.load(sys.argv[1], threads=threads)(*feed)",
    "onnxruntime": """
import onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = threads
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, dict(zip([i.name for i in session.get_inputs()], feed)))""",
    "openvino": """
import openvino
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
openvino.Core().compile_model(sys.argv[1], "CPU", settings)(feed)""",
    "iree": """
import iree.runtime as rt
config = rt.Config("local-sync" if threads == 1 else "local-task"); context = rt.SystemContext(config=config)
context.add_vm_module(rt.VmModule.mmap(config.vm_instance, sys.argv[1]))
module = next(m for n, m in context.modules.items() if n not in ("hal", "io_parameters"))
name = next(n for n in module.vm_module.function_names if not n.startswith("__") and not n.endswith("$async"))
module[name](*[rt.asdevicearray(config.device, array) for array in feed]).to_host()""",
    "torch": """
import torch
torch.set_num_threads(threads)
with torch.inference_mode(): torch.export.load(sys.argv[1]).module()(*map(torch.from_numpy, feed))""",
}
RUN_MODEL = ROOT / "examples" / "c" / "run_model.c"
PEERS = (*PROGRAMS, "mlc-c")


@dataclass
class Start:
    """The least of several starts: seconds to the first output, megabytes (2^20) at the peak."""

    peer: str
    workload: str
    seconds: float | None = None
    peak_mb: float | None = None
    file_mb: float | None = None
    reason: str | None = None


def measure(peer: str, workload: Workload, folder: Path, threads: int) -> Callable[[], tuple[float, float]]:
    """What starts the peer once and gives (seconds, peak megabytes). Raises: NotHereError."""
    file = _file(peer, workload, folder)
    if peer == "mlc-c":
        return lambda: _start([str(_c_program(folder)), str(file)])
    feed = folder / f"{workload.name}.npz"
    if not feed.exists():
        np.savez(feed, *zoo_model(workload.main).feeds[workload.feed_index])
    command = [sys.executable, "-c", _READ + PROGRAMS[peer] + _SAY, str(file), str(feed), str(threads)]
    return lambda: _start(command)


def _file(peer: str, workload: Workload, folder: Path) -> Path:
    if peer.startswith("mlc"):
        return artifact_path(workload)
    if peer == "iree":
        return iree_module(workload)
    name = workload.pt2 if peer == "torch" else workload.onnx
    if name is None:
        raise NotHereError("no file of it that this peer reads")
    return Path(zoo_model(name).path)


# Linux counts what a process was before `exec` towards its peak, so that a large parent hides a small child: this
# parent is an interpreter with nothing loaded.
_LAUNCH = """
import os, sys, time
read, write = os.pipe()
begin = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(write, 1); os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.execv(sys.argv[1], sys.argv[1:])
os.close(write)
said = os.read(read, 1)
seconds = time.perf_counter() - begin
while os.read(read, 65536): pass
_, status, usage = os.wait4(child, 0)
print(seconds, usage.ru_maxrss / 1024, status or not said)
"""


def _start(command: Sequence[str]) -> tuple[float, float]:
    launcher = [sys.executable, "-S", "-E", "-c", _LAUNCH, *command]
    done = subprocess.run(launcher, capture_output=True, text=True, cwd=os.environ["MLC_BENCH_ARTIFACTS"])
    seconds, peak, failed = done.stdout.split()
    if failed not in ("0", "False"):
        raise NotHereError(f"its process ended with status {failed}")
    return float(seconds), float(peak)


def _c_program(folder: Path) -> Path:
    """examples/c/run_model.c with the runtime, one thread."""
    program = folder / "run_model"
    if not program.exists():
        others = {"port_none", "port_windows", "threads_none"}
        sources = sorted(str(path) for path in (ROOT / "runtime" / "src").glob("*.c") if path.stem not in others)
        command = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", "-I", str(ROOT / "runtime" / "include")]
        command += [str(RUN_MODEL), *sources, "-lpthread", "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NotHereError(f"run_model.c does not compile: {done.stderr.splitlines()[:1]}")
    return program


def run(names: Sequence[str], peers: Sequence[str], threads: int, rounds: int, folder: Path) -> list[Start]:
    """Alternates the peers of a workload for `rounds` starts each."""
    found = []
    for name in names:
        workload = WORKLOADS[name]
        compile_workload(name, folder)
        ready: dict[str, Callable[[], tuple[float, float]]] = {}
        for peer in peers:
            start = Start(peer, name)
            found.append(start)
            try:
                ready[peer] = measure(peer, workload, folder, threads)
                start.file_mb = _file(peer, workload, folder).stat().st_size / 2**20
                ready[peer]()
            except (NotHereError, ImportError) as reason:
                start.reason = str(reason)
                ready.pop(peer, None)
        for _ in range(rounds):
            for start in found:
                if start.workload == name and start.peer in ready:
                    seconds, peak = ready[start.peer]()
                    start.seconds = min(seconds, start.seconds or seconds)
                    start.peak_mb = min(peak, start.peak_mb or peak)
    return found


def table(starts: Sequence[Start]) -> str:
    """Markdown, a row a start."""
    lines = ["| workload | peer | to first output s | peak MB | file MB |", "|---|---|---|---|---|"]
    for one in starts:
        if one.seconds is None:
            lines.append(f"| {one.workload} | {one.peer} | {one.reason} | | |")
        else:
            lines.append(
                f"| {one.workload} | {one.peer} | {one.seconds:.3f} | {one.peak_mb:.1f} | {one.file_mb or 0:.2f} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description="Start time, memory and file size.")
    parser.add_argument("workloads", nargs="*", default=["mlp", "resnet50"])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--artifacts", help="folder that keeps compiled models from run to run")
    parser.add_argument("--json", help="file for every number")
    args = parser.parse_args(argv)
    with TemporaryDirectory() as temporary:
        folder = Path(args.artifacts or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["MLC_BENCH_ARTIFACTS"] = str(folder)
        starts = run(args.workloads, args.peers, args.threads, args.rounds, folder)
    print(table(starts))
    if args.json:
        record: Any = [asdict(start) for start in starts]
        Path(args.json).write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
