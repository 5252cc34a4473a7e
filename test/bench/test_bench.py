"""The benchmark harness: its arithmetic, its worker protocol and its probe."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import machine, worker
from bench.report import is_valid, table
from bench.runner import Outcome, Timing


def outcome(mlc_ns: int, other_ns: int, other_error: float = 0.0) -> Outcome:
    timings = [Timing("mlc", mlc_ns, error=0.0), Timing("other", other_ns, error=other_error)]
    return Outcome("model", 1, 2.0, 100.0, 10.0, 20.0, timings)


def test_table_gives_ratios_and_share_of_peak() -> None:
    text = table([outcome(40_000_000, 80_000_000)])
    assert "| model | 1 | 40.0 | 80.0 (2.00x) | 50% | 100 | 10.0 | 20.0 |" in text
    assert "other takes 2.00x the time of mlc (geometric mean of 1); mlc is faster in 1, slower in 0." in text


def test_where_mlc_is_behind_is_named() -> None:
    text = table([outcome(40_000_000, 20_000_000), outcome(40_000_000, 39_900_000)])
    assert "slower in 1: model/1." in text or "mlc is faster in 0" in text


def test_wrong_outputs_are_no_result() -> None:
    wrong = outcome(40_000_000, 10_000_000, other_error=0.5)
    assert not is_valid(wrong.timings[1])
    text = table([wrong])
    assert "wrong (5.0e-01)" in text and "geometric mean" not in text


def test_measure_runs_at_least_three_times() -> None:
    calls = []
    answer = worker.measure(lambda: calls.append(1), 0.0)
    assert answer["runs"] == worker.MIN_RUNS and len(calls) == answer["runs"] + 1 and answer["best_ns"] >= 0


def test_error_is_relative_to_the_largest_magnitude() -> None:
    wanted = [np.array([0.0, 4.0]), np.zeros(0)]
    assert worker.worst_error([np.array([0.0, 4.4]), np.zeros(0)], wanted) == pytest.approx(0.1)
    assert worker.worst_error([np.array([4.0]), np.zeros(0)], wanted) == float("inf")


def test_probe_reads_plausible_limits(tmp_path: Path) -> None:
    limits = machine.measure_limits(tmp_path, 1, 0.02)
    if limits is None:
        pytest.skip("no C compiler for the probe")
    assert 1 < limits.gflops < 1000 and 0.5 < limits.gbytes < 1000
