"""What holds for every artifact: same bytes from two compilations, same bits from any thread count, no allocation after
load, and the same numbers on Arm as here.
"""

from __future__ import annotations

from pathlib import Path

import mlc
import native_run
import numpy as np
import pytest
import zoo
from mlc.tools.demo import demo_folder

needs_qemu = pytest.mark.skipif(
    native_run.QEMU is None, reason="qemu-aarch64 is not installed (apt-get install qemu-user)"
)
# Relative to the largest magnitude: f32 with another order of summation on machines with other vector lengths.
ARM_LIMIT = 1e-4
ARM_MACHINES = {"aarch64": 0, "sve128": 128, "graviton3": 256, "sve512": 512}


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    with np.load(demo_folder() / "digits_test.npz") as held_out:
        return np.ascontiguousarray(held_out["pixels"][:37].astype(np.float32) / 16)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.mlc"
    mlc.compile(demo_folder() / "digits.onnx").save(path)
    return path


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_run.build_runner(tmp_path_factory.mktemp("arm"), "aarch64-linux-musl")


def test_two_compilations_give_the_same_bytes(digits: Path) -> None:
    assert mlc.compile(demo_folder() / "digits.onnx").to_bytes() == digits.read_bytes()


def test_threads_do_not_change_a_bit(digits: Path, pixels: np.ndarray) -> None:
    alone, *others = (mlc.load(digits, threads=count)(pixels) for count in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(alone, other)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_allocated_while_a_model_runs(
    digits: Path, pixels: np.ndarray, tmp_path: Path, threads: int
) -> None:
    program = native_run.build_runner(tmp_path, "x86_64-linux-gnu")
    run = native_run.run_native(program, digits, [pixels], tmp_path, threads=threads)
    assert run.allocation_count == 0
    np.testing.assert_array_equal(run.outputs[0], mlc.load(digits, threads=1)(pixels))


@needs_qemu
@pytest.mark.parametrize("machine", ARM_MACHINES)
def test_arm_gives_the_same_numbers(
    machine: str, arm_program: Path, digits: Path, pixels: np.ndarray, tmp_path: Path
) -> None:
    artifact = tmp_path / "arm.mlc"
    mlc.compile(demo_folder() / "digits.pt2", machine).save(artifact)
    under = native_run.qemu_command(ARM_MACHINES[machine])
    got = native_run.run_native(arm_program, artifact, [pixels[:5]], tmp_path, under=under).outputs[0]
    wanted = mlc.load(digits, threads=1)(pixels[:5])
    assert np.abs(got - wanted).max() <= ARM_LIMIT * np.abs(wanted).max()


@needs_qemu
def test_an_artifact_for_another_vector_length_is_refused(
    arm_program: Path, pixels: np.ndarray, tmp_path: Path
) -> None:
    artifact = tmp_path / "arm.mlc"
    mlc.compile(demo_folder() / "digits.pt2", "graviton3").save(artifact)
    with pytest.raises(RuntimeError, match="256"):
        native_run.run_native(arm_program, artifact, [pixels[:1]], tmp_path, under=native_run.qemu_command(512))


@needs_qemu
@pytest.mark.sweep
@pytest.mark.models
@pytest.mark.parametrize("name", ["minilm", "efficientnet_lite0"])
def test_real_models_on_graviton3(name: str, arm_program: Path, tmp_path: Path) -> None:
    try:
        model = zoo.get(name)
    except zoo.UnavailableError as reason:
        pytest.skip(str(reason))
    artifact = tmp_path / "model.mlc"
    mlc.compile(model.path, "graviton3").save(artifact)
    for feed, wanted in zip(model.feeds[:2], model.outputs[:2], strict=True):
        run = native_run.run_native(arm_program, artifact, feed, tmp_path, under=native_run.qemu_command(256))
        for got, reference in zip(run.outputs, wanted, strict=True):
            assert np.abs(got - reference).max() <= ARM_LIMIT * np.abs(reference).max()
