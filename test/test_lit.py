"""Runs every lit test (IR in, IR or assembly out) as a test of its own: `pytest test/test_lit.py -k fuse`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.mlir")))
def test_lit(name: str) -> None:
    """Fails with lit's own report: the command, what it printed and the first line that does not match."""
    command = [sys.executable, "-c", "from lit.main import main; main()", "-v", str(FOLDER / name)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
