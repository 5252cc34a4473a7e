"""What cannot be done is refused with one sentence: broken files, wrong inputs, other machines, unsupported ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlc
import numpy as np
import pytest
from mlc.tools.demo import demo_folder

DIGITS = demo_folder() / "digits.pt2"
FLIPS = 60  # places of the file whose bits are turned one at a time


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.mlc"
    mlc.compile(DIGITS).save(path)
    return path


def refused(*arguments: object) -> str:
    """What `mlc` says when it refuses: one line on stderr, nothing on stdout, exit code 1."""
    done = subprocess.run([sys.executable, "-m", "mlc.tools.mlc", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_damage_is_found_wherever_it_is(artifact: Path) -> None:
    """Header, description, code, weights and JSON alike; the weights only if they are asked to be checked."""
    whole = artifact.read_bytes()
    for at in np.linspace(0, len(whole) - 1, FLIPS).astype(int):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(mlc.MlcError):
            mlc.load(bytes(damaged))


def test_header_only_skips_the_weights(artifact: Path) -> None:
    damaged = bytearray(artifact.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(mlc.MlcError, match="checksum"):
        mlc.load(bytes(damaged))
    mlc.load(bytes(damaged), verify="header")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "empty"), (b"not a model at all" * 20, "not an mlc artifact"), (None, "truncated")],
    ids=["empty", "foreign", "truncated"],
)
def test_files_that_are_no_artifacts(content: bytes | None, sentence: str, artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.mlc"
    path.write_bytes(artifact.read_bytes()[:5000] if content is None else content)
    assert sentence in refused("run", path, "--random")


@pytest.mark.parametrize(
    ("feed", "sentence"),
    [
        (None, "'pixels' is missing"),
        (np.zeros((2, 1, 8, 8)), "has type f64; the model takes f32"),
        (np.zeros((2, 8, 8), np.float32), "has 3 dims; the model takes 4"),
        (np.zeros((2, 1, 8, 9), np.float32), "dim 3 is 9"),
        (np.zeros((5000, 1, 8, 8), np.float32), "dim 0 is 5000"),
    ],
    ids=["missing", "dtype", "rank", "size", "range"],
)
def test_inputs_that_do_not_fit(feed: np.ndarray | None, sentence: str, artifact: Path, tmp_path: Path) -> None:
    given: list[object] = []
    if feed is not None:
        np.save(tmp_path / "x.npy", feed)
        given = ["--input", f"pixels={tmp_path / 'x.npy'}"]
    assert sentence in refused("run", artifact, *given)


def test_an_artifact_for_another_machine(tmp_path: Path) -> None:
    other = "x86-64-v3" if mlc.compile(DIGITS).targets[0].info.arch == "aarch64" else "graviton3"
    path = tmp_path / "other.mlc"
    mlc.compile(DIGITS, other).save(path)
    assert "this artifact is for" in refused("run", path, "--random")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compile", "nowhere.pt2"], "no file"),
        (["compile", DIGITS, "--target", "abacus"], "no target 'abacus'"),
        (["compile", DIGITS, "--emit", "prose"], "--emit prose"),
        (["compile", DIGITS.with_suffix(".onnx"), "--dim", "B=many"], "--dim B=many"),
        (["inspect", "nowhere.mlc"], "no file"),
    ],
)  # fmt: skip
def test_command_lines(arguments: list[object], sentence: str) -> None:
    assert sentence in refused(*arguments)


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_models_cut_short(ending: str, kept: int, tmp_path: Path) -> None:
    path = tmp_path / f"cut{ending}"
    path.write_bytes(DIGITS.with_suffix(ending).read_bytes()[:kept])
    assert path.name in refused("compile", path)


def test_unsupported_ops_are_listed_together(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x: object) -> object:
            return torch.linalg.svd(x)[1], torch.linalg.matrix_exp(x)

    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.randn(3, 3),)), path)
    said = refused("compile", path)
    assert "aten.linalg_svd.default" in said and "aten.linalg_matrix_exp.default" in said
    assert Path(__file__).name in said
