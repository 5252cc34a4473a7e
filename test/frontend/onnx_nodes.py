"""The onnx wheel's own tests, imported and run: by the numpy reference, and compiled for this machine.

    python test/frontend/onnx_nodes.py [--kind KIND] [--reference] [--jobs N] [PATTERN]

prints how many of them pass both ways, and every one that fails though onnx_nodes_failing.txt does not list it. Kinds:
node (the default: one node a test), simple, pytorch-converted, pytorch-operator and light (whole networks).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import mlc
import numpy as np
import onnx
from mlc.dialects.reference import run_function
from mlc.dialects.verify import verify_module
from mlc.dialects.weights import store_of
from mlc.frontend.onnx import import_onnx
from mlc.frontend.onnx_symbols import LARGEST_SIZE
from mlc.frontend.report import UnsupportedError
from mlc.targets.machines import find_machine
from mlc.tools import driver
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests

DATA = Path(DATA_DIR)
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
# A rounding of the type, where the test's own tolerance is finer than the type.
COARSE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
CASES_A_PORTION = 8
INTEGERS_OF_BITS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}

Run = Callable[[Any, list[np.ndarray]], Sequence[Any]]


@cache
def cases(kind: str = "node") -> dict[str, Any]:
    """The tests of a kind by name, each with its model and data."""
    if kind == "light":
        return {case.name: case for case in map(_light, sorted((DATA / kind).glob("*.onnx")))}
    with np.errstate(all="ignore"):
        return {case.name: case if case.model else _of_folder(case) for case in load_model_tests(kind=kind)}


def _of_folder(case: TestCase) -> TestCase:
    folder = Path(str(case.model_dir))
    sets = [
        tuple([_tensor(file) for file in sorted(part.glob(f"{side}_*.pb"))] for side in ("input", "output"))
        for part in sorted(folder.glob("test_data_set_*"))
    ]
    return dataclasses.replace(case, model=onnx.load(folder / "model.onnx"), data_sets=sets)


def _light(file: Path) -> TestCase:
    """A network whose weights are all equal; its inputs run from 0 to 1, as in onnx's own runner."""
    model = onnx.load(file)
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = [
        [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
        for info in model.graph.input
        if info.name not in weights
    ]
    inputs = [np.linspace(0, 1, int(np.prod(s)), endpoint=False, dtype=np.float32).reshape(s) for s in shapes]
    output = _tensor(file.with_name(f"{file.stem}_output_0.pb"))
    return TestCase(file.stem, file.stem, None, None, model, [(inputs, [output])], "light", 1e-3, 1e-7)


def _tensor(file: Path) -> onnx.TensorProto:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(file.read_bytes())
    return tensor


@cache
def expected_failures() -> list[tuple[re.Pattern, str]]:
    lines = (Path(__file__).parent / "onnx_nodes_failing.txt").read_text().splitlines()
    split = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(re.compile(pattern), reason) for pattern, reason in split]


def reason_to_fail(name: str) -> str:
    """Why a test is not expected to pass; "" where it is."""
    return next((reason for pattern, reason in expected_failures() if pattern.fullmatch(name)), "")


def array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def imported(model: onnx.ModelProto, inputs: list[Any]) -> tuple[Any, list[Any]]:
    """The module and the inputs that are left: what must be known at compile time (shapes, axes) is fixed."""
    names = [info.name for info in model.graph.input]
    empty = {
        dim.dim_param: (0, LARGEST_SIZE)
        for info, x in zip(model.graph.input, inputs, strict=False)
        for dim, size in zip(info.type.tensor_type.shape.dim, np.shape(x), strict=False)
        if dim.dim_param and not size
    }
    fixed: dict[str, Any] = {}
    while True:
        try:
            module = import_onnx(model, values=fixed, dims=empty)
            return module, [x for name, x in zip(names, inputs, strict=False) if name not in fixed]
        except UnsupportedError as error:
            needed = re.findall(r"input '([^']*)' \([^)]*\) must be known", str(error))
            left = {n: np.asarray(x) for n, x in zip(names, inputs, strict=False) if n not in fixed}
            direct = {n: x for n, x in left.items() if n in needed}
            integer = {n: x for n, x in left.items() if x.dtype.kind in "iub" and needed}
            small = {n: x for n, x in left.items() if x.size <= 8 and needed}
            more = direct or integer or small
            if not more:
                raise
            fixed |= more


