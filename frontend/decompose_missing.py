"""Ops that mlc lacks, taken apart by torch where it is installed.

Most of ATen is defined in terms of the rest of it. Only ops that cannot be imported are taken apart; others, such as
`linear` or `scaled_dot_product_attention`, stay whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlc.frontend.report import UnsupportedError

_ROUNDS = 4  # what an op is taken apart into may have to be taken apart again


def take_apart(program: Any, error: UnsupportedError) -> Any:
    """The torch ExportedProgram `program` (or the .pt2 of that path) with the ops that `error` reports taken apart;
    None where torch is not installed, or cannot."""
    if not _is_torch_here():
        return None
    import torch

    if isinstance(program, str | Path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(program)
    table = _decompositions(finding.op for finding in error.findings)
    if not table:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions(table)
    except Exception:  # whatever torch says of its own decomposition: the report of the op itself says more
        return None


def rounds() -> range:
    """How often to try."""
    return range(_ROUNDS)


def _is_torch_here() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _decompositions(targets: Iterable[str]) -> dict[Any, Any]:
    import torch

    composite = torch.export.default_decompositions()
    registered = torch._decomp.global_decomposition_table["post_autograd"]
    found: dict[Any, Any] = {}
    for target in targets:
        op = _op_called(target)
        if op is None:
            continue
        if op in registered:
            found[op] = registered[op]
        elif op in composite:
            found[op] = composite[op]
    return found


def _op_called(target: str) -> Any:
    """torch.ops' object for "aten.trapz.x"; None for what is no such name."""
    import torch

    parts = target.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        return None
    found: Any = torch.ops
    for part in parts:
        found = getattr(found, part, None)
        if found is None:
            return None
    return found
