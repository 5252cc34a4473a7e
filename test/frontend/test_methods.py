"""Several methods in one file: weights once, states of one name shared, one memory for all."""

from __future__ import annotations

import json
from pathlib import Path

import mlc
import numpy as np
import pytest
from mlc import loader
from mlc.artifact import read_artifact
from mlc.tools.driver import CompileError
from mlc.tools.mlc import app
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
WIDTH, LENGTH = 96, 16


class Store(torch.nn.Module):
    """What both methods have: a large layer, a cache of rows, and how many are in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("rows", torch.zeros(LENGTH, WIDTH))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


class Fill(Store):
    """Replaces the first rows."""

    def forward(self, x):
        self.rows[: x.shape[0]].copy_(self.layer(x))
        self.count.copy_(torch.full((1,), x.shape[0]))
        return self.rows.sum(0)


class Append(Store):
    """Adds a row behind the others; has a state of its own besides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(3))

    def forward(self, x):
        self.rows.index_copy_(0, self.count, self.layer(x))
        self.count.add_(1)
        self.calls.add_(1)
        return self.rows.sum(0) * self.calls[0]


def _programs() -> tuple[Fill, Append, dict[str, torch.export.ExportedProgram]]:
    torch.manual_seed(3)
    fill, append = Fill(), Append()
    append.layer.load_state_dict(fill.layer.state_dict())
    fill, append = (module.eval().requires_grad_(False) for module in (fill, append))
    exports = {"fill": (fill, torch.randn(4, WIDTH)), "append": (append, torch.randn(1, WIDTH))}
    return fill, append, {name: torch.export.export(module, (x,)) for name, (module, x) in exports.items()}


def _file(tmp_path: Path) -> tuple[Fill, Append, Path]:
    fill, append, programs = _programs()
    path = tmp_path / "two.mlc"
    mlc.compile(programs).save(path)
    return fill, append, path


@pytest.mark.parametrize("threads", [1, 2])
def test_methods_share_states(threads: int, tmp_path: Path) -> None:
    fill, append, path = _file(tmp_path)
    with mlc.load(path, threads=threads) as program:
        assert program.names == ("fill", "append") and set(program.state) == {"rows", "count", "calls"}
        first, rows = torch.randn(4, WIDTH), [torch.randn(1, WIDTH) for _ in range(3)]
        for _ in range(2):
            np.testing.assert_allclose(program.fill(first.numpy()), fill(first).numpy(), rtol=1e-5, atol=1e-5)
            append.rows, append.count = fill.rows.clone(), fill.count.clone()
            for row in rows:
                np.testing.assert_allclose(program.append(row.numpy()), append(row).numpy(), rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(program.state["rows"], append.rows.numpy(), rtol=1e-5, atol=1e-5)
            fill.rows = append.rows.clone()
        assert program.state["count"].tolist() == [7] and program.state["calls"].tolist() == [7, 7, 7]
        program.reset()
        assert not program.state["rows"].any() and program.state["calls"].tolist() == [1, 1, 1]


def test_weights_are_in_the_file_once(tmp_path: Path) -> None:
    _, _, programs = _programs()
    sizes = [len(mlc.compile(model).to_bytes()) for model in (programs["fill"], programs)]
    assert sizes[1] - sizes[0] < 4 * WIDTH * WIDTH


def test_what_tools_say(tmp_path: Path) -> None:
    _, _, path = _file(tmp_path)
    assert list(read_artifact(path).methods) == ["fill", "append"]
    run = CliRunner()
    shown = json.loads(run.invoke(app, ["inspect", str(path), "--json"]).stdout)
    assert [row["name"] for row in shown["methods"]["append"]["states"]] == ["rows", "count", "calls"]
    assert "method  append" in run.invoke(app, ["inspect", str(path)]).stdout
    done = run.invoke(app, ["run", str(path), "--random", "--method", "append", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["outputs"]


def test_command_line(tmp_path: Path) -> None:
    _, _, programs = _programs()
    for name, program in programs.items():
        mlc.save(program, tmp_path / f"{name}.pt2")
    given = [f"{name}={tmp_path / name}.pt2" for name in programs]
    done = CliRunner().invoke(app, ["compile", *given, "-o", str(tmp_path / "two.mlc"), "--json"])
    assert done.exit_code == 0, done.output
    with mlc.load(tmp_path / "two.mlc") as program:
        assert program.append.states == program.fill.states and len(program.append.info["kernels"]) > 1


def test_refusals(tmp_path: Path) -> None:
    _, _, path = _file(tmp_path)
    with mlc.load(path) as program, pytest.raises(AttributeError, match="no method 'decode'; it has fill, append"):
        program.decode(np.zeros((1, WIDTH), np.float32))
    with pytest.raises(mlc.MlcError, match="the file has no method 'decode'"):
        loader.Model(loader._bytes_of(path, False), 1, 0, "decode")
    _, append, programs = _programs()
    append.rows.fill_(1)
    other = {"fill": programs["fill"], "append": torch.export.export(append, (torch.randn(1, WIDTH),))}
    with pytest.raises(CompileError, match="method append: its state rows is another one"):
        mlc.compile(other)
