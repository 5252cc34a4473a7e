"""Command line of the harness.

    python -m bench                                     # the default workloads and peers, 1 and 2 threads
    python -m bench resnet50 --peers mlc,torch --rounds 20 --json out.json
    python -m bench --list

Run it on a quiet machine; `--realtime` runs the peers as `chrt -r 1` where that is allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import peers, workloads
from bench.machine import cpu_facts
from bench.report import table
from bench.runner import Outcome, Plan, compile_workload, run_workload


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.list:
        for name, row in workloads.WORKLOADS.items():
            print(f"{name:20} pt2: {row.pt2 or '-':20} onnx: {row.onnx or '-'}")
        return 0
    # BLAS of numpy reads these; set for another machine's cores they would slow whoever uses it.
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)
    plan = Plan(args.rounds, args.turn, args.rest, args.realtime)
    names = [name for word in args.workloads or ("models", "kernels") for name in workloads.SETS.get(word, (word,))]
    unknown = [name for name in names if name not in workloads.WORKLOADS]
    unknown += [name for name in args.peers if name not in peers.PEERS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; see --list; peers are {', '.join(peers.PEERS)}", file=sys.stderr)
        return 2
    facts = cpu_facts()
    print(f"{facts['cpu']}, {facts['cores']} cores, {facts['features']}")
    with TemporaryDirectory() as temporary:
        artifacts = Path(args.artifacts or temporary).resolve()
        artifacts.mkdir(parents=True, exist_ok=True)
        outcomes = _run_all(names, args.peers, args.threads, plan, artifacts)
    print("\n" + table(outcomes))
    if args.json:
        record = {"machine": facts, "plan": vars(args), "outcomes": [outcome.as_dict() for outcome in outcomes]}
        Path(args.json).write_text(json.dumps(record, indent=1, default=str))
    return 0


def _run_all(
    names: Sequence[str], peer_names: Sequence[str], threads: Sequence[int], plan: Plan, artifacts: Path
) -> list[Outcome]:
    import zoo

    outcomes = []
    for name in names:
        print(f"{name}", flush=True)
        row = workloads.WORKLOADS[name]
        try:
            for model in filter(None, (row.pt2, row.onnx)):
                workloads.zoo_model(model)
        except zoo.UnavailableError as reason:
            print(f"  skipped: {reason}")
            continue
        if "mlc" in peer_names:
            try:
                seconds = compile_workload(name, artifacts)
                print(
                    "  mlc: artifact was there" if seconds is None else f"  mlc: compiled in {seconds:.1f} s",
                    flush=True,
                )
            except RuntimeError as reason:
                print(f"  mlc: {reason}")
        for count in threads:
            outcomes.append(run_workload(name, peer_names, count, plan, artifacts, print))
            print(table(outcomes[-1:]).splitlines()[2], flush=True)
    return outcomes


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(prog="python -m bench", description="The same work on mlc and on its peers.")
    parser.add_argument(
        "workloads", nargs="*", help=f"names, or sets of {'|'.join(workloads.SETS)}; default: models kernels"
    )
    parser.add_argument("--peers", type=words, default=list(peers.DEFAULT), help=f"of {','.join(peers.PEERS)}")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="thread counts, such as 1,2")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each peer")
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of a turn")
    parser.add_argument("--rest", type=float, default=0.05, help="seconds between turns")
    parser.add_argument("--realtime", action="store_true", help="run peers as chrt -r 1")
    parser.add_argument("--artifacts", help="folder that keeps compiled models from run to run")
    parser.add_argument("--json", help="file for every number")
    parser.add_argument("--list", action="store_true", help="names of the workloads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
