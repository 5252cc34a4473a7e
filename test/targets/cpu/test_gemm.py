"""matmul kernels against numpy in f64: every plan form, layout, tail and machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from kernel_build import AVX2, NEON, SVE, aligned, build_host, run_arm
from mlc.dialects.types import DTYPES
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.memory import StridedBuffer, store_vector, sum_dtype
from mlc.targets.cpu.matmul import (
    MatmulPlan,
    MatmulSizes,
    PackedPanels,
    emit_matmul,
    matmul_grid,
    plan_matmul,
    row_pieces,
)
from mlc.targets.cpu.packing import pack_b


@dataclass(frozen=True)
class Case:
    """One product. `layout`: packed, rows ([K, N] read as it is) or columns ([N, K])."""

    m: int
    n: int
    k: int
    layout: str = "packed"
    dtype: str = "f32"
    batch: int = 1
    a_is_transposed: bool = False
    b_is_shared: bool = False
    is_dynamic: bool = False
    is_long: bool = False
    plan: MatmulPlan | None = None


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-9, 9, shape) if not DTYPES[dtype].is_float else rng.standard_normal(shape)
    return aligned(numbers.astype(DTYPES[dtype].numpy))


def _strides(shape: tuple[int, ...], is_transposed: bool, is_shared: bool = False) -> tuple[int, ...]:
    _, rows, columns = shape
    inner = (1, rows) if is_transposed else (columns, 1)
    return (0 if is_shared else rows * columns, *inner)


class Run:
    """A case's arrays and emitter."""

    def __init__(self, case: Case, isa: Isa) -> None:
        self.case, self.isa = case, isa
        count = 1 if case.b_is_shared else case.batch
        self.a = _random((case.batch, case.m, case.k), case.dtype, 1)
        self.b = _random((count, case.k, case.n), case.dtype, 2)
        self.total = sum_dtype(case.dtype)
        stored_a = np.ascontiguousarray(self.a.swapaxes(1, 2)) if case.a_is_transposed else self.a
        if case.layout == "packed":
            stored_b = pack_b(self.b, isa.panel_columns(self.total))
        else:
            stored_b = self.b.swapaxes(1, 2) if case.layout == "columns" else self.b
        # A frame of canaries after the result: a masked store that is one too wide shows.
        self.out = aligned(np.full(case.batch * case.m * case.n + 64, 77, DTYPES[self.total].numpy))
        sizes = [case.m, case.n, case.k] if case.is_dynamic else []
        self.args = [aligned(stored_a), aligned(np.ascontiguousarray(stored_b)), *sizes, self.out]
        known = MatmulSizes((case.batch,), case.m, case.n, case.k)
        unknown = MatmulSizes((case.batch,), None, None, None)
        planned_on = unknown if case.is_dynamic else known
        self.plan = case.plan or plan_matmul(isa, planned_on, case.dtype, 2, case.layout == "packed", case.is_long)
        self.tiles = int(np.prod(matmul_grid(known, self.plan)))

    def emit(self, slots, begin, end) -> None:
        case = self.case
        m, n, k = slots[2:5] if case.is_dynamic else (case.m, case.n, case.k)
        sizes = MatmulSizes((case.batch,), m, n, k)
        a = StridedBuffer(slots[0], case.dtype, 0, _strides(self.a.shape, case.a_is_transposed))
        if case.layout == "packed":
            panel_count = -(-case.n // self.isa.panel_columns(self.total))
            stride = 0 if case.b_is_shared else panel_count * case.k * self.isa.panel_columns(self.total)
            b = PackedPanels(slots[1], case.dtype, (stride,))
        else:
            b = StridedBuffer(
                slots[1], case.dtype, 0, _strides(self.b.shape, case.layout == "columns", case.b_is_shared)
            )
        out = StridedBuffer(slots[-1], self.total, 0, (case.m * case.n, case.n, 1))
        emit_matmul(
            self.isa, self.plan, sizes, a, b,
            lambda place, value, mask: store_vector(value, out.at(place), self.total, mask), begin, end,
        )  # fmt: skip

    def check(self) -> None:
        case = self.case
        wide = np.float64 if DTYPES[case.dtype].is_float else np.int64
        expected = self.a.astype(wide) @ self.b.astype(wide)
        found = self.out[:-64].reshape(expected.shape)
        assert (self.out[-64:] == 77).all()
        if not DTYPES[case.dtype].is_float:
            np.testing.assert_array_equal(found, expected)
            return
        # Each of k roundings is at most half an ulp of the partial sum, itself at most |a| |b|.
        bound = np.abs(self.a.astype(wide)) @ np.abs(self.b.astype(wide))
        epsilon = np.finfo(DTYPES[self.total].numpy).eps
        assert (np.abs(found - expected) <= bound * epsilon * (case.k**0.5 + 2)).all()


CASES = [
    Case(1, 1, 1),
    Case(1, 40, 33),
    Case(1, 16 * 9, 131),
    Case(1, 203, 700, is_long=True),
    Case(2, 70, 77, batch=2),
    Case(3, 32 * 7 + 5, 300),
    Case(5, 37, 1036),
    Case(6, 64, 96, is_long=True),
    Case(5, 16, 7),
    Case(7, 17, 64),
    Case(13, 50, 19, batch=3),
    Case(61, 33, 65, batch=2, b_is_shared=True),
    Case(50, 48, 100, a_is_transposed=True),
    Case(50, 70, 40, is_long=True),
    Case(100, 70, 300, plan=MatmulPlan(48, 48, 128, True)),
    Case(5, 70, 300, plan=MatmulPlan(24, 96, 128, True)),
    Case(1, 1, 1, layout="rows"),
    Case(29, 37, 45, layout="rows", batch=2),
    Case(29, 37, 45, layout="columns", batch=2),
    Case(100, 50, 700, layout="rows"),
    Case(100, 50, 700, layout="columns"),
    Case(11, 9, 21, dtype="f64"),
    Case(11, 9, 21, dtype="f64", layout="columns"),
    Case(11, 9, 21, dtype="f16"),
    Case(11, 9, 21, dtype="bf16", layout="columns"),
    Case(11, 19, 21, dtype="i32"),
    Case(11, 19, 21, dtype="i64", layout="rows"),
    Case(1, 17, 31, is_dynamic=True),
    Case(53, 49, 40, is_dynamic=True, layout="rows", batch=2),
    Case(59, 51, 600, is_dynamic=True, layout="columns"),
    Case(59, 51, 600, is_dynamic=True),
    Case(0, 5, 3),
    Case(3, 0, 5, layout="rows"),
    Case(3, 5, 0, layout="columns"),
    Case(3, 5, 0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_host(case: Case, tmp_path: Path) -> None:
    run = Run(case, AVX2)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


@pytest.mark.parametrize("isa", [SVE, NEON], ids=["sve", "neon"])
@pytest.mark.parametrize("case", [CASES[2], CASES[10], CASES[14], CASES[18], CASES[23], CASES[28]], ids=str)
def test_arm(case: Case, isa: Isa, tmp_path: Path) -> None:
    run = Run(case, isa)
    run_arm(isa, run.emit, run.args, run.tiles, tmp_path)
    run.check()


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 33, 8192),
        Case(13, 33, 1409),
        Case(13, 33, 1536, is_long=True),
        Case(13, 33, 1536, is_dynamic=True),
        Case(13, 33, 8191, layout="rows"),
    ],
    ids=str,
)
def test_long_sums_are_cut(case: Case, tmp_path: Path) -> None:
    """Of products that are all positive, one chain of 1409 additions is off by 14 epsilons, slices by 2 or 3."""
    run = Run(case, AVX2)
    np.abs(run.a, out=run.a)
    np.abs(run.b, out=run.b)
    stored_b = pack_b(run.b, AVX2.panel_columns("f32")) if case.layout == "packed" else run.b
    run.args[:2] = [aligned(run.a), aligned(stored_b)]
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()
    expected = run.a.astype(np.float64) @ run.b.astype(np.float64)
    error = np.abs(run.out[:-64].reshape(expected.shape) - expected) / expected
    assert error.max() <= 5 * np.finfo(np.float32).eps


