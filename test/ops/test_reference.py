"""The ops' numpy bodies against torch: the same rows that compiled code is judged on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from case import Case, Example, examples, reference, violations
from mlc.dialects.build import load_ops
from mlc.dialects.types import DTYPES

torch = pytest.importorskip("torch")

_NO_SUCH_DTYPE = ("not implemented for", "not supported", "not currently supported", "ZeroDivision")


def all_cases() -> list[Case]:
    """The rows of every cases_*.py; the folder is the registry."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    return [case for name in names for case in importlib.import_module(name).CASES]


def to_torch(array: np.ndarray | None) -> Any:
    if array is None:
        return None
    array = np.array(array, order="C")  # not ascontiguousarray, which gives 0-D arrays a dimension
    if array.dtype == DTYPES["bf16"].numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["bf16"].numpy)
    return tensor.numpy()


def torch_result(sample: Example) -> list[np.ndarray] | None:
    """What torch gives, or None where it has no such op for the dtype."""
    case = sample.case
    names = load_ops()[case.op].torch
    if case.oracle is None and (not names or case.attrs):
        return None
    tensors = [to_torch(x) for x in sample.inputs]
    try:
        if case.oracle is not None:
            result = case.oracle(torch, *tensors, **case.attrs)
        else:
            _, name, overload = names[0].split(".")
            result = getattr(getattr(torch.ops.aten, name), overload)(*tensors)
    except (NotImplementedError, RuntimeError) as error:
        if any(words in str(error) for words in _NO_SUCH_DTYPE):
            return None
        raise
    return [to_numpy(r) for r in (result if isinstance(result, (tuple, list)) else (result,))]


def _name(case: Case) -> str:
    return f"{case.op}-{case.name}-{case.shapes}-{case.attrs}".replace(" ", "")


@pytest.mark.parametrize("case", all_cases(), ids=_name)
def test_body_equals_torch(case: Case) -> None:
    for sample in examples([case]):
        found = reference(sample)
        wanted = torch_result(sample)
        if wanted is None:
            continue
        assert len(found) == len(wanted)
        for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
            problem = violations(a, b, sample.tolerance)
            assert not problem, f"{sample.id} result {index}: {problem}"


def test_every_op_has_a_row() -> None:
    covered = {case.op for case in all_cases()}
    wanted = {name for name, d in load_ops().items() if d.kind != "source" and not d.is_internal}
    assert wanted <= covered
