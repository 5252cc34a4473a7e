"""ATen rows: systems of equations, determinants and factorisations of small matrices, batched.

Steps of elimination are spelt out one after another, so that sizes must be known and bounded; each step is a few ops
over all matrices of the batch.
"""

from __future__ import annotations

from typing import Any

from mlc.frontend.aten_matmul import matmul
from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.report import UnsupportedCaseError

ROWS_MAX = 32


def _sizes(x: Any, *, is_square: bool = True) -> tuple[int, int]:
    """Rows and columns. Raises UnsupportedCaseError for sizes that cannot be spelt out."""
    rows, columns = x.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int) or min(rows, columns) > ROWS_MAX:
        raise UnsupportedCaseError(f"a matrix of {rows} x {columns}: sizes must be known, and at most {ROWS_MAX}")
    if is_square and rows != columns:
        raise UnsupportedCaseError(f"a matrix of {rows} x {columns} is not square")
    return rows, columns


def _eye(b: AtenBuilder, size: int, dtype: str) -> Any:
    rows, columns = b.unsqueeze(b.iota(size, "i64"), 1), b.unsqueeze(b.iota(size, "i64"), 0)
    return b.cast(b.binary("eq", rows, columns), dtype)


def _part(b: AtenBuilder, x: Any, rows: tuple[int, int], columns: tuple[int, int] | None = None) -> Any:
    x = b.slice(x, -2, *rows)
    return x if columns is None else b.slice(x, -1, *columns)


