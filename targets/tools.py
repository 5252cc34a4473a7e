"""Finds and runs external tools: clang and lld of the ziglang package. A failure carries command, exit code and
stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class ToolError(RuntimeError):
    """A tool failed; the message has the command, its exit code and what it printed."""


def ziglang_version() -> str:
    from importlib.metadata import version

    return version("ziglang")


def _zig() -> list[str]:
    import ziglang

    binary = Path(ziglang.__file__).parent / "zig"
    return [str(binary)] if binary.exists() else [sys.executable, "-m", "ziglang"]


def run_tool(arguments: Sequence[str]) -> None:
    """Runs zig's `arguments`, e.g. ["clang", ...]. Raises ToolError."""
    finish_tool(start_tool(arguments))


def start_tool(arguments: Sequence[str]) -> subprocess.Popen:
    """Starts a tool; `finish_tool` waits for it. Several may run at once."""
    return subprocess.Popen(
        [*_zig(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )


def finish_tool(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    if process.returncode:
        words = process.args if isinstance(process.args, list) else [process.args]
        command = " ".join(str(word) for word in words)
        raise ToolError(f"exit code {process.returncode} from: {command}\n{errors.decode(errors='replace')[-4000:]}")