def spilled(assembly: str, register: str) -> list[str]:
    """Lines that move such registers to or from the stack."""
    frames = ("[rsp", "[rbp") if re.search(r"mov\s+rbp, rsp", assembly) else ("[rsp",)
    return [line for line in assembly.splitlines() if register in line and any(frame in line for frame in frames)]


def test_avx512_tile_compiles(tmp_path: Path) -> None:
    """The 14x2 tile keeps its sums in registers: no vector is spilled inside the kernel (whose k is one slice)."""
    isa = Isa(vector_bits=512, register_count=32)
    run = Run(Case(56, 64, 128), isa)
    flags = ("-target", "x86_64-linux-gnu", "-march=x86-64-v4", "-mprefer-vector-width=512")
    text = build_host(run.emit, run.args, tmp_path, flags=flags).assembly
    assert text.count("vfmadd") >= 28
    assert not spilled(text, "zmm")


def test_avx2_tile_does_not_spill(tmp_path: Path) -> None:
    run = Run(replace(CASES[10], m=48, n=64, batch=1), AVX2)
    text = build_host(run.emit, run.args, tmp_path).assembly
    assert not spilled(text, "ymm")


def test_pack_b() -> None:
    array = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    packed = pack_b(array, 4)
    assert packed.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(packed[1, 0], array[1, :, :4])
    np.testing.assert_array_equal(packed[1, 1, :, 0], array[1, :, 4])
    assert not packed[:, 1, :, 1:].any()
    np.testing.assert_array_equal(pack_b(array.swapaxes(1, 2), 4, is_transposed=True), packed)


def test_row_pieces() -> None:
    assert row_pieces(197, 6) == [6] * 32 + [5]
    assert row_pieces(5, 6) == [5]
