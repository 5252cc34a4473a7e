"""One peer with one workload in a process of its own: `python -m bench.worker PEER WORKLOAD THREADS`.

Speaks JSON lines. First `{"ready": ...}` with the error against the reference or `{"skipped": reason}`; then for each
line read, a number of seconds, it runs for that long and answers `{"runs": count, "best_ns": ns}`. Peers so stay loaded
while others work, and what one does to its process (thread pools, allocators) is not felt by another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MIN_RUNS = 3


def main() -> None:
    name, workload_name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    reply = _reply_channel()
    from bench.peers import PEERS, NotHereError, reference
    from bench.workloads import WORKLOADS

    workload = WORKLOADS[workload_name]
    try:
        start = time.perf_counter()
        prepared = PEERS[name](workload, threads)
        outputs = flat(prepared.read(prepared.run()))
        load_s = time.perf_counter() - start
    except NotHereError as reason:
        return reply({"skipped": str(reason)})
    except Exception as error:
        return reply({"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})
    reply({"ready": True, "error": worst_error(outputs, reference(workload)), "load_s": load_s})
    for line in sys.stdin:
        reply(measure(prepared.run, float(line)))


def measure(run: Callable[[], Any], seconds: float) -> dict[str, int]:
    """Runs for about `seconds`, three times at least; the first run, after others had the machine, is not counted."""
    run()
    best_ns, runs = None, 0
    end = time.perf_counter() + seconds
    while runs < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        run()
        spent_ns = time.perf_counter_ns() - start
        best_ns = spent_ns if best_ns is None else min(best_ns, spent_ns)
        runs += 1
    return {"runs": runs, "best_ns": best_ns or 0}


def flat(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """Arrays of an output structure, torch tensors included."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (list, tuple)):
        return [array for value in outputs for array in flat(value)]
    return [np.asarray(outputs)]


def worst_error(got: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> float:
    """Largest difference relative to the largest magnitude of its output."""
    worst = 0.0
    for mine, theirs in zip(got, wanted, strict=True):
        if mine.shape != theirs.shape:
            return float("inf")
        difference = np.abs(mine.astype(np.float64) - theirs.astype(np.float64)).max(initial=0)
        worst = max(worst, float(difference / max(float(np.abs(theirs).max(initial=0)), 1e-30)))
    return worst


def _reply_channel() -> Callable[[dict[str, Any]], None]:
    """Writes a JSON line to what was standard output; what libraries print goes to standard error instead."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return reply


if __name__ == "__main__":
    main()
