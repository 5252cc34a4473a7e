"""Buffers that a PyTorch model writes are kept from run to run, and can be read, written and reset."""

from __future__ import annotations

import ctypes
from pathlib import Path

import mlc
import numpy as np
import pytest
from mlc import native, tensors
from mlc.artifact import read_artifact

torch = pytest.importorskip("torch")


class Cached(torch.nn.Module):
    """A cache by position, a counter, and a vector that is read again in another order after it is due to change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 8, 70))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mixed", torch.arange(3.0) + 1)
        self.linear = torch.nn.Linear(70, 70)

    def forward(self, x, position):
        self.cache.index_copy_(2, position, self.linear(x))
        self.count.add_(1)
        old = self.mixed.clone()
        self.mixed.copy_(torch.flip(self.mixed, [0]) * 2 + x.mean())
        return self.cache.sum(2) * self.count, self.mixed + 1, old


class Swapped(torch.nn.Module):
    """Two states that trade places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.arange(5.0))
        self.register_buffer("right", -torch.arange(5.0))

    def forward(self, x):
        left = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(left)
        return self.left + x


def _model(module: torch.nn.Module, *inputs: torch.Tensor, is_functional: bool = False) -> tuple[mlc.Model, bytes]:
    program = torch.export.export(module, inputs)
    blob = mlc.compile(program.run_decompositions() if is_functional else program).to_bytes()
    return mlc.load(blob), blob


def _agree(model: mlc.Model, module: torch.nn.Module, *inputs: torch.Tensor) -> None:
    wanted = module(*inputs)
    found = model(*(tensor.numpy() for tensor in inputs))
    many = isinstance(wanted, tuple)
    for got, want in zip(found if many else [found], wanted if many else [wanted], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
    assert set(model.state) == {name for name, _ in module.named_buffers()}
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(model.state[name], buffer.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_functional", [False, True])
def test_runs_keep_what_they_wrote(is_functional: bool) -> None:
    torch.manual_seed(0)
    module = Cached().eval().requires_grad_(False)
    model, _ = _model(module, torch.randn(1, 2, 1, 70), torch.tensor([3]), is_functional=is_functional)
    for step in range(4):
        _agree(model, module, torch.randn(1, 2, 1, 70), torch.tensor([step * 2 % 7]))


def test_swapped_states() -> None:
    module = Swapped()
    model, _ = _model(module, torch.ones(5))
    for _ in range(3):
        _agree(model, module, torch.ones(5))


def test_reset_read_and_write() -> None:
    model, blob = _model(Swapped(), torch.ones(5))
    first = model(np.ones(5, np.float32))
    assert read_artifact(blob).meta.states == model.states
    model.state["right"] = 7
    np.testing.assert_array_equal(model(np.zeros(5, np.float32)), np.full(5, 7, np.float32))
    model.state["right"][2] = -1
    assert model(np.zeros(5, np.float32))[2] == -1
    model.reset()
    np.testing.assert_array_equal(model.state["left"], np.arange(5))
    np.testing.assert_array_equal(model(np.ones(5, np.float32)), first)
    with pytest.raises(KeyError):
        model.state["middle"]


def test_the_cache_is_not_copied() -> None:
    """Rows go into the cache where it lies: the only copy is of the state that is read in another order."""
    module = Cached().eval().requires_grad_(False)
    model, _ = _model(module, torch.randn(1, 2, 1, 70), torch.tensor([3]))
    heroes = [kernel["hero"] for kernel in model.info["kernels"]]
    assert heroes.count("copy") == 1 and heroes.count("scatter_lines") == 1


def test_static_form_holds_the_first_state(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Swapped(), (torch.ones(5),)), tmp_path / "swapped.pt2")
    from mlc.tools.driver import write_form

    write_form(tmp_path / "swapped.pt2", "host", "static", tmp_path / "out")
    header = (tmp_path / "out" / "swapped.h").read_text()
    assert "model.state = swapped_state;" in header


def test_the_c_interface_checks_the_memory_of_states() -> None:
    model, _ = _model(Swapped(), torch.ones(5))
    library, need = native.library(), native.sized(native.Need)
    assert library.mlc_model_need(model._handle, ctypes.byref(need)) == 0 and need.state_bytes == 128
    memory, handle = tensors.empty((need.session_bytes,), np.dtype(np.uint8), 64), ctypes.c_void_p()
    assert library.mlc_session_init(model._handle, tensors.address(memory), memory.nbytes, ctypes.byref(handle)) == 0

    def refused(status: int) -> str:
        return f"{library.mlc_status_name(status).decode()}: {library.mlc_session_detail(handle).decode()}"

    states = tensors.empty((256,), np.dtype(np.uint8), 64)
    first = tensors.address(states)
    assert "BAD_STATE: the model has states: mlc_session_bind_state" in refused(library.mlc_session_reset(handle))
    assert "TOO_SMALL" in refused(library.mlc_session_bind_state(handle, first, 64))
    assert "BAD_ARGUMENT" in refused(library.mlc_session_bind_state(handle, first + 8, 128))
    assert library.mlc_session_bind_state(handle, first, 128) == 0 and library.mlc_session_reset(handle) == 0
    np.testing.assert_array_equal(states[64:84].view(np.float32), -np.arange(5))
    tensor = native.sized(native.Tensor)
    assert library.mlc_session_state(handle, 1, ctypes.byref(tensor)) == 0 and tensor.data == first + 64
    assert "there is no state of that index" in refused(library.mlc_session_state(handle, 2, ctypes.byref(tensor)))
