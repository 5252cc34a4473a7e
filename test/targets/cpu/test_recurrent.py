"""Recurrent layers with packed weights against the ops' numpy bodies: cells, directions, tails, batches, machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlc
import numpy as np
import pytest
from kernel_build import AVX2, NEON, SVE, aligned, build_host, constant_tiles, run_arm
from mlc.dialects import dims
from mlc.dialects.op import OPS
from mlc.dialects.types import DTYPES
from mlc.frontend.graph import GraphBuilder
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.memory import StridedBuffer, offset_ptr
from mlc.targets.cpu.recurrent import GatePanels, emit_recurrent, make_layer, pack_gates
from mlc.targets.machines import find_machine
from mlc.tools import driver

CELLS: dict[str, tuple[int, int, dict[str, Any]]] = {  # gates, gates of a group, attributes
    "lstm": (4, 4, {}),
    "gru": (3, 3, {"linear_before_reset": True}),
    "gru-reset-first": (3, 1, {"linear_before_reset": False}),
    "rnn": (1, 1, {"activation": "tanh"}),
    "rnn-relu": (1, 1, {"activation": "relu"}),
}


@dataclass(frozen=True)
class Case:
    cell: str
    hidden: int
    steps: int = 3
    batch: int = 1
    direction: str = "forward"
    dtype: str = "f32"
    is_dynamic: bool = False

    @property
    def op(self) -> str:
        return self.cell.partition("-")[0] + "_steps"

    @property
    def attrs(self) -> dict[str, Any]:
        return {"direction": self.direction, **CELLS[self.cell][2]}

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def operands(self) -> list[np.ndarray]:
        """gates, r and the others, as the op takes them."""
        rng = np.random.default_rng(0)
        width = CELLS[self.cell][0] * self.hidden
        numpy_type = DTYPES[self.dtype].numpy

        def make(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(numpy_type)

        gates = make(self.steps, self.batch, self.directions, width)
        r = (make(self.directions, width, self.hidden).astype(np.float32) / np.sqrt(self.hidden)).astype(numpy_type)
        state = (self.directions, self.batch, self.hidden)
        bias = [make(self.directions, self.hidden)] if self.op == "gru_steps" else []
        return [gates, r, *bias, *[make(*state) for _ in range(2 if self.op == "lstm_steps" else 1)]]

    def expected(self, operands: list[np.ndarray]) -> list[np.ndarray]:
        wide = [a.astype(np.float64) for a in operands]
        return list(OPS[self.op].reference(*wide, **self.attrs))


def contiguous(ptr: Any, dtype: str, shape: tuple[int, ...]) -> StridedBuffer:
    strides = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
    return StridedBuffer(ptr, dtype, 0, tuple(strides))


def run(case: Case, isa: Isa, folder: Path) -> list[np.ndarray]:
    """The results, from one array that holds them all."""
    operands = case.operands()
    gates, r, *others = operands
    group_gates = CELLS[case.cell][1]
    packed = pack_gates(f"gates-{group_gates}", r, isa, case.dtype)
    shapes = [np.shape(e) for e in case.expected(operands)]
    starts = np.cumsum([0, *[int(np.prod(s)) for s in shapes]]).tolist()
    out = aligned(np.zeros(starts[-1], gates.dtype))
    panels = GatePanels.of(r.shape, group_gates, isa, case.dtype)
    args: list[Any] = [aligned(a) for a in (gates, packed, *others)]
    args += [case.batch, case.steps, out] if case.is_dynamic else [out]

    def emit(slots: list, begin, end) -> None:
        memory = [contiguous(slots[0], case.dtype, gates.shape)]
        memory += [contiguous(s, case.dtype, a.shape) for s, a in zip(slots[2:], others, strict=False)]
        outs = [
            contiguous(offset_ptr(slots[-1], start, case.dtype), case.dtype, shape)
            for start, shape in zip(starts, shapes, strict=False)
        ]
        steps, batch = (slots[-2], slots[-3]) if case.is_dynamic else (case.steps, case.batch)
        sizes = (steps, batch, case.directions)
        layer = make_layer(isa, panels, sizes, case.dtype, case.attrs, slots[1], memory, outs)
        emit_recurrent(layer, case.op, begin, end)

    block_rows = panels.block_rows(isa, dims.symbol("B") if case.is_dynamic else case.batch, case.directions)
    tiles = constant_tiles([case.directions, -(-case.batch // block_rows)])
    if isa in (SVE, NEON):
        run_arm(isa, emit, args, tiles, folder)
    else:
        build_host(emit, args, folder).bind(args, tiles)()
    return [out[a:b].reshape(s) for a, b, s in zip(starts, starts[1:], shapes, strict=False)]


def check(case: Case, results: list[np.ndarray]) -> None:
    """Errors of a step are passed on; each is a few roundings of values near 1."""
    rounding = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-8, "f16": 2.0**-11}[case.dtype]
    for found, wanted in zip(results, case.expected(case.operands()), strict=True):
        scale = max(1.0, np.abs(wanted).max())
        assert np.abs(found.astype(np.float64) - wanted).max() <= 8 * case.steps * rounding * scale


HOST_CASES = [
    *[Case(cell, hidden, batch=batch) for cell in CELLS for hidden, batch in ((19, 1), (64, 5))],
    *[Case(cell, 21, direction=way, batch=11) for cell in CELLS for way in ("reverse", "bidirectional")],
    *[Case(cell, 20, dtype=dtype, batch=3) for cell in CELLS for dtype in ("f64", "bf16", "f16")],
    *[Case(cell, 16, batch=13, is_dynamic=True) for cell in CELLS],
    *[Case(cell, 16, steps=1) for cell in CELLS],
    *[Case(cell, 400, steps=2, batch=5) for cell in CELLS],
]


@pytest.mark.parametrize("case", HOST_CASES, ids=str)
def test_host(case: Case, tmp_path: Path) -> None:
    check(case, run(case, AVX2, tmp_path))


@pytest.mark.parametrize("isa", [SVE, NEON], ids=["sve", "neon"])
@pytest.mark.parametrize("cell", CELLS)
def test_arm(cell: str, isa: Isa, tmp_path: Path) -> None:
    for case in (Case(cell, 21, batch=9, direction="bidirectional"), Case(cell, 260, steps=2, batch=9)):
        check(case, run(case, isa, tmp_path))


def compiled(op: str, inputs: list[np.ndarray], weights: list[np.ndarray], attrs: dict[str, Any]) -> list[np.ndarray]:
    """Results of one layer whose weights are known at compile time."""
    graph = GraphBuilder({})
    declared = graph.declare_inputs([(f"i{n}", "f32", a.shape) for n, a in enumerate(inputs)])
    known = [graph.constant(w) for w in weights]
    results = graph.op(op, declared[0], *known, *declared[1:], **attrs)
    module = graph.finish([(f"o{n}", r) for n, r in enumerate(results)])
    machine = find_machine("host")
    code = driver.compile_module(module, machine)
    artifact = driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {})
    return list(mlc.load(artifact.to_bytes(), threads=2)(*inputs))


@pytest.mark.parametrize("cell", CELLS)
def test_whole_layer(cell: str) -> None:
    """Through fusion and packing."""
    gates, _, attrs = CELLS[cell]
    rng = np.random.default_rng(1)
    hidden, width, batch = 40, 6, 9
    shapes = [(gates * hidden, width), (gates * hidden, hidden), (2 * gates * hidden,)]
    weights = [(rng.standard_normal((2, *s)) / np.sqrt(s[-1])).astype(np.float32) for s in shapes]
    states = 2 if cell == "lstm" else 1
    inputs = [rng.standard_normal(s).astype(np.float32) for s in [(4, batch, width)] + [(2, batch, hidden)] * states]
    attrs = {"direction": "bidirectional", **attrs}
    op = cell.partition("-")[0]
    wide = [a.astype(np.float64) for a in (inputs[0], *weights, *inputs[1:])]
    expected = OPS[op].reference(*wide, **attrs)
    for found, wanted in zip(compiled(op, inputs, weights, attrs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5 * max(1.0, np.abs(wanted).max()))
