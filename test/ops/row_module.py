"""Rows of the case tables as modules: many rows share one module, one output or several a row, so that one compile
serves them all."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from case import Case, Example, examples, reference, violations
from mlc.dialects import dims
from mlc.dialects.build import load_ops
from mlc.dialects.machine import Machine
from mlc.dialects.op import OpError
from mlc.dialects.types import dtype_of_numpy
from mlc.frontend.graph import GraphBuilder
from mlc.tools import driver
from mlir import ir

# Every size of an input may be a symbol of this range, zero included.
_SYMBOL_RANGE = (0, 1 << 20)


def case_files() -> list[str]:
    """The names of cases_*.py; the folder is the registry."""
    return sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))


def rows_of(file: str) -> list[Case]:
    return importlib.import_module(file).CASES


def chosen_dtypes(case: Case, position: int, count: int) -> list[str]:
    """`count` of the row's dtypes: the first, then others by turns, so that neighbouring rows cover all of them."""
    first, *others = case.dtypes
    turns = min(count - 1, len(others))
    return [first, *(others[(position * turns + i) % len(others)] for i in range(turns))]


def samples_of(file: str, dtype_count: int | None = None) -> list[Example]:
    """Examples of every row, over all its dtypes or `dtype_count` of them."""
    cases = rows_of(file)
    if dtype_count is None:
        return examples(cases)
    found = []
    for position, case in enumerate(cases):
        found.extend(s for d in chosen_dtypes(case, position, dtype_count) for s in examples([_with_dtypes(case, d)]))
    return found


def _with_dtypes(case: Case, dtype: str) -> Case:
    from dataclasses import replace

    return replace(case, dtypes=(dtype,))


def one_a_op(dtypes: Sequence[str]) -> list[Example]:
    """For every op the row with most elements, in the first of `dtypes` that it has and its first dtype otherwise."""
    best: dict[str, Case] = {}
    for file in case_files():
        for case in rows_of(file):
            if case.op not in best or _elements(case) > _elements(best[case.op]):
                best[case.op] = case
    chosen = []
    for case in best.values():
        wanted = [d for d in dtypes if d in case.dtypes] or case.dtypes[:1]
        chosen.extend(examples([_with_dtypes(case, d) for d in wanted]))
    return chosen


def _elements(case: Case) -> int:
    return sum(int(np.prod(s)) for s in case.shapes if s is not None)


@dataclass
class RowModule:
    """A module of `samples`, the arrays it is called with, and what it must give: a row's results one after another."""

    samples: list[Example]
    module: ir.Module
    inputs: list[np.ndarray]

    def failures(self, outputs: Sequence[np.ndarray]) -> list[str]:
        """The rows whose results differ from the op's body by more than their tolerance."""
        found, left = [], iter(outputs)
        for sample in self.samples:
            for position, expected in enumerate(reference(sample)):
                problem = violations(next(left), expected, sample.tolerance)
                if problem:
                    found.append(f"{sample.id} result {position}: {problem}")
        return found


def row_module(samples: Sequence[Example], *, is_symbolic: bool = False, has_weights: bool = False) -> RowModule:
    """`is_symbolic`: sizes above 1 are symbols, one a number, in the rows that admit it. `has_weights`: of contractions
    the operands after the first are constants."""
    build = _RowBuilder(list(samples), is_symbolic, has_weights)
    return RowModule(build.samples, build.module(), build.inputs)


class _RowBuilder:
    def __init__(self, samples: list[Example], is_symbolic: bool, has_weights: bool) -> None:
        self.samples, self.has_weights = samples, has_weights
        self.symbolic = {id(s): is_symbolic and admits_symbols(s) for s in samples}
        self.inputs: list[np.ndarray] = []
        self.symbols: dict[str, tuple[int, int]] = {}

    def module(self) -> ir.Module:
        declared = []
        for sample in self.samples:
            for position, array in enumerate(sample.inputs):
                if array is not None and not self._is_weight(sample, position):
                    shape = symbolic_shape(array.shape) if self.symbolic[id(sample)] else array.shape
                    declared.append((f"i{len(declared)}", dtype_of_numpy(array.dtype), shape))
                    self.inputs.append(array)
        for _, _, shape in declared:
            for size in shape:
                self.symbols.update(dict.fromkeys(dims.symbols(size), _SYMBOL_RANGE))
        graph = GraphBuilder(self.symbols)
        values = iter(graph.declare_inputs(declared))
        outputs: list[tuple[str, Any]] = []
        for number, sample in enumerate(self.samples):
            operands = [self._operand(graph, values, sample, i, number) for i in range(len(sample.inputs))]
            result = graph.op(sample.case.op, *operands, **sample.case.attrs)
            for value in result if isinstance(result, tuple) else (result,):
                outputs.append((f"o{len(outputs)}", value))
        return graph.finish(outputs)

    def _is_weight(self, sample: Example, position: int) -> bool:
        return self.has_weights and position > 0 and load_ops()[sample.case.op].kind == "contract"

    def _operand(self, graph: GraphBuilder, values: Any, sample: Example, position: int, number: int) -> Any:
        array = sample.inputs[position]
        if array is None:
            return None
        if self._is_weight(sample, position):
            return graph.weight(f"w{number}_{position}", array)
        return next(values)


def symbolic_shape(shape: Sequence[int]) -> tuple[dims.Size, ...]:
    """Every size above 1, and 0, by a symbol of its own number."""
    return tuple(s if s == 1 else dims.symbol(f"d{s}") for s in shape)


def admits_symbols(sample: Example) -> bool:
    """Whether the op takes its operands with every size unknown: no attribute fixes a size, no operand needs one."""
    if load_ops()[sample.case.op].kind == "contract" and sample.case.op not in ("matmul", "attention"):
        return False
    shapes = [x.shape for x in sample.inputs if x is not None]
    graph = GraphBuilder({f"d{s}": _SYMBOL_RANGE for shape in shapes for s in shape if s != 1})
    inputs = [
        (f"i{i}", dtype_of_numpy(x.dtype), symbolic_shape(x.shape))
        for i, x in enumerate(sample.inputs)
        if x is not None
    ]
    values = iter(graph.declare_inputs(inputs))
    try:
        graph.op(sample.case.op, *[None if x is None else next(values) for x in sample.inputs], **sample.case.attrs)
    except (OpError, ValueError, TypeError):
        return False
    return True


def compile_rows(rows: RowModule, machine: Machine) -> bytes:
    """The artifact of a row module, which is rewritten on the way."""
    code = driver.compile_module(rows.module, machine)
    target = driver.target_of(rows.module, machine, code)
    return driver.Artifact(driver.describe(rows.module), [target], {}).to_bytes()


def as_list(result: Any) -> list[np.ndarray]:
    """What a loaded model returns, flat."""
    if isinstance(result, dict):
        return list(result.values())
    return list(result) if isinstance(result, (list, tuple)) else [result]
