"""Attention kernels against a softmax in f64: masks, causality, groups, tails, layouts and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernel_build import AVX2, NEON, SVE, aligned, build_host, run_arm
from mlc.dialects.types import DTYPES
from mlc.targets.cpu.attention import emit_attention
from mlc.targets.cpu.attention_plan import (
    EVERYTHING,
    AttentionMask,
    AttentionSizes,
    Band,
    attention_grid,
    plan_attention,
)
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.memory import StridedBuffer, store_vector, sum_dtype
from mlc.targets.cpu.microkernel import UNROLL


@dataclass(frozen=True)
class Case:
    """One attention. `layout` bhqd, or bqhd: as a projection leaves it, heads inside."""

    queries: int
    keys: int
    depth: int = 16
    value_depth: int = 16
    heads: int = 2
    groups: int = 2
    batch: int = 2
    layout: str = "bqhd"
    mask: str = ""  # "", row and padding (the same for all queries), full, masked_rows, blocks
    mask_dtype: str = "f32"
    band: Band = EVERYTHING
    is_dynamic: bool = False
    dtype: str = "f32"


CAUSAL = Band(after=0)


def visible(queries: int, keys: int, band: Band) -> np.ndarray:
    """[queries, keys] of bool."""
    ahead = np.arange(keys) - np.arange(queries)[:, None]
    low = -np.inf if band.before is None else -band.before
    return (ahead >= low) & (ahead <= (np.inf if band.after is None else band.after))


def reference(q, k, v, mask, scale: float, band: Band) -> np.ndarray:
    """In f64; a row without a visible key gives 0."""
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    scores = q @ k.swapaxes(-1, -2) * scale
    scores = np.where(visible(*scores.shape[-2:], band), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    peak = scores.max(-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = powers.sum(-1, keepdims=True)
    return powers @ v / np.where(total == 0, 1, total)


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Of [batch, heads, positions, depth]."""
    _, heads, positions, depth = shape
    if layout == "bqhd":
        return (heads * positions * depth, depth, heads * depth, 1)
    return (heads * positions * depth, positions * depth, depth, 1)


def _stored(array: np.ndarray, layout: str) -> np.ndarray:
    return aligned(np.ascontiguousarray(array.swapaxes(1, 2) if layout == "bqhd" else array))


