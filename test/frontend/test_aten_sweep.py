"""Operators of PyTorch's own test list against eager PyTorch (see aten_sweep.py).

The default run takes some that must agree, `pytest -m sweep` all, and prints the counts. What does not agree is listed
in aten_sweep_failing.txt, by operator and reason; the list can only shrink: an operator that agrees though it is listed
fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from aten_sweep import entries, expected_failures, report, sweep

PROCESSES = 2
EACH = 40  # of the default run: every so many operators


def test_some_operators() -> None:
    names = [name for name in entries() if name not in expected_failures()][::EACH]
    failed = [words for found in sweep(names, 1) for words in found.failed]
    assert not failed, "\n".join(failed)


def test_listed_operators_exist() -> None:
    assert set(expected_failures()) <= set(entries())
    assert all(expected_failures().values()), "a listed operator has no reason"


@pytest.mark.sweep
def test_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(report(list(sweep(list(entries()), PROCESSES))))
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert not [line for line in lines if line.startswith(" ")]
