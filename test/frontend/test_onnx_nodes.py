"""The onnx wheel's own node tests: each model is imported and run by the numpy reference, against the test's own data.

The default run takes every eighth; `pytest -m sweep test/frontend/test_onnx_nodes.py` takes all and prints the count.
What cannot pass is listed in onnx_nodes_failing.txt by a pattern and a reason; the list can only shrink: a test that
passes though it is listed fails the sweep.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mlc.dialects.reference import run_function
from mlc.dialects.verify import verify_module
from mlc.dialects.weights import store_of
from mlc.frontend.onnx import import_onnx
from mlc.frontend.report import UnsupportedError
from onnx.backend.test.loader import load_model_tests

# A rounding of the type, where the test's own tolerance is finer than the type.
COARSE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}


@cache
def cases() -> dict[str, Any]:
    with np.errstate(all="ignore"):
        return {case.name: case for case in load_model_tests(kind="node")}


@cache
def expected_failures() -> list[tuple[re.Pattern, str]]:
    lines = (Path(__file__).parent / "onnx_nodes_failing.txt").read_text().splitlines()
    split = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(re.compile(pattern), reason) for pattern, reason in split]


def reason_to_fail(name: str) -> str:
    return next((reason for pattern, reason in expected_failures() if pattern.fullmatch(name)), "")


def array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def imported(model: onnx.ModelProto, inputs: list[Any]) -> tuple[Any, list[Any]]:
    """The module and the inputs that are left: what must be known at compile time (shapes, axes) is fixed."""
    names = [info.name for info in model.graph.input]
    fixed: dict[str, Any] = {}
    while True:
        try:
            module = import_onnx(model, values=fixed)
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


def check(case: Any) -> None:
    for feeds, wanted in case.data_sets:
        module, left = imported(case.model, [array(x) for x in feeds])
        verify_module(module)
        results = run_function(module, [np.asarray(x) for x in left])
        store_of(module).release()
        for got, want in zip(results, map(array, wanted), strict=True):
            want = np.asarray(want)
            assert got.shape == want.shape and got.dtype == want.dtype
            if want.dtype.kind in "fV":
                rtol = max(case.rtol, COARSE.get(want.dtype.name, 0.0))
                got, want = got.astype(np.float64), want.astype(np.float64)
                np.testing.assert_allclose(got, want, rtol=rtol, atol=max(case.atol, 1e-5))
            else:
                np.testing.assert_array_equal(got, want)


def test_every_eighth_node_test():
    chosen = [name for name in sorted(cases())[::8] if not reason_to_fail(name)]
    for name in chosen:
        try:
            check(cases()[name])
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.sweep
def test_all_node_tests(capsys: pytest.CaptureFixture):
    failed: dict[str, str] = {}
    for name, case in cases().items():
        try:
            check(case)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    with capsys.disabled():
        print(f"\nONNX node tests: {len(cases()) - len(failed)} of {len(cases())} pass")
    surprises = {name: text for name, text in failed.items() if not reason_to_fail(name)}
    assert not surprises
    passing = [name for name in cases() if reason_to_fail(name) and name not in failed]
    assert not passing, f"these pass now: take them off the list: {passing}"