class Run:
    """A case's arrays and emitter."""

    def __init__(self, case: Case, isa: Isa) -> None:
        self.case, self.isa = case, isa
        rng = np.random.default_rng(0)
        numpy_type = DTYPES[case.dtype].numpy

        def make(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(numpy_type)

        self.q = make(case.batch, case.heads, case.queries, case.depth)
        self.k = make(case.batch, case.groups, case.keys, case.depth)
        self.v = make(case.batch, case.groups, case.keys, case.value_depth)
        self.mask = self._mask(rng)
        self.total = sum_dtype(case.dtype)
        self.scale = case.depth**-0.5
        self.sizes = AttentionSizes(
            (case.batch,), case.heads, case.groups, case.queries, case.keys, case.depth, case.value_depth
        )
        planned = self.sizes
        if case.is_dynamic:
            planned = AttentionSizes(**{**vars(planned), "queries": None, "keys": None})
        by_query = case.mask_dtype if case.mask in ("full", "masked_rows", "blocks") else None
        self.plan = plan_attention(isa, planned, case.dtype, by_query, case.band)
        self.shape = (case.batch, case.heads, case.queries, case.value_depth)
        self.out = aligned(np.full(int(np.prod(self.shape)) + 64, 77, DTYPES[self.total].numpy))
        masks = [] if self.mask is None else [aligned(self.mask)]
        extents = [case.queries, case.keys] if case.is_dynamic else []
        stored = [_stored(t, case.layout) for t in (self.q, self.k, self.v)]
        self.args = [*stored, *masks, *extents, self.out]
        self.tiles = int(np.prod(attention_grid(self.sizes, self.plan)))

    def _mask(self, rng: np.random.Generator) -> np.ndarray | None:
        case = self.case
        if not case.mask:
            return None
        rows = 1 if case.mask in ("row", "padding") else case.queries
        mask = rng.random((case.batch, 1, rows, case.keys)) < 0.7
        if case.mask == "blocks":
            mask[:] = np.arange(rows)[:, None] // 60 == np.arange(case.keys) // 140
        if case.mask == "padding":
            mask[:] = np.arange(case.keys) < np.array([250, case.keys])[:, None, None, None]
        if case.mask == "masked_rows":
            mask[:, :, ::3] = False
        if case.mask_dtype == "bool":
            return mask
        noise = rng.standard_normal(mask.shape).astype(DTYPES[case.mask_dtype].numpy)
        if case.mask in ("blocks", "padding"):
            noise[:] = 0
        return np.where(mask, noise, -np.inf).astype(noise.dtype)

    def emit(self, slots, begin, end) -> None:
        case = self.case
        buffers = [
            StridedBuffer(slots[i], case.dtype, 0, _strides(t.shape, case.layout))
            for i, t in enumerate((self.q, self.k, self.v))
        ]
        mask = None
        if self.mask is not None:
            rows = self.mask.shape[2]
            strides = (rows * case.keys, 0, case.keys if rows > 1 else 0, 1)
            mask = AttentionMask(StridedBuffer(slots[3], case.mask_dtype, 0, strides))
        sizes = self.sizes
        if case.is_dynamic:
            sizes = AttentionSizes(**{**vars(sizes), "queries": slots[-3], "keys": slots[-2]})
        out = StridedBuffer(slots[-1], self.total, 0, _strides(self.shape, case.layout))
        emit_attention(
            self.isa, self.plan, sizes, *buffers, self.scale,
            lambda place, value, m: store_vector(value, out.at(place), self.total, m), begin, end,
            mask=mask, band=case.band,
        )  # fmt: skip

    def check(self) -> None:
        case = self.case
        expected = reference(self.q, self.k, self.v, self.mask, self.scale, case.band)
        batch, heads, queries, depth = self.shape
        found = self.out[:-64]
        if case.layout == "bqhd":
            found = found.reshape(batch, queries, heads, depth).swapaxes(1, 2)
        else:
            found = found.reshape(self.shape)
        assert (self.out[-64:] == 77).all()
        epsilon = np.finfo(found.dtype).eps
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=40 * epsilon * np.abs(self.v.astype(float)).max(initial=1)
        )


