"""Winograd kernels against direct sums in f64: borders, odd sizes, blocks and groups that are cut, ranges of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernel_build import AVX2, NEON, SVE, aligned, build_host, run_arm
from mlc.dialects.winograd import Slot
from mlc.targets.cpu.conv import ConvPlan, pack_conv
from mlc.targets.cpu.conv_geometry import ConvSizes
from mlc.targets.cpu.conv_winograd import WinogradPlan, emit_winograd, winograd_grid
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.memory import StridedBuffer, store_vector
from mlc.targets.cpu.matmul import PackedPanels


@dataclass(frozen=True)
class Case:
    """One convolution of 3x3, channels last; `block` and `group` in register tiles, `panels` of a kernel tile."""

    input: tuple[int, int]
    channels: int
    outputs: int
    pads: tuple[int, int] = (1, 1)
    highs: tuple[int, int] = (1, 1)
    batch: int = 1
    block: int = 2
    group: int = 1
    panels: int = 1
    is_dynamic: bool = False


def reference(x: np.ndarray, w: np.ndarray, case: Case) -> np.ndarray:
    """x [N, H, W, C], w [O, C, 3, 3]: the sum over taps of shifted inputs, in f64."""
    pads = [(0, 0), *zip(case.pads, case.highs, strict=True), (0, 0)]
    padded = np.pad(x.astype(np.float64), pads)
    height, width = padded.shape[1] - 2, padded.shape[2] - 2
    taps = [(i, j) for i in range(3) for j in range(3)]
    return sum(padded[:, i : i + height, j : j + width] @ w[:, :, i, j].T.astype(np.float64) for i, j in taps)


class Run:
    """A case's arrays and emitter."""

    def __init__(self, case: Case, isa: Isa, is_positive: bool = False) -> None:
        self.case, self.isa = case, isa
        rng = np.random.default_rng(0)
        x = rng.standard_normal((case.batch, *case.input, case.channels)).astype(np.float32)
        w = rng.standard_normal((case.outputs, case.channels, 3, 3)).astype(np.float32)
        if is_positive:
            x, w = np.abs(x), np.abs(w)
        self.expected = reference(x, w, case)
        one = (1, 1)
        self.sizes = ConvSizes(
            case.batch, 1, case.channels, case.outputs, case.input, self.expected.shape[1:3], (3, 3), one, case.pads,
            one,
        )  # fmt: skip
        rows, panel = isa.tile[0], isa.panel_columns("f32")
        self.plan = WinogradPlan(case.block * rows, case.panels * panel, case.group * rows)
        self.tiles = int(np.prod(winograd_grid(self.sizes, self.plan)))
        slot = Slot(case.channels, self.plan.block, self.plan.group, panel)
        packed = aligned(pack_conv(isa, ConvPlan("taps", False, 0, 0), w, 1, "f32"))
        self.scratch = aligned(np.full(self.tiles * slot.elements, np.nan, np.float32))
        self.out = aligned(np.full(self.expected.size + 64, 77, np.float32))
        extents = [*case.input, *self.expected.shape[1:3]] if case.is_dynamic else []
        self.args = [aligned(x), packed, self.scratch, *map(int, extents), self.out]
        self.strides = tuple(s // 4 for s in x.strides)

    def emit(self, slots, begin, end) -> None:
        sizes = self.sizes
        if self.case.is_dynamic:
            sizes = ConvSizes(**{**vars(sizes), "input": tuple(slots[3:5]), "output": tuple(slots[5:7])})
        shape = self.expected.shape
        steps = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        out = StridedBuffer(slots[-1], "f32", 0, steps)
        emit_winograd(
            self.isa, self.plan, sizes, StridedBuffer(slots[0], "f32", 0, self.strides), PackedPanels(slots[1], "f32"),
            slots[2], lambda place, value, mask: store_vector(value, out.at(place), "f32", mask), begin, end,
        )  # fmt: skip

    def check(self) -> None:
        found = self.out[:-64].reshape(self.expected.shape)
        assert (self.out[-64:] == 77).all()
        terms = 9 * self.case.channels
        np.testing.assert_allclose(found, self.expected, rtol=0, atol=8 * terms * np.finfo(np.float32).eps)


CASES = [
    Case((9, 11), 32, 40),
    Case((8, 14), 32, 33, batch=2, group=2, block=4, panels=2),
    Case((12, 13), 40, 32, pads=(0, 0), highs=(0, 0), panels=2),
    Case((7, 7), 264, 64, pads=(2, 0), highs=(0, 2), block=3, group=2),
    Case((13, 10), 32, 48, is_dynamic=True, panels=2),
    Case((3, 2), 32, 16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_host(case: Case, tmp_path: Path) -> None:
    run = Run(case, AVX2)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


@pytest.mark.parametrize("isa", [SVE, NEON], ids=["sve", "neon"])
@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
def test_arm(case: Case, isa: Isa, tmp_path: Path) -> None:
    run = Run(case, isa)
    run_arm(isa, run.emit, run.args, run.tiles, tmp_path)
    run.check()


def test_error_is_at_most_four_times_that_of_slices(tmp_path: Path) -> None:
    """Sums of all positive products, where direct slices are off by about 3 epsilons of the result."""
    run = Run(Case((9, 11), 160, 32), AVX2, is_positive=True)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    error = np.abs(run.out[:-64].reshape(run.expected.shape) - run.expected) / run.expected
    assert error.max() <= 12 * np.finfo(np.float32).eps
