"""Every operator of PyTorch's own test list, exported, imported and compared with eager PyTorch.

    python test/frontend/aten_sweep.py [--jobs N] [--compiled] [PATTERN]

prints how many operators and cases agree, what is left out and why, and every case that fails though
aten_sweep_failing.txt does not list its operator. A case is one sample of torch's OpInfo list in one element type. It
is run by the numpy reference, or `--compiled` for this machine.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mlc
import numpy as np
import torch
import torch_exports
from mlc.dialects.reference import run_function
from mlc.frontend.record import ReadError
from mlc.frontend.report import UnsupportedError
from mlc.tools import driver
from torch.utils import _pytree as pytree

FAILING = Path(__file__).with_name("aten_sweep_failing.txt")
# Element types and how many samples of each: most of what an operator does differently shows in f32.
SAMPLES = {
    torch.float32: 10, torch.float64: 3, torch.float16: 2, torch.bfloat16: 2, torch.int64: 3, torch.int32: 2,
    torch.uint8: 1, torch.bool: 2,
}  # fmt: skip
# A few roundings of the type; operators that sum are given more by the size of their result (see torch_exports).
ROUNDINGS = {
    torch.float32: 2e-5, torch.float64: 1e-9, torch.float16: 4e-3, torch.bfloat16: 2e-2,
}  # fmt: skip
LARGEST = 1 << 18  # elements of a sample

LEFT_OUT = {
    "random": re.compile(r"rand|normal|dropout|bernoulli|multinomial|uniform|cauchy|geometric|exponential$|empty"),
    "sparse, nested, or for other devices": re.compile(r"sparse|nested|to_mkldnn|jiterator|cuda|mkl"),
    "tests of torch itself": re.compile(r"^_|item$|equal$|allclose|is_|data_ptr|stride$|set_|__r"),
}


@dataclass(frozen=True)
class Entry:
    """One operator of the list."""

    name: str
    info: Any = field(repr=False, compare=False)


@dataclass
class Found:
    """What became of an operator's cases: those that agree, those left out by reason, and failures in words."""

    name: str
    agree: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


@cache
def entries() -> dict[str, Entry]:
    """The list, by name and variant."""
    if "expecttest" not in sys.modules:  # torch's test code imports it for its base class alone
        stub = types.ModuleType("expecttest")
        stub.TestCase = object  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    named = [(f"{i.name}.{i.variant_test_name}" if i.variant_test_name else i.name, i) for i in op_db]
    return {name: Entry(name, info) for name, info in named}


class Applied(torch.nn.Module):
    """The operator on its tensors, all else of the sample being fixed."""

    def __init__(self, operator: Callable[..., Any], spec: Any, fixed: list[Any]) -> None:
        super().__init__()
        self.operator, self.spec, self.fixed = operator, spec, fixed

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.fixed]
        (first, args), kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.operator(first, *args, **kwargs)


_TENSOR = object()


def samples(entry: Entry, dtype: torch.dtype) -> list[tuple[Applied, list[torch.Tensor]]]:
    """The first samples of a type that have tensors, and not too large ones."""
    torch.manual_seed(17)
    found: list[tuple[Applied, list[torch.Tensor]]] = []
    # All of them: a generator left unfinished would be ended in the midst of an export, whose tracer sees it.
    for sample in list(entry.info.sample_inputs("cpu", dtype, requires_grad=False)):
        if len(found) == SAMPLES[dtype]:
            break
        leaves, spec = pytree.tree_flatten(((sample.input, sample.args), sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or sum(tensor.numel() for tensor in tensors) > LARGEST:
            continue
        fixed = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        found.append((Applied(entry.info.op, spec, fixed).eval(), tensors))
    return found


class LeftOutError(Exception):
    """A case that says nothing about the importer; the message is the reason that is counted."""


def check(module: Applied, tensors: list[torch.Tensor], is_compiled: bool) -> None:
    """Raises AssertionError where results differ, LeftOutError, and the importer's errors."""
    inputs = [tensor.detach().clone() for tensor in tensors]
    if any(not tensor.is_contiguous() or tensor.is_conj() for tensor in inputs):
        inputs = [tensor.resolve_conj().contiguous() for tensor in inputs]
    if any(tensor.is_complex() for tensor in inputs):
        raise LeftOutError("complex inputs")
    expected = eager(module, inputs)
    if not expected or any(not isinstance(leaf, torch.Tensor | bool | int | float) for leaf in expected):
        raise LeftOutError("no tensors as results")
    if any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in expected):
        raise LeftOutError("complex results")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, tuple(t.clone() for t in inputs), strict=False)
    except Exception as error:
        raise LeftOutError(f"torch.export refuses ({type(error).__name__})") from error
    found = results(program, inputs, is_compiled)
    assert len(found) == len(expected), f"{len(found)} results, torch has {len(expected)}"
    for position, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        limit = ROUNDINGS.get(torch.as_tensor(theirs).dtype, 0.0)
        limit = max([limit, *(ROUNDINGS.get(t.dtype, 0.0) for t in inputs)]) if limit else limit
        torch_exports.assert_same(mine, theirs, rtol=limit, atol=limit, name=f"result {position}")