def _product(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.op("matmul", x, y)


def _turned(b: AtenBuilder, x: Any) -> Any:
    return b.swap(x, -1, -2)


def _eliminated(b: AtenBuilder, x: Any, rows: int) -> tuple[Any, Any]:
    """`x` [..., rows, >= rows] with zeros below the diagonal, by Gauss with partial pivoting; and the sign of the
    permutation, [..., 1, 1]. Source: Golub and Van Loan 2013, algorithm 3.4.1."""
    width, dtype = x.shape[-1], x.dtype
    sign = b.full([*x.shape[:-2], 1, 1], 1, dtype)
    done: list[Any] = []
    for k in range(rows):
        size = b.op("abs", b.slice(x, -1, k, k + 1))
        best = b.op("argmax", size, axis=len(x.shape) - 2, keepdims=True)
        pivot = b.op("gather_elements", x, b.expand(best, [*x.shape[:-2], 1, width]), axis=len(x.shape) - 2)
        left = rows - k
        is_best = b.binary("eq", b.unsqueeze(b.iota(left, "i64"), 1), best)
        x = b.where(is_best, _part(b, x, (0, 1)), x, dtype)
        sign = b.where(b.binary("eq", best, 0, "i64"), sign, b.op("neg", sign), dtype)
        done.append(pivot)
        if left == 1:
            break
        head, rest = b.slice(pivot, -1, k, k + 1), _part(b, x, (1, left))
        is_zero = b.binary("eq", head, 0, dtype)
        factor = b.where(is_zero, 0, b.div(b.slice(rest, -1, k, k + 1), b.where(is_zero, 1, head, dtype), dtype), dtype)
        x = b.sub(rest, b.mul(factor, pivot, dtype), dtype)
    return b.concat(done, len(x.shape) - 2), sign


def _diagonal(b: AtenBuilder, x: Any, size: int) -> Any:
    """[..., size]"""
    masked = b.where(_eye(b, size, "bool"), x, 0, x.dtype)
    return b.reduce("sum", masked, -1)


def _substituted(b: AtenBuilder, a: Any, y: Any, is_upper: bool, has_ones: bool = False) -> Any:
    """x with a x = y for a triangular a."""
    size, dtype = a.shape[-1], y.dtype
    if size == 0:
        return y
    found: dict[int, Any] = {}
    for i in range(size - 1, -1, -1) if is_upper else range(size):
        known = list(range(i + 1, size)) if is_upper else list(range(i))
        rest = _part(b, y, (i, i + 1))
        if known:
            above = b.concat([found[j] for j in known], len(y.shape) - 2)
            rest = b.sub(rest, _product(b, _part(b, a, (i, i + 1), (known[0], known[-1] + 1)), above), dtype)
        found[i] = rest if has_ones else b.div(rest, _part(b, a, (i, i + 1), (i, i + 1)), dtype)
    return b.concat([found[i] for i in range(size)], len(y.shape) - 2)


def _solved(b: AtenBuilder, a: Any, y: Any) -> Any:
    """x with a x = y, [..., n, m]."""
    size, _ = _sizes(a)
    batch = _broadcast_batch(a, y)
    if size == 0:
        return b.expand(y, [*batch, *y.shape[-2:]])
    both = b.concat([b.expand(a, [*batch, *a.shape[-2:]]), b.expand(y, [*batch, *y.shape[-2:]])], len(batch) + 1)
    both, _ = _eliminated(b, both, size)
    return _substituted(b, b.slice(both, -1, 0, size), b.slice(both, -1, size, None), True)


def _broadcast_batch(a: Any, y: Any) -> list[Any]:
    first, second = list(a.shape[:-2]), list(y.shape[:-2])
    rank = max(len(first), len(second))
    first, second = [1] * (rank - len(first)) + first, [1] * (rank - len(second)) + second
    return [q if p == 1 else p for p, q in zip(first, second, strict=True)]


def _fine(b: AtenBuilder, a: Any) -> Any:
    """torch's `info`: no factorisation failed, which nobody checks at run time."""
    return b.full(list(a.shape[:-2]), 0, "i32")


@row("aten.linalg_inv", "aten.inverse")
def inverse(b: AtenBuilder, A: Any) -> Any:
    size, _ = _sizes(A)
    return _solved(b, A, b.expand(_eye(b, size, A.dtype), list(A.shape)))


@row("aten.linalg_inv_ex")
def inverse_ex(b: AtenBuilder, A: Any, check_errors: bool = False) -> Any:
    return inverse(b, A), _fine(b, A)


@row("aten.linalg_solve")
def solve(b: AtenBuilder, A: Any, B: Any, left: bool = True) -> Any:
    """A right side of one dimension less than A is a vector, or a batch of them. Source: torch.linalg.solve."""
    is_vector = len(B.shape) == 1 or (len(A.shape) - 1 == len(B.shape) and B.shape == A.shape[:-1])
    y = b.unsqueeze(B, -1) if is_vector else B
    found = _solved(b, A, y) if left else _turned(b, _solved(b, _turned(b, A), _turned(b, y)))
    return b.squeeze(found, -1) if is_vector else found


@row("aten.linalg_solve_ex")
def solve_ex(b: AtenBuilder, A: Any, B: Any, left: bool = True, check_errors: bool = False) -> Any:
    return solve(b, A, B, left), _fine(b, A)


@row("aten._linalg_solve_ex")
def solve_with_factors(
    b: AtenBuilder, A: Any, B: Any, left: bool = True, check_errors: bool = False
) -> Any:  # fmt: skip
    return solve(b, A, B, left), None, None, _fine(b, A)


@row("aten.linalg_det", "aten.det")
def determinant(b: AtenBuilder, A: Any) -> Any:
    size, _ = _sizes(A)
    if size == 0:
        return b.full(list(A.shape[:-2]), 1, A.dtype)
    upper, sign = _eliminated(b, A, size)
    return b.mul(b.reduce("prod", _diagonal(b, upper, size), -1), b.squeeze(sign, -1, -2), A.dtype)


@row("aten._linalg_det")
def determinant_with_factors(b: AtenBuilder, A: Any) -> Any:
    return determinant(b, A), None, None


@row("aten.linalg_slogdet", "aten.slogdet")
def signed_log_determinant(b: AtenBuilder, A: Any) -> Any:
    size, _ = _sizes(A)
    if size == 0:
        return b.full(list(A.shape[:-2]), 1, A.dtype), b.full(list(A.shape[:-2]), 0, A.dtype)
    upper, sign = _eliminated(b, A, size)
    diagonal = _diagonal(b, upper, size)
    signs = b.mul(b.reduce("prod", b.op("sign", diagonal), -1), b.squeeze(sign, -1, -2), A.dtype)
    return signs, b.reduce("sum", b.op("log", b.op("abs", diagonal)), -1)


@row("aten._linalg_slogdet")
def signed_log_determinant_with_factors(b: AtenBuilder, A: Any) -> Any:
    return *signed_log_determinant(b, A), None, None


@row("aten.logdet")
def log_determinant(b: AtenBuilder, A: Any) -> Any:
    return b.op("log", determinant(b, A))


@row("aten.cholesky", "aten.linalg_cholesky")
def cholesky(b: AtenBuilder, A: Any, upper: bool = False) -> Any:
    """The lower factor, column by column, from the lower triangle; `upper`: of the transposed matrix, transposed.

    Source: Golub and Van Loan 2013, algorithm 4.2.2.
    """
    size, _ = _sizes(A)
    rest, columns = _turned(b, A) if upper else A, []
    for k in range(size):
        left = size - k
        column = b.div(b.slice(rest, -1, 0, 1), b.op("sqrt", _part(b, rest, (0, 1), (0, 1))), A.dtype)
        low = [0] * len(A.shape)
        low[-2] = k
        columns.append(b.op("pad", column, low=low, high=[0] * len(A.shape)) if k else column)
        if left > 1:
            below = _part(b, column, (1, left))
            rest = b.sub(_part(b, rest, (1, left), (1, left)), b.mul(below, _turned(b, below), A.dtype), A.dtype)
    factor = b.concat(columns, len(A.shape) - 1) if columns else A
    return _turned(b, factor) if upper else factor


@row("aten.linalg_cholesky_ex")
def cholesky_ex(b: AtenBuilder, A: Any, upper: bool = False, check_errors: bool = False) -> Any:
    return cholesky(b, A, upper), _fine(b, A)


@row("aten.linalg_solve_triangular")
def solve_triangular(
    b: AtenBuilder, A: Any, B: Any, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Any:  # fmt: skip
    if not left:
        return _turned(b, solve_triangular(b, _turned(b, A), _turned(b, B), not upper, True, unitriangular))
    size, _ = _sizes(A)
    batch = _broadcast_batch(A, B)
    a, y = b.expand(A, [*batch, size, size]), b.expand(B, [*batch, *B.shape[-2:]])
    return _substituted(b, a, y, upper, unitriangular)


@row("aten.triangular_solve")
def triangular_solve(
    b: AtenBuilder, B: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:  # fmt: skip
    a = _turned(b, A) if transpose else A
    found = solve_triangular(b, a, B, upper != transpose, True, unitriangular)
    return found, b.expand(A, [*found.shape[:-2], *A.shape[-2:]])


@row("aten.cholesky_solve")
def cholesky_solve(b: AtenBuilder, B: Any, L: Any, upper: bool = False) -> Any:
    lower = _turned(b, L) if upper else L
    half = solve_triangular(b, lower, B, False)
    return solve_triangular(b, _turned(b, lower), half, True)


@row("aten.cholesky_inverse")
def cholesky_inverse(b: AtenBuilder, L: Any, upper: bool = False) -> Any:
    size, _ = _sizes(L)
    return cholesky_solve(b, b.expand(_eye(b, size, L.dtype), list(L.shape)), L, upper)


@row("aten.linalg_qr")
def qr(b: AtenBuilder, A: Any, mode: str = "reduced") -> Any:
    """By Householder's reflections, with LAPACK's signs. Source: Golub and Van Loan 2013, algorithm 5.2.1."""
    rows, columns = _sizes(A, is_square=False)
    if rows > ROWS_MAX * 4:
        raise UnsupportedCaseError(f"a matrix of {rows} rows: at most {ROWS_MAX * 4}")
    batch, steps, dtype = list(A.shape[:-2]), min(rows, columns), A.dtype
    q, r = b.expand(_eye(b, rows, dtype), [*batch, rows, rows]), A
    for k in range(min(steps, rows - 1)):
        column = _part(b, r, (k, rows), (k, k + 1))
        head, tail = _part(b, column, (0, 1)), _part(b, column, (1, rows - k))
        rest = b.reduce("sum", b.mul(tail, tail, dtype), -2, True)
        norm = b.op("sqrt", b.add(b.mul(head, head, dtype), rest, dtype))
        is_done = b.binary("eq", rest, 0, dtype)
        beta = b.where(b.binary("lt", head, 0, dtype), norm, b.op("neg", norm), dtype)
        beta = b.where(is_done, head, beta, dtype)
        safe = b.where(is_done, 1, b.sub(head, beta, dtype), dtype)
        vector = b.concat([b.full([*batch, 1, 1], 1, dtype), b.div(tail, safe, dtype)], len(batch))
        vector = b.op("pad", vector, low=[0] * len(batch) + [k, 0], high=[0] * (len(batch) + 2)) if k else vector
        tau = b.where(is_done, 0, b.div(b.sub(beta, head, dtype), b.where(is_done, 1, beta, dtype), dtype), dtype)
        scaled = b.mul(vector, tau, dtype)
        r = b.sub(r, b.mul(scaled, _product(b, _turned(b, vector), r), dtype), dtype)
        q = b.sub(q, b.mul(_product(b, q, scaled), _turned(b, vector), dtype), dtype)
    below = b.binary("gt", b.unsqueeze(b.iota(rows, "i64"), 1), b.unsqueeze(b.iota(columns, "i64"), 0))
    r = b.where(below, 0, r, dtype)
    if mode != "complete":
        q, r = b.slice(q, -1, 0, steps), b.slice(r, -2, 0, steps)
    return (b.full([0], 0, dtype) if mode == "r" else q), r


@row("aten.qr")
def qr_some(b: AtenBuilder, A: Any, some: bool = True) -> Any:
    return qr(b, A, "reduced" if some else "complete")


@row("aten.linalg_matrix_power", "aten.matrix_power")
def matrix_power(b: AtenBuilder, A: Any, n: int) -> Any:
    """By squaring."""
    size = A.shape[-1]
    if n == 0:
        return b.expand(_eye(b, size, A.dtype), list(A.shape))
    square, count, found = inverse(b, A) if n < 0 else A, abs(n), None
    while True:
        if count % 2:
            found = square if found is None else matmul(b, found, square)
        count //= 2
        if not count:
            return found
        square = matmul(b, square, square)


@row("aten.trace")
def trace(b: AtenBuilder, x: Any) -> Any:
    rows, columns = b.unsqueeze(b.iota(x.shape[0], "i64"), 1), b.unsqueeze(b.iota(x.shape[1], "i64"), 0)
    return b.reduce("sum", b.where(b.binary("eq", rows, columns), b.cast(x, b.out_dtype), 0, b.out_dtype), None)
