"""The documentation is true: generated pages are fresh, shell blocks run as they stand, and links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("frontend", "dialects", "passes", "targets", "tools")
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
GENERATED = {"map.md", "ops.md"}
LINES_MAX = 150
# Editable installs put a finder in front of the path; the copy is what these commands are about.
_WITHOUT_FINDERS = """import sys
sys.meta_path = [f for f in sys.meta_path if "redirect" not in type(f).__name__.lower()]
"""


def blocks(page: Path) -> list[str]:
    """The ```sh blocks of a page."""
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_generated_pages_are_fresh() -> None:
    command = [sys.executable, "-m", "mlc.tools.gendocs", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page: Path) -> None:
    text = page.read_text()
    if page.name not in GENERATED:
        assert len(text.splitlines()) <= LINES_MAX, f"{page.name} is longer than {LINES_MAX} lines"
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    dead = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not dead, f"{page.name} links to {dead}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in GENERATED], ids=lambda p: p.name)
def test_named_files_exist(page: Path) -> None:
    """`folder/file.ending` in code font is a file of the repository; names with a placeholder are not looked up."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = re.findall(r"`((?:\.?[a-z]\w*/)+[\w.-]+\.(?:py|c|h|md|mlir))`", text)
    examples = {"passes/drop_copies.py", "test/passes/drop-copies.mlir"}
    missing = [n for n in names if n not in examples and not (ROOT / n).exists()]
    assert not missing, f"{page.name} names {missing}"


@pytest.fixture
def workplace(tmp_path: Path) -> dict[str, str]:
    """A copy of the sources in `copy`, importable as mlc; the environment of a shell that works in it."""
    from mlc import native

    copy, package = tmp_path / "copy", tmp_path / "site" / "mlc"
    ignore = shutil.ignore_patterns("build", "__pycache__", ".*", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignore)
    package.mkdir(parents=True)
    for path in [*(copy / "runtime/mlc").iterdir(), *(copy / f for f in FOLDERS)]:
        (package / path.name).symlink_to(path)
    (package.parent / "sitecustomize.py").write_text(_WITHOUT_FINDERS)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("mlc", "mlc.tools.mlc"), ("mlc-opt", "mlc.tools.opt"), ("pytest", "pytest"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {f"-m {module}" if module else ""} "$@"\n')
        script.chmod(0o755)
    library = next(path for path in native._library_paths() if os.path.exists(path))
    return {
        **os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(package.parent),
        "MLC_LIBRARY": str(library), "HOME": str(tmp_path), "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are written for bash")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_commands_run(page: Path, workplace: dict[str, str], tmp_path: Path) -> None:
    """Every command of every block succeeds, in order; one after `!` fails."""
    for name in [n for n in workplace if n.startswith("PYTEST_XDIST") or n == "PYTEST_CURRENT_TEST"]:
        del workplace[name]
    for block in blocks(page):
        lines = re.sub(r"^! (.*)$", r"if \1; then echo 'this should have failed' >&2; exit 1; fi", block, flags=re.M)
        command, folder = ["bash", "-c", f"set -eo pipefail\n{lines}"], tmp_path / "copy"
        run = subprocess.run(command, cwd=folder, env=workplace, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{page.name}:\n{block}\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
