"""Tuning: schedules are measured, kept in a file, used again, and change no result beyond rounding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mlc.loader import load
from mlc.targets.machines import find_machine
from mlc.tools import driver
from mlc.tools.emitting import tuning
from onnx import TensorProto, helper

FEEDS = (np.linspace(-1, 1, 192 * 64, dtype=np.float32).reshape(192, 64), np.eye(64, 96, dtype=np.float32))


def _model(rows: int | str = 192) -> object:
    """relu(a b) with both operands inputs."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [value("a", TensorProto.FLOAT, [rows, 64]), value("b", TensorProto.FLOAT, [64, 96])],
        [value("r", TensorProto.FLOAT, [rows, 96])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def _run(tune: driver.Tuning | None = None) -> np.ndarray:
    with load(driver.compile(_model(), tune=tune).to_bytes(), threads=1) as model:
        return np.asarray(model(*FEEDS))


def test_measures_once_and_keeps(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "schedules.json"
    first, second = driver.Tuning(60, file), driver.Tuning(0, file)
    outputs = [_run(), _run(first), _run(second)]
    assert (first.counts["measured"], first.counts["left"]) == (1, 0)
    assert (second.counts["known"], second.counts["measured"]) == (1, 0)
    [row] = json.loads(file.read_text()).values()
    assert row["tried"] > 1 and 0 < row["ns"] <= row["default_ns"]
    assert bool(row["schedule"]) == (row["default_ns"] >= 1.03 * row["ns"]) == bool(first.counts["changed"])
    for found in outputs:
        np.testing.assert_allclose(found, np.maximum(FEEDS[0] @ FEEDS[1], 0), rtol=1e-5, atol=1e-6)


def test_a_schedule_of_the_file_is_what_is_emitted(tmp_path: Path) -> None:
    file = tmp_path / "schedules.json"
    plain = driver.compile(_model(), tune=driver.Tuning(60, file)).targets[0].code
    rows = json.loads(file.read_text())
    for row in rows.values():
        row["schedule"] = {"tile_rows": find_machine("host").tile[0] * 2, "tile_columns": 96}
    file.write_text(json.dumps(rows))
    tune = driver.Tuning(0, file)
    other = driver.compile(_model(), tune=tune).targets[0].code
    assert tune.counts["changed"] == 1 and other != plain
    np.testing.assert_allclose(_run(tune), np.maximum(FEEDS[0] @ FEEDS[1], 0), rtol=1e-5, atol=1e-6)


def test_no_time_leaves_defaults(tmp_path: Path) -> None:
    tune = driver.Tuning(0, tmp_path / "schedules.json")
    assert driver.compile(_model(), tune=tune).targets[0].code == driver.compile(_model()).targets[0].code
    assert tune.counts == {"known": 0, "measured": 0, "left": 1, "changed": 0}


def test_sizes_that_are_symbols_keep_defaults(tmp_path: Path) -> None:
    tune = driver.Tuning(60, tmp_path / "schedules.json")
    driver.compile(_model("rows"), symbols={"rows": (1, 512)}, tune=tune)
    assert tune.counts["measured"] == 0


def test_refusals(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[1, 2")
    with pytest.raises(ValueError, match=r"broken\.json holds no schedules"):
        driver.compile(_model(), tune=driver.Tuning(0, broken))
    with pytest.raises(driver.CompileError, match="measured on this machine, not for graviton3"):
        driver.compile(_model(), "graviton3", tune=driver.Tuning(60, tmp_path / "arm.json"))
    with pytest.raises(driver.CompileError, match="--tune-file goes with --tune"):
        tuning(None, broken)
    with pytest.raises(driver.CompileError, match="0 or more"):
        tuning(-1, None)
