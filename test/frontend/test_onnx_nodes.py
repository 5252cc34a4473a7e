"""The onnx wheel's own tests (see onnx_nodes.py): imported and run by the numpy reference, and compiled.

The default run takes every eighth node test by the reference and every fortieth compiled, and the other small tests by
the reference; `pytest -m sweep` takes all and prints the counts. What cannot pass is listed in onnx_nodes_failing.txt
by a pattern and a reason; the list can only shrink: a test that passes though it is listed fails the sweep.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mlc.dialects.reference import run_function
from onnx_nodes import KINDS, cases, failures, reason_to_fail, report, run_compiled

PROCESSES = 2
LEAST_PASSING = 1803


def expected_to_pass() -> list[str]:
    return [name for name in sorted(cases()) if not reason_to_fail(name)]


def test_every_eighth_node_test():
    assert not failures(expected_to_pass()[::8], run_function)


def test_every_fortieth_compiled():
    assert not failures(expected_to_pass()[::40], run_compiled)


def test_the_list_of_failures_only_shrinks():
    assert len(expected_to_pass()) >= LEAST_PASSING


@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_other_kinds(kind: str):
    assert not failures([name for name in cases(kind) if not reason_to_fail(name)], run_function, kind)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_all(kind: str, capsys: pytest.CaptureFixture):
    lines = list(report(list(cases(kind)), PROCESSES, with_compiled=True, kind=kind))
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert not [line for line in lines if line.startswith(" ")]
