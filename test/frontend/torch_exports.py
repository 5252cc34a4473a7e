"""Exports small torch functions and runs them through the importer and the reference interpreter, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from mlc.dialects.reference import run_function
from mlc.frontend.aten import import_program
from mlc.frontend.exported_program import read_exported_program

torch = pytest.importorskip("torch")


class Functions(torch.nn.Module):
    """A module that applies each function to the same inputs and returns all results, flattened."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Any) -> list[Any]:
        return [item for function in self.functions for item in flat(function(*args))]


def flat(value: Any) -> list[Any]:
    """Tensors of a result, nested or not."""
    return [item for part in value for item in flat(part)] if isinstance(value, (list, tuple)) else [value]


def export(module: Any, inputs: Sequence[Any], dynamic: Any = None) -> Any:
    with torch.no_grad():
        return torch.export.export(module.eval(), tuple(inputs), dynamic_shapes=dynamic, strict=False)


def as_numpy(value: Any) -> np.ndarray:
    """bfloat16 has no numpy type of torch's, so it comes as f32."""
    value = torch.as_tensor(value)
    return value.float().numpy() if value.dtype == torch.bfloat16 else value.detach().numpy()


def imported_results(program: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
    """What the imported module gives, run by the reference interpreter."""
    return run_function(import_program(read_exported_program(program)).module, [as_numpy(x) for x in inputs])


def assert_same(found: np.ndarray, expected: Any, rtol: float = 1e-5, atol: float = 1e-6, name: str = "") -> None:
    """Equal dtype, shape and values; a few roundings apart for floats."""
    is_narrow = torch.as_tensor(expected).dtype == torch.bfloat16
    expected = as_numpy(expected)
    assert found.shape == expected.shape, f"{name}: {found.shape}, torch has {expected.shape}"
    if is_narrow:
        found = found.astype(np.float32)
        rtol = max(rtol, 2**-7)
    assert found.dtype == expected.dtype, f"{name}: {found.dtype}, torch has {expected.dtype}"
    if expected.dtype.kind == "f" and np.isfinite(expected).any():
        # Sums of terms of either sign lose their digits against the largest, not against themselves.
        atol = max(atol, 2e-6 * float(np.abs(expected[np.isfinite(expected)]).max()))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True, err_msg=name)


def check_family(cases: dict[str, Callable[..., Any]], inputs: Sequence[Any]) -> None:
    """Exports all cases as one program, and compares every result with eager torch. `inputs` are cloned for each."""
    with torch.no_grad():
        expected = [(name, flat(function(*(x.clone() for x in inputs)))) for name, function in cases.items()]
    module = Functions([lambda *args, f=f: f(*(x.clone() for x in args)) for f in cases.values()])
    found = iter(imported_results(export(module, inputs), inputs))
    for name, results in expected:
        for position, result in enumerate(results):
            assert_same(next(found), result, name=f"{name}[{position}]")
