"""Linear algebra of small matrices against eager PyTorch, by the reference and compiled."""

from __future__ import annotations

import mlc
import numpy as np
import pytest
from mlc.frontend.report import UnsupportedError
from torch_exports import Functions, assert_same, check_family, export

torch = pytest.importorskip("torch")


def _matrices(count: int, size: int) -> torch.Tensor:
    """Of rows that need pivoting: the largest elements are off the diagonal."""
    generator = torch.Generator().manual_seed(7)
    found = 0.4 * torch.randn(count, size, size, generator=generator)
    return found + 3 * torch.roll(torch.eye(size), 1, 0)


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


CASES = {
    "inv": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, a[..., :2] + 1),
    "solve_right": lambda a: torch.linalg.solve(a, a[..., :2, :] + 1, left=False),
    "solve_vector": lambda a: torch.linalg.solve(a, a[..., 0]),
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "cholesky": lambda a: torch.linalg.cholesky(_positive(a)),
    "cholesky_upper": lambda a: torch.linalg.cholesky(_positive(a), upper=True),
    "cholesky_solve": lambda a: torch.cholesky_solve(a[..., :2], torch.linalg.cholesky(_positive(a))),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(_positive(a).triu(), a, upper=True),
    "unitriangular": lambda a: torch.linalg.solve_triangular(a / 8, a, upper=False, unitriangular=True),
    "qr": torch.linalg.qr,
    "qr_tall": lambda a: torch.linalg.qr(a[..., :3], "complete"),
    "qr_wide": lambda a: torch.linalg.qr(a[..., :3, :]),
    "matrix_power": lambda a: torch.linalg.matrix_power(a / 4, 5),
    "negative_power": lambda a: torch.linalg.matrix_power(a, -2),
}


@pytest.mark.parametrize("size", [1, 4, 7])
def test_by_the_reference(size: int) -> None:
    check_family({name: case for name, case in CASES.items() if size > 3 or "qr_" not in name}, [_matrices(3, size)])


def test_compiled() -> None:
    matrices = _matrices(3, 5)
    with torch.no_grad():
        wanted = [item for case in CASES.values() for item in Functions([case])(matrices)]
    with mlc.load(mlc.compile(export(Functions(list(CASES.values())), [matrices])).to_bytes()) as model:
        found = model.run_flat([matrices.numpy()])
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert_same(np.asarray(mine), theirs, rtol=1e-4, atol=1e-4, name=f"result {number}")


def test_large_matrices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a matrix of 40 x 40: sizes must be known, and at most 32"):
        mlc.compile(export(Functions([torch.linalg.inv]), [torch.eye(40)]))