def run_compiled(module: Any, inputs: list[np.ndarray]) -> list[Any]:
    """The results of the module compiled for this machine; the module is rewritten on the way."""
    machine = find_machine("host")
    code = driver.compile_module(module, machine)
    blob = driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {}).to_bytes()
    result = mlc.load(blob)(*inputs)
    return list(result) if isinstance(result, list | tuple) else [result]


def check(case: Any, run: Run = run_function) -> None:
    """Raises where a test does not import, run or give what its data say."""
    for feeds, wanted in case.data_sets:
        module, left = imported(case.model, [array(x) for x in feeds])
        verify_module(module)
        results = run(module, [np.asarray(x) for x in left])
        store_of(module).release()
        for got, want in zip(results, map(array, wanted), strict=True):
            got, want = np.asarray(got), np.asarray(want)
            undefined = out_of_range(np.asarray(array(feeds[0])), want) if feeds else False
            if np.any(undefined) and got.shape == want.shape and got.dtype == want.dtype:
                got, want = (np.where(undefined, np.zeros_like(x), x) for x in (got, want))
            compare(got, want, case.rtol, max(case.atol, 1e-5))


def out_of_range(x: np.ndarray, want: np.ndarray) -> Any:
    """Elements of a cast from floats to integers of 4 or 2 bits that ONNX leaves undefined, as too large ("undefined
    if OOR", Cast-25): onnx's data have there what the installed ml_dtypes happens to give."""
    if want.dtype.name not in INTEGERS_OF_BITS or x.dtype.kind not in "fV" or x.shape != want.shape:
        return False
    low, high = INTEGERS_OF_BITS[want.dtype.name]
    whole = np.trunc(x.astype(np.float64))
    return ~((whole >= low) & (whole <= high))


def compare(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    rtol = max(rtol, COARSE.get(want.dtype.name, 0.0))
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)


def failures(names: Sequence[str], run: Run, kind: str = "node") -> dict[str, str]:
    """The tests that fail, and how."""
    failed = {}
    for name in names:
        try:
            check(cases(kind)[name], run)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def failures_in_processes(names: Sequence[str], run: Run, kind: str, jobs: int) -> dict[str, str]:
    """`failures` over `jobs` processes."""
    portions = [names[i : i + CASES_A_PORTION] for i in range(0, len(names), CASES_A_PORTION)]
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(failures, portions, [run] * len(portions), [kind] * len(portions)):
            failed |= found
    return failed


def report(names: Sequence[str], jobs: int, with_compiled: bool, kind: str = "node") -> Iterator[str]:
    """The lines that the command prints; those that tell of a surprise start with a space."""
    runs: dict[str, Run] = {"imported and run by the reference": run_function}
    if with_compiled:
        runs["compiled and run"] = run_compiled
    for words, run in runs.items():
        failed = failures_in_processes(names, run, kind, jobs)
        yield f"ONNX {kind} tests {words}: {len(names) - len(failed)} of {len(names)} pass"
        for name, text in failed.items():
            if not reason_to_fail(name):
                yield f"  {name}: {' '.join(text.split())[:300]}"
        passing = [name for name in names if reason_to_fail(name) and name not in failed]
        if passing:
            yield f"  pass though they are listed: {', '.join(passing)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="only tests whose name it is found in")
    parser.add_argument("--kind", choices=KINDS, default="node")
    parser.add_argument("--reference", action="store_true", help="do not compile")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    names = [name for name in cases(options.kind) if re.search(options.pattern, name)]
    lines = 0
    for line in report(names, options.jobs, not options.reference, options.kind):
        print(line, flush=True)
        lines += line.startswith(" ")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