_NARROW = (torch.float16, torch.bfloat16)


def eager(module: Applied, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """torch's results. Of narrow inputs those computed in f32 and rounded, where torch can: its own round each step."""
    with torch.no_grad():
        found = [leaf for leaf in pytree.tree_leaves(module(*[t.clone() for t in inputs])) if leaf is not None]
        if not any(t.dtype in _NARROW for t in inputs):
            return found
        try:
            wide = [t.float() if t.dtype in _NARROW else t.clone() for t in inputs]
            finer = [leaf for leaf in pytree.tree_leaves(module(*wide)) if leaf is not None]
        except (RuntimeError, TypeError):
            return found
    pairs = zip(found, finer, strict=True)
    return [b.to(a.dtype) if isinstance(a, torch.Tensor) and a.dtype in _NARROW else a for a, b in pairs]


def results(program: Any, inputs: Sequence[torch.Tensor], is_compiled: bool) -> list[np.ndarray]:
    """By the reference, or by compiled code."""
    if not is_compiled:
        module = driver.import_model(program).module
        return run_function(module, [numpy_of(x) for x in inputs])
    with mlc.load(mlc.compile(program).to_bytes(), threads=1) as model:
        return [np.asarray(array) for array in model.run_flat([numpy_of(x) for x in inputs])]


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def run_entry(name: str, is_compiled: bool = False) -> Found:
    """All cases of an operator."""
    entry, found = entries()[name], Found(name)
    reason = next((reason for reason, pattern in LEFT_OUT.items() if pattern.search(name)), None)
    if reason is not None:
        found.left_out[reason] += 1
        return found
    supported = entry.info.supported_dtypes("cpu")
    for dtype in SAMPLES:
        if dtype not in supported:
            continue
        try:
            drawn = samples(entry, dtype)
        except Exception as error:
            found.left_out[f"torch draws no samples ({type(error).__name__})"] += 1
            continue
        for number, (module, tensors) in enumerate(drawn):
            try:
                with np.errstate(all="ignore"):
                    check(module, tensors, is_compiled)
                found.agree += 1
            except LeftOutError as error:
                found.left_out[str(error)] += 1
            except (UnsupportedError, ReadError, AssertionError, ValueError) as error:
                found.failed.append(f"{name} {dtype} sample {number}: {_words(error)}")
            except Exception as error:
                found.failed.append(f"{name} {dtype} sample {number}: {type(error).__name__}: {_words(error)}")
    return found


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    picked = [line for line in lines if re.search(r"Mismatch|Max abs|torch has|aten\.|prims\.", line)] or lines
    return " | ".join(picked[:3])[:220]


@cache
def expected_failures() -> dict[str, str]:
    """Operators with cases that do not agree, by name, each with its reason."""
    rows = [line for line in FAILING.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (row.partition(":") for row in rows)}


def sweep(names: Sequence[str], jobs: int, is_compiled: bool = False) -> Iterator[Found]:
    """Operators as they are done."""
    if jobs <= 1:
        yield from (run_entry(name, is_compiled) for name in names)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = [pool.submit(run_entry, name, is_compiled) for name in names]
        yield from (future.result() for future in futures)


def report(found: Sequence[Found]) -> Iterator[str]:
    """The figures; then failures of operators that are not listed, and listed operators that have none, indented."""
    tried = [one for one in found if one.agree or one.failed]
    whole = [one for one in tried if not one.failed]
    cases, failed = sum(one.agree for one in tried), sum(len(one.failed) for one in tried)
    yield f"{len(tried)} operators, {len(whole)} agree in all cases; {cases} of {cases + failed} cases agree"
    for reason, count in sum((one.left_out for one in found), Counter()).most_common():
        yield f"left out: {count} times {reason}"
    known = expected_failures()
    for one in tried:
        if one.failed and one.name not in known:
            yield from (f"  {words}" for words in one.failed)
        if not one.failed and one.name in known:
            yield f"  {one.name} is listed in {FAILING.name}, but agrees"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    names = [name for name in entries() if re.search(arguments.pattern, name)]
    lines = list(report(list(sweep(names, arguments.jobs, arguments.compiled))))
    print(*lines, sep="\n")
    return any(line.startswith(" ") for line in lines)


if __name__ == "__main__":
    sys.exit(main())
