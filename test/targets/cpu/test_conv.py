"""Convolution kernels against a plain sum over taps in f64: every form, layout, padding, group and rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernel_build import AVX2, NEON, SVE, aligned, build_host, run_arm
from mlc.dialects.types import DTYPES
from mlc.targets.cpu.conv import conv_grid, emit_conv, pack_conv, plan_conv
from mlc.targets.cpu.conv_depthwise import depthwise_vecs
from mlc.targets.cpu.conv_geometry import ConvSizes
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.memory import StridedBuffer, store_vector, sum_dtype
from mlc.targets.cpu.lower import isa_of
from mlc.targets.cpu.matmul import PackedPanels
from mlc.targets.machines import MACHINES


@dataclass(frozen=True)
class Case:
    """One convolution; `form` is the one that the plan must choose."""

    form: str
    input: tuple[int, ...]
    channels: int  # of all groups
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...] = ()
    pads_high: tuple[int, ...] | None = None
    dilations: tuple[int, ...] = ()
    groups: int = 1
    batch: int = 1
    dtype: str = "f32"
    is_channels_first: bool = False
    is_long: bool = False
    is_dynamic: bool = False

    @property
    def rank(self) -> int:
        return len(self.input)


def reference(x: np.ndarray, w: np.ndarray, case: Case, pads: tuple, highs: tuple, dilations: tuple) -> np.ndarray:
    """x [N, C, *S], w [O, C / groups, *K]: the sum over taps of shifted inputs."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads, highs, strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(case.kernel, dilations, strict=True)]
    sizes = [(s - span) // step + 1 for s, span, step in zip(padded.shape[2:], spans, case.strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_group, outputs = w.shape[1], w.shape[0] // case.groups
    for tap in itertools.product(*map(range, case.kernel)):
        window = tuple(
            slice(t * d, t * d + (n - 1) * step + 1, step)
            for t, d, n, step in zip(tap, dilations, sizes, case.strides, strict=True)
        )
        seen = padded[(slice(None), slice(None), *window)]
        for g in range(case.groups):
            part = np.einsum(
                "nc...,oc->no...",
                seen[:, g * per_group : (g + 1) * per_group],
                w[(slice(g * outputs, (g + 1) * outputs), slice(None), *tap)],
            )
            out[:, g * outputs : (g + 1) * outputs] += part
    return out


class Run:
    """A case's arrays and emitter."""

    def __init__(self, case: Case, isa: Isa, threads: int = 2) -> None:
        self.case, self.isa = case, isa
        self.pads = case.pads or (0,) * case.rank
        self.highs = case.pads_high or self.pads
        self.dilations = case.dilations or (1,) * case.rank
        self.total = sum_dtype(case.dtype)
        rng = np.random.default_rng(0)
        numpy_type = DTYPES[case.dtype].numpy
        x = rng.standard_normal((case.batch, case.channels, *case.input)).astype(numpy_type)
        shape = (case.outputs, case.channels // case.groups, *case.kernel)
        w = rng.standard_normal(shape).astype(numpy_type)
        self.x, self.w = x, w
        self.expected = reference(
            x.astype(np.float64), w.astype(np.float64), case, self.pads, self.highs, self.dilations
        )
        output = self.expected.shape[2:]
        self.sizes = ConvSizes(
            case.batch, case.groups, case.channels // case.groups, case.outputs // case.groups, case.input, output,
            case.kernel, case.strides, self.pads, self.dilations,
        )  # fmt: skip
        stored = x if case.is_channels_first else np.moveaxis(x, 1, -1)
        stored = aligned(np.ascontiguousarray(stored))
        steps = [s // stored.itemsize for s in stored.strides]
        self.strides = (steps[0], *steps[2:], steps[1]) if case.is_channels_first else tuple(steps)
        planned = self.sizes
        if case.is_dynamic:
            planned = ConvSizes(**{**vars(self.sizes), "input": (None,) * case.rank, "output": (None,) * case.rank})
        self.plan = plan_conv(isa, planned, case.dtype, self.strides, threads, case.is_long)
        self.packed = aligned(pack_conv(isa, self.plan, w, case.groups, case.dtype))
        count = self.expected.size
        self.out = aligned(np.full(count + 64, 77, DTYPES[self.total].numpy))
        extents = [*case.input, *output] if case.is_dynamic else []
        self.args = [stored, self.packed, *map(int, extents), self.out]
        self.tiles = int(np.prod(conv_grid(self.sizes, self.plan)))

    def emit(self, slots, begin, end) -> None:
        sizes, rank = self.sizes, self.case.rank
        if self.case.is_dynamic:
            extents = {"input": tuple(slots[2 : 2 + rank]), "output": tuple(slots[2 + rank : 2 + 2 * rank])}
            sizes = ConvSizes(**{**vars(sizes), **extents})
        x = StridedBuffer(slots[0], self.case.dtype, 0, self.strides)
        shape = (self.case.batch, *self.expected.shape[2:], self.case.outputs)
        steps = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        out = StridedBuffer(slots[-1], self.total, 0, steps)
        emit_conv(
            self.isa, self.plan, sizes, x, PackedPanels(slots[1], self.case.dtype),
            lambda place, value, mask: store_vector(value, out.at(place), self.total, mask), begin, end,
        )  # fmt: skip

    def check(self) -> None:
        assert self.plan.form == self.case.form
        expected = np.moveaxis(self.expected, 1, -1)
        found = self.out[:-64].reshape(expected.shape)
        assert (self.out[-64:] == 77).all()
        depth = self.w[0].size
        size = np.sqrt(depth) * 4  # of sums of products of normal numbers, with room
        np.testing.assert_allclose(found, expected, rtol=0, atol=size * depth**0.5 * np.finfo(found.dtype).eps * 2)


CASES = [
    Case("taps", (9, 11), 32, 24, (3, 3), (1, 1), (1, 1)),
    Case("taps", (9, 11), 32, 16, (3, 3), (2, 2), (1, 1), pads_high=(0, 2), batch=2),
    Case("taps", (7, 7), 600, 20, (3, 3), (1, 1), (1, 1)),
    Case("taps", (13, 7), 2048, 20, (1, 1), (1, 1)),
    Case("taps", (13, 8), 40, 35, (1, 1), (2, 2)),
    Case("taps", (14, 13), 16, 10, (3, 2), (1, 1), (2, 1), dilations=(2, 3), is_long=True),
    Case("taps", (32, 32), 3, 33, (16, 16), (16, 16), is_channels_first=True),
    Case("taps", (32, 32), 3, 33, (16, 16), (16, 16)),
    Case("taps", (10, 9), 64, 48, (3, 3), (1, 1), (1, 1), groups=2),
    Case("taps", (50,), 80, 40, (3,), (2,), (1,), is_dynamic=True),
    Case("taps", (5, 6, 7), 24, 18, (3, 3, 3), (1, 2, 1), (1, 1, 1)),
    Case("taps", (9, 11), 20, 24, (3, 3), (1, 1), (1, 1), dtype="f64"),
    Case("patches", (20, 23), 3, 20, (7, 7), (2, 2), (3, 3)),
    Case("patches", (20, 23), 3, 20, (7, 7), (2, 2), (3, 3), is_channels_first=True),
    Case("patches", (20, 23), 1, 20, (5, 5), (1, 1), (2, 2), is_long=True, batch=2),
    Case("patches", (20, 23), 4, 20, (3, 3), (1, 1), (2, 2), dilations=(2, 2), is_channels_first=True),
    Case("patches", (9, 8), 4, 20, (3, 3), (1, 1), (2, 2), dilations=(2, 3)),
    Case("patches", (9, 8), 16, 32, (3, 3), (1, 1), (1, 1), groups=4),
    Case("patches", (6, 9, 8), 3, 16, (3, 3, 3), (1, 2, 2), (1, 1, 1), is_channels_first=True),
    Case("patches", (200,), 1, 20, (10,), (5,), (4,), is_dynamic=True),
    Case("patches", (20, 23), 3, 20, (3, 3), (2, 2), (1, 1), dtype="f16"),
    Case("depthwise", (9, 11), 32, 32, (3, 3), (1, 1), (1, 1), groups=32),
    Case("depthwise", (9, 11), 27, 27, (5, 5), (2, 2), (2, 2), groups=27, batch=2),
    Case("depthwise", (9, 11), 40, 40, (3, 3), (1, 1), (1, 1), groups=10),
    Case("depthwise", (9, 11), 24, 24, (3, 3), (2, 2), (1, 1), groups=3),
    Case("depthwise", (4, 5, 6), 20, 20, (3, 3, 3), (1, 1, 1), (1, 1, 1), groups=20),
    Case("depthwise", (30,), 27, 27, (31,), (1,), (15,), groups=27, is_dynamic=True),
]


@pytest.mark.parametrize(
    "case",
    [
        Case("taps", (9, 11), 160, 24, (3, 3), (1, 1), (1, 1)),
        Case("taps", (13, 7), 1408, 20, (1, 1), (1, 1)),
        Case("patches", (40, 41), 3, 20, (21, 21), (2, 2), (3, 3)),
    ],
    ids=str,
)
def test_long_sums_are_cut(case: Case, tmp_path: Path) -> None:
    """Of products that are all positive, one chain of 1300 additions is off by 15 epsilons, slices by 3."""
    run = Run(case, AVX2)
    for operand in run.args[:2]:
        np.abs(operand, out=operand)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    x, w = np.abs(run.x).astype(np.float64), np.abs(run.w).astype(np.float64)
    expected = np.moveaxis(reference(x, w, case, run.pads, run.highs, run.dilations), 1, -1)
    assert run.plan.form == case.form
    error = np.abs(run.out[:-64].reshape(expected.shape) - expected) / expected
    assert error.max() <= 5 * np.finfo(np.float32).eps


@pytest.mark.parametrize("case", CASES, ids=str)
def test_host(case: Case, tmp_path: Path) -> None:
    run = Run(case, AVX2)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


@pytest.mark.parametrize("isa", [SVE, NEON], ids=["sve", "neon"])
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[12], CASES[22]], ids=str)
def test_arm(case: Case, isa: Isa, tmp_path: Path) -> None:
    run = Run(case, isa)
    run_arm(isa, run.emit, run.args, run.tiles, tmp_path)
    run.check()


def test_padded_channels_first_input_with_many_channels_is_refused() -> None:
    sizes = ConvSizes(1, 1, 512, 64, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1))
    with pytest.raises(ValueError, match="conv with 512 channels a group needs its input channels-last"):
        plan_conv(AVX2, sizes, "f32", (100352, 14, 1, 196), 1, False)


@pytest.mark.parametrize("name", sorted(name for name, machine in MACHINES.items() if machine.family == "cpu"))
def test_no_channel_is_in_two_depthwise_tiles(name: str) -> None:
    """One that is computed twice would be added twice to a residual whose memory the result took over."""
    isa = isa_of(MACHINES[name])
    for channels in (8, 24, 32, 96, 144, 160, 960):
        sizes = ConvSizes(1, channels, 1, 1, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1))
        plan = plan_conv(isa, sizes, "f32", (56 * 56 * channels, 56 * channels, channels, 1), 2, False)
        assert plan.form == "depthwise"
        step = depthwise_vecs(isa, sizes, "f32") * isa.lanes("f32")
        assert plan.tile_columns % step == 0 or plan.tile_columns >= channels
