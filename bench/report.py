"""Tables of outcomes: times, ratios to mlc, and how much of the machine's peak each peer reached."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.runner import Outcome, Timing

# Beside work of others on the same cores, smaller gaps than this mean nothing.
NOISE = 0.05
# What every peer's outputs are held to; a faster wrong answer is none.
ERROR_LIMIT = 1e-3
REDUCED_ERROR_LIMIT = 0.1  # of peers that compute in bfloat16, by their name


def is_valid(timing: Timing) -> bool:
    """Measured, and its outputs were right."""
    limit = REDUCED_ERROR_LIMIT if timing.peer.endswith("bf16") else ERROR_LIMIT
    return timing.best_ns is not None and timing.error is not None and timing.error <= limit


def table(outcomes: Sequence[Outcome], base: str = "mlc") -> str:
    """Markdown: a row a workload and thread count; each peer's milliseconds and, in brackets, its time over `base`'s.

    Where `base` was not measured the brackets are left out. The last columns are `base`'s share of the FMA peak read in
    the same run, the peak itself, and the memory read and copy rates.
    """
    peers = list(dict.fromkeys(timing.peer for outcome in outcomes for timing in outcome.timings))
    head = ["workload", "threads", *peers, f"{base} of FMA peak", "peak GFLOP/s", "read GB/s", "copy GB/s"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for outcome in outcomes:
        by_peer = {timing.peer: timing for timing in outcome.timings}
        base_ns = by_peer[base].best_ns if base in by_peer and is_valid(by_peer[base]) else None
        cells = [outcome.workload, str(outcome.threads)]
        cells += [_cell(by_peer.get(peer), None if peer == base else base_ns) for peer in peers]
        cells += [
            _share(outcome, base_ns),
            _number(outcome.peak_gflops),
            _number(outcome.read_gbytes),
            _number(outcome.copy_gbytes),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *_summary(outcomes, peers, base)]
    return "\n".join(lines)


def _cell(timing: Timing | None, base_ns: int | None) -> str:
    if timing is None or timing.best_ns is None:
        return "-"
    if not is_valid(timing):
        return f"wrong ({timing.error:.1e})"
    time_ms = f"{timing.best_ns / 1e6:.3f}" if timing.best_ns < 1e7 else f"{timing.best_ns / 1e6:.1f}"
    return f"{time_ms} ({timing.best_ns / base_ns:.2f}x)" if base_ns else time_ms


def _share(outcome: Outcome, base_ns: int | None) -> str:
    if base_ns is None or outcome.gflop is None or not outcome.peak_gflops:
        return "-"
    return f"{outcome.gflop / (base_ns * 1e-9) / outcome.peak_gflops:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _summary(outcomes: Sequence[Outcome], peers: Sequence[str], base: str) -> list[str]:
    """A line a peer: geometric mean of its time over `base`'s, and where either is ahead by more than noise."""
    lines = []
    for peer in peers:
        ratios = {}
        for outcome in outcomes:
            by_peer = {timing.peer: timing for timing in outcome.timings if is_valid(timing)}
            mine, other = by_peer.get(base), by_peer.get(peer)
            if peer != base and mine and other and mine.best_ns and other.best_ns:
                ratios[f"{outcome.workload}/{outcome.threads}"] = other.best_ns / mine.best_ns
        if not ratios:
            continue
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        behind = sorted(name for name, ratio in ratios.items() if ratio < 1 - NOISE)
        ahead = sum(ratio > 1 + NOISE for ratio in ratios.values())
        where = f": {', '.join(behind)}" if behind else ""
        lines.append(
            f"{peer} takes {mean:.2f}x the time of {base} (geometric mean of {len(ratios)}); "
            f"{base} is faster in {ahead}, slower in {len(behind)}{where}."
        )
    return lines
