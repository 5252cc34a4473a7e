"""Interleaves the peers of a workload: each stays loaded in a process of its own and works in short turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import Limits, measure_limits
from bench.workloads import WORKLOADS, flops

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Timing:
    """One peer on one workload. `best_ns` is the fastest run of all turns, `turns_ns` the fastest of each."""

    peer: str
    best_ns: int | None = None
    turns_ns: list[int] = field(default_factory=list)
    runs: int = 0
    error: float | None = None
    load_s: float | None = None
    reason: str | None = None


@dataclass
class Outcome:
    """A workload on a number of threads: every peer, and what the machine could do at most during the same turns."""

    workload: str
    threads: int
    gflop: float | None
    peak_gflops: float | None
    read_gbytes: float | None
    copy_gbytes: float | None
    timings: list[Timing]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """How long to measure: `rounds` turns a peer of `turn_s` each, with `rest_s` between turns."""

    rounds: int = 8
    turn_s: float = 0.4
    rest_s: float = 0.05
    realtime: bool = False


class _Worker:
    """A peer's process. Answers are awaited: never do two peers run at once."""

    def __init__(self, peer: str, workload: str, threads: int, artifacts: Path, plan: Plan) -> None:
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = {**os.environ, **counts, "MLC_BENCH_ARTIFACTS": str(artifacts), "PYTHONPATH": _python_path()}
        command = [sys.executable, "-m", "bench.worker", peer, workload, str(threads)]
        if plan.realtime and shutil.which("chrt"):
            command = ["chrt", "-r", "1", *command]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.timing = Timing(peer)
        hello = self._answer()
        self.timing.reason = hello.get("skipped") or hello.get("failed")
        self.timing.error, self.timing.load_s = hello.get("error"), hello.get("load_s")
        if self.timing.reason:
            self.close()

    def turn(self, seconds: float) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.timing.reason = "its process ended"
            return
        answer = self._answer()
        if "best_ns" not in answer:
            self.timing.reason = answer.get("failed", "its process ended")
            return
        self.timing.turns_ns.append(answer["best_ns"])
        self.timing.runs += answer["runs"]
        self.timing.best_ns = min(self.timing.turns_ns)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"failed": f"its process ended with status {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def run_workload(
    name: str, peers: Sequence[str], threads: int, plan: Plan, artifacts: Path, say: Callable[[str], Any]
) -> Outcome:
    """Loads every peer, checks its outputs, then measures in rounds; the order rotates from round to round."""
    workers = [_Worker(peer, name, threads, artifacts, plan) for peer in peers]
    for worker in workers:
        if worker.timing.reason:
            say(f"  {worker.timing.peer}: skipped: {worker.timing.reason}")
    ready = [worker for worker in workers if not worker.timing.reason]
    limits: list[Limits] = []
    for at in range(plan.rounds):
        shift = at % max(len(ready), 1)
        for worker in ready[shift:] + ready[:shift]:
            if not worker.timing.reason:
                worker.turn(plan.turn_s)
                time.sleep(plan.rest_s)
        found = measure_limits(artifacts, threads)
        limits += [found] if found else []
    for worker in ready:
        worker.close()
    operations = flops(WORKLOADS[name])
    return Outcome(
        name,
        threads,
        None if operations is None else operations * 1e-9,
        max((one.gflops for one in limits), default=None),
        max((one.gbytes for one in limits), default=None),
        max((one.copy_gbytes for one in limits), default=None),
        [worker.timing for worker in workers],
    )


def compile_workload(name: str, artifacts: Path) -> float | None:
    """Compiles for mlc, into `artifacts`; seconds it took, or None where the artifact was there.

    In a process of its own, as the harness's stays small and untouched by the compiler.
    """
    from bench.workloads import zoo_model

    workload = WORKLOADS[name]
    file = artifacts / f"{workload.main}.mlc"
    if file.exists():
        return None
    model = zoo_model(workload.main)
    code = "import json, sys, mlc; mlc.compile(sys.argv[1], symbols=json.loads(sys.argv[3]) or None).save(sys.argv[2])"
    start = time.perf_counter()
    command = [sys.executable, "-c", code, str(model.path), str(file), json.dumps(model.symbols)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": _python_path()}, capture_output=True)
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(" ".join(last) or f"mlc.compile ended with status {done.returncode}")
    return time.perf_counter() - start


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
