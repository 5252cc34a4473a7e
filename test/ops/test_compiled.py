"""Compiled code against the ops' numpy bodies: every row, on this machine and for Arm under qemu.

The default run takes each row in two of its dtypes, by turns, and on Arm each op once; `-m sweep` takes everything.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import arm_runner
import mlc
from case import Example
from mlc.dialects.build import load_ops
from mlc.frontend.graph import GraphBuilder
from mlc.targets.machines import find_machine
from mlc.tools import driver
from row_module import admits_symbols, as_list, case_files, compile_rows, one_a_op, row_module, rows_of, samples_of

# Rows a module: enough that starting a compile costs little, few enough that a failure names a small part.
ROWS_A_MODULE = 80
ARM_MACHINES = ("aarch64", "sve128", "sve256", "sve512", "graviton3")
# Ops without operands: `test_sources` reaches them.
SOURCES = {"constant", "copy", "dim_value", "full", "iota", "weight"}


@cache
def samples(file: str, dtype_count: int | None, form: str) -> list[Example]:
    found = samples_of(file, dtype_count)
    if form == "symbolic":
        return [s for s in found if admits_symbols(s)]
    if form == "weights":
        return [s for s in found if load_ops()[s.case.op].kind == "contract"]
    return found


def parts(dtype_count: int | None, form: str, step: int = 1) -> list[tuple]:
    """Test parameters: the rows of a file in portions; every `step`th row."""
    found = []
    for file in case_files():
        count = len(samples(file, dtype_count, form)[::step])
        found.extend((file, dtype_count, form, step, start) for start in range(0, count, ROWS_A_MODULE))
    return found


def name_of(part: tuple) -> str:
    file, _, form, _, start = part
    return f"{file.removeprefix('cases_')}-{form}-{start}"


def check_on_host(chosen: Sequence[Example], form: str) -> None:
    rows = row_module(chosen, is_symbolic=form == "symbolic", has_weights=form == "weights")
    model = mlc.load(compile_rows(rows, find_machine("host")))
    failures = rows.failures(as_list(model(*rows.inputs)))
    assert not failures, "\n".join(failures)


def check_on_arm(chosen: Sequence[Example], form: str, machine_name: str) -> None:
    if arm_runner.qemu() is None:
        pytest.skip("needs qemu-aarch64")
    machine = find_machine(machine_name)
    rows = row_module(chosen, is_symbolic=form == "symbolic", has_weights=form == "weights")
    blob = compile_rows(rows, machine)
    failures = rows.failures(arm_runner.run(blob, rows.inputs, driver.describe(rows.module).outputs, machine))
    assert not failures, "\n".join(failures)


def portion(part: tuple) -> list[Example]:
    file, dtype_count, form, step, start = part
    return samples(file, dtype_count, form)[::step][start : start + ROWS_A_MODULE]


# this machine --------------------------------------------------------------------------------------------------------
DEFAULT_PARTS = [*parts(2, "static"), *parts(1, "symbolic", 5), *parts(1, "weights")]


@pytest.mark.parametrize("part", DEFAULT_PARTS, ids=name_of)
def test_rows(part: tuple) -> None:
    check_on_host(portion(part), part[2])


def sweep_parts() -> list[tuple]:
    return [*parts(None, "static"), *parts(2, "symbolic"), *parts(None, "weights")]


@pytest.mark.sweep
@pytest.mark.parametrize("file", case_files())
def test_all_dtypes(file: str) -> None:
    for part in sweep_parts():
        if part[0] == file:
            check_on_host(portion(part), part[2])


def test_every_op_has_a_row() -> None:
    """A new op without a row is found here."""
    tested = {case.op for file in case_files() for case in rows_of(file)}
    wanted = {name for name, definition in load_ops().items() if not definition.is_internal}
    assert wanted - tested - SOURCES == set()


def test_sources() -> None:
    """Ops without operands, returned as they are and read by another op."""
    graph = GraphBuilder({"n": (0, 64)})
    n = mlc_symbol("n")
    (x,) = graph.declare_inputs([("x", "f32", (n, 3))])
    table = np.arange(40, dtype=np.float64).reshape(5, 8)
    outputs = [
        graph.op("full", shape=[n, 2], value=2.5, dtype="f16"),
        graph.op("iota", size=n, start=3, step=2, dtype="i32"),
        graph.op("dim_value", value=n * 3 + 1, dtype="i64"),
        graph.op("constant", value=np.array([1, -7, 9], np.int16)),
        graph.weight("table", table),
        graph.op("copy", x),
        graph.add(x, graph.op("full", shape=[], value=1.0, dtype="f32")),
    ]
    module = graph.finish([(f"o{i}", value) for i, value in enumerate(outputs)])
    given = np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3)
    expected = [
        np.full((7, 2), 2.5, np.float16), np.arange(3, 17, 2, np.int32), np.array(22), np.array([1, -7, 9], np.int16),
        table, given, given + np.float32(1),
    ]
    for found, wanted in zip(as_list(load_module(module)(given)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


def mlc_symbol(name: str):
    from mlc.dialects import dims

    return dims.symbol(name)


def load_module(module) -> mlc.Model:
    machine = find_machine("host")
    code = driver.compile_module(module, machine)
    return mlc.load(driver.Artifact(driver.describe(module), [driver.target_of(module, machine, code)], {}).to_bytes())


# what must not depend on circumstances
# -----------------------------------------------------------------------------------
def test_threads_and_compilations_agree() -> None:
    """One thread and two give the same bits; two compilations give the same bytes."""
    chosen = [s for s in one_a_op(["f32"]) if s.dtype == "f32"]
    blobs = []
    for _ in range(2):
        rows = row_module(chosen)
        blobs.append(compile_rows(rows, find_machine("host")))
    assert blobs[0] == blobs[1]
    one, two = (as_list(mlc.load(blobs[0], threads=count)(*rows.inputs)) for count in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert a.tobytes() == b.tobytes()


def test_threads_agree_on_large_shapes() -> None:
    """Kernels of many tiles: rows, columns, products and convolutions cut between threads."""
    rng = np.random.default_rng(5)
    shapes = {"x": (257, 513), "w": (513, 129), "image": (2, 16, 41, 43)}
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes.values()]
    graph = GraphBuilder({})
    x, w, image = graph.declare_inputs([(n, "f32", s) for n, s in shapes.items()])
    kernel = graph.weight("kernel", rng.standard_normal((24, 16, 3, 3)).astype(np.float32))
    conv = graph.op(
        "conv", image, kernel, None, strides=[1, 1], pads_low=[1, 1], pads_high=[1, 1], dilations=[1, 1], groups=1
    )
    outputs = [
        graph.matmul(x, w), graph.softmax(x, axis=1), graph.sum(x, axes=[0], keepdims=False), graph.relu(conv),
        graph.sum(x, axes=[0, 1], keepdims=False), graph.cumsum(x, axis=1, exclusive=False, reverse=False),
    ]
    blob_module = graph.finish([(f"o{i}", v) for i, v in enumerate(outputs)])
    machine = find_machine("host")
    code = driver.compile_module(blob_module, machine)
    target = driver.target_of(blob_module, machine, code)
    blob = driver.Artifact(driver.describe(blob_module), [target], {}).to_bytes()
    one, two, again = (as_list(mlc.load(blob, threads=count)(*arrays)) for count in (1, 2, 2))
    for a, b, c in zip(one, two, again, strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()


def test_memory_plan_of_chains() -> None:
    """Intermediates share the arena: a deep graph with long-lived values gives what the bodies give."""
    from mlc.dialects import reference

    graph = GraphBuilder({"n": (1, 64)})
    n = mlc_symbol("n")
    x, w = graph.declare_inputs([("x", "f32", (n, 24)), ("w", "f32", (24, 24))])
    values, early = [x], []
    for step in range(12):
        product = graph.matmul(graph.relu(values[-1]), w)
        mixed = graph.softmax(graph.add(product, values[max(0, step - 3)]), axis=1)
        values.append(graph.add(graph.transpose(graph.transpose(mixed, perm=[1, 0]), perm=[1, 0]), graph.tanh(product)))
        early.append(graph.sum(values[-1], axes=[0], keepdims=True))
    module = graph.finish([("y", values[-1]), ("e", graph.op("concat", *early, axis=0)), ("m", values[4])])
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(s).astype(np.float32) * 0.3 for s in ((13, 24), (24, 24))]
    expected = reference.run_function(module, given)
    for found, wanted in zip(as_list(load_module(module)(*given)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# Arm
# -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("machine", ARM_MACHINES)
def test_ops_on_arm(machine: str) -> None:
    """Each op once, in f32 and one type of integers; contractions with constant weights as well."""
    chosen = one_a_op(["f32", "i32"])
    for start in range(0, len(chosen), ROWS_A_MODULE):
        check_on_arm(chosen[start : start + ROWS_A_MODULE], "static", machine)
    check_on_arm([s for s in chosen if load_ops()[s.case.op].kind == "contract"], "weights", machine)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ARM_MACHINES)
@pytest.mark.parametrize("file", case_files())
def test_all_dtypes_on_arm(file: str, machine: str) -> None:
    for part in sweep_parts():
        if part[0] == file:
            check_on_arm(portion(part), part[2], machine)