CASES = [
    Case(1, 1),
    Case(0, 5),
    Case(5, 0),
    Case(7, 33),
    Case(50, 197, depth=64, value_depth=64, layout="bhqd"),
    Case(61, 130, depth=20, value_depth=40),
    Case(100, 300, depth=128, value_depth=128, batch=1),
    Case(60, 70, heads=6, groups=2),
    Case(130, 130, band=CAUSAL),
    Case(70, 150, band=CAUSAL),
    Case(150, 70, band=CAUSAL, layout="bhqd"),
    Case(50, 140, mask="row"),
    Case(50, 140, mask="row", mask_dtype="bool"),
    Case(50, 140, mask="full"),
    Case(50, 141, mask="masked_rows"),
    Case(50, 141, mask="masked_rows", mask_dtype="bool"),
    Case(50, 140, mask="full", mask_dtype="f16", band=CAUSAL),
    Case(1, 300, depth=64, value_depth=64, is_dynamic=True),
    Case(1, 300, heads=6, groups=2),
    Case(1, 300, heads=6, groups=2, mask="row", mask_dtype="bool"),
    Case(1, 300, heads=6, groups=2, band=CAUSAL),
    Case(77, 133, depth=24, value_depth=9, is_dynamic=True, mask="row"),
    Case(77, 133, is_dynamic=True, band=CAUSAL),
    Case(300, 300, band=Band(19, 0)),
    Case(100, 400, band=Band(None, 150)),
    Case(300, 150, band=Band(7, 12)),  # the last queries see nothing
    Case(200, 300, band=Band(100, -3), is_dynamic=True),
    Case(200, 300, band=Band(30, 5), mask="masked_rows", mask_dtype="bool"),
    Case(200, 600, mask="blocks", mask_dtype="bool"),
    Case(200, 600, mask="blocks"),
    Case(100, 600, mask="padding", mask_dtype="bool"),
    Case(100, 600, mask="padding", heads=6, is_dynamic=True),
    Case(1, 600, heads=6, mask="padding", mask_dtype="bool"),
    Case(30, 50, dtype="f64", mask="full", mask_dtype="f64"),
    Case(30, 50, dtype="f16"),
    Case(30, 50, dtype="bf16", value_depth=24),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_host(case: Case, tmp_path: Path) -> None:
    run = Run(case, AVX2)
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


@pytest.mark.parametrize("isa", [SVE, NEON], ids=["sve", "neon"])
@pytest.mark.parametrize("case", [CASES[5], CASES[8], CASES[15], CASES[21]], ids=str)
def test_arm(case: Case, isa: Isa, tmp_path: Path) -> None:
    run = Run(case, isa)
    run_arm(isa, run.emit, run.args, run.tiles, tmp_path)
    run.check()


def innermost_loops(assembly: str) -> list[list[str]]:
    """The instructions of each loop that holds no other jump."""
    lines = [line.strip() for line in assembly.splitlines() if re.match(r"\s*[0-9a-f]+:\s", line)]
    places = {int(line.split(":")[0], 16): number for number, line in enumerate(lines)}
    words = [line.split(":", 1)[1].strip() for line in lines]
    loops = []
    for number, word in enumerate(words):
        jump = re.match(r"j\w+\s+0x([0-9a-f]+)", word)
        start = places.get(int(jump[1], 16), number + 1) if jump else number + 1
        body = words[start:number]
        if body and not any(re.match(r"j\w+\s", w) for w in body):
            loops.append(body)
    return loops


@pytest.mark.parametrize("layout", ["bhqd", "bqhd"])
def test_hot_loops_keep_their_registers(layout: str, tmp_path: Path) -> None:
    """Products: twelve multiply-adds for eight loads a step. Powers: two registers at once. Nothing is spilt."""
    run = Run(Case(96, 240, depth=64, value_depth=64, layout=layout), AVX2)
    loops = innermost_loops(build_host(run.emit, run.args, tmp_path).assembly)
    products = [
        loop
        for loop in loops
        if sum("vfmadd" in w for w in loop) == 12 * UNROLL and not any("vpslld" in w for w in loop)
    ]
    assert len(products) >= 2
    for loop in products:
        assert sum("ptr [" in w and "prefetch" not in w for w in loop) == 8 * UNROLL
        assert len(loop) <= 24 * UNROLL
    powers = [loop for loop in loops if any("vpslld" in w for w in loop)]
    assert powers
    # One constant may be read again each turn: that takes none of the pipes that multiply.
    assert min(len(loop) for loop in powers) <= 2 * 18 + 1
    fixed = r"ymmword ptr \[rsp( [+-] 0x[0-9a-f]+)?\]"
    assert not [w for loop in products for w in loop if re.search(fixed, w)]
    assert not [w for loop in powers for w in loop if re.search(r"vmov\w+\s+" + fixed, w)]


def test_a_band_computes_the_blocks_that_it_needs(tmp_path: Path) -> None:
    """Keys outside the band are never read: they are NaN."""
    run = Run(Case(64, 400, batch=1, heads=1, groups=1, band=Band(10, 0)), AVX2)
    for array in run.args[1:3]:
        array[:, 96:] = np.nan
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


def test_blocks_that_a_mask_hides_are_not_read(tmp_path: Path) -> None:
    run = Run(Case(48, 600, batch=2, heads=1, groups=1, mask="padding", mask_dtype="bool"), AVX2)
    for array in run.args[1:3]:
        array[0, 400:] = np.nan
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    run.check()


def test_equal_blocks() -> None:
    """No sliver of a block at the end: 512 keys are four blocks of 132, 132, 132 and 116."""
    sizes = AttentionSizes((1,), 12, 12, 512, 512, 64, 64)
    plan = plan_attention(AVX2, sizes, "f32")
    assert (plan.tile_queries, plan.block_keys) == (48, 132)


def test_nan_stays_in_its_row(tmp_path: Path) -> None:
    run = Run(Case(20, 50, batch=1, heads=1, groups=1), AVX2)
    run.args[0][0, 3] = np.nan
    build_host(run.emit, run.args, tmp_path).bind(run.args, run.tiles)()
    found = run.out[:-64].reshape(20, 16)
    assert np.isnan(found[3]).all()
    assert not np.isnan(np.delete(found, 3, axis=0)).any()


def test_heads_that_do_not_fit_the_stack_are_refused() -> None:
    sizes = AttentionSizes((1,), 1, 1, 100, 100, 2000, 2000)
    with pytest.raises(ValueError, match="attention with a head of 2000 and 2000 does not fit the stack"):
        plan_attention(AVX2, sizes, "f32")
