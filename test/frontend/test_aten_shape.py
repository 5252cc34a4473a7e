"""ATen ops that move elements: views, joining, indexing, scattering, creation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch_exports import check_family  # noqa: E402


def _numbers(*shape: int) -> torch.Tensor:
    return torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape) - 5


VIEWS = {
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(-1, 0),
    "t": lambda x: x[0].t(),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "movedims": lambda x: x.movedim((0, 1), (2, 0)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(),
    "squeeze_dims": lambda x: x.unsqueeze(0).squeeze((0, 1)),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1),
    "broadcast_to": lambda x: x.broadcast_to(2, 2, 3, 4),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "view_dtype": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 4),
    "atleast_3d": lambda x: torch.atleast_3d(x[0]),
    "adjoint": lambda x: x.mH,
    "ravel": lambda x: x.ravel(),
}
PARTS = {
    "slice": lambda x: x[:, 1:, ::2],
    "negative": lambda x: x[..., -3:-1],
    "beyond": lambda x: x[:, :10],
    "select": lambda x: x[:, -1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(3, 2),
    "split_sizes": lambda x: x.split([1, 3], 2),
    "chunk": lambda x: x.chunk(3, 2),
    "unbind": lambda x: x.unbind(1),
    "tensor_split": lambda x: x.tensor_split(3, 2),
    "tensor_split_at": lambda x: x.tensor_split([1, 3], 2),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "diagonal_off": lambda x: x.diagonal(-1, 2, 0),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "empty": lambda x: x[:, 2:1],
    "diag": lambda x: torch.diag(x[0, 0]),
    "diag_of": lambda x: torch.diag(x[0], 1),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, 2),
    "diag_embed_low": lambda x: torch.diag_embed(x, -2),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1], 1, 1, 2),
    "slice_scatter_step": lambda x: torch.slice_scatter(x, x[..., :2] * 2, 2, 0, 4, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0], 1, -1),
}
JOINS = {
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "cat_types": lambda x: torch.cat([x, x.int()], -1),
    "stack": lambda x: torch.stack([x, x], -1),
    "hstack": lambda x: torch.hstack([x, x]),
    "vstack": lambda x: torch.vstack([x[0, 0], x[0, 1]]),
    "dstack": lambda x: torch.dstack([x[0], x[0]]),
    "column_stack": lambda x: torch.column_stack([x[0, 0], x[0, 0]]),
    "block_diag": lambda x: torch.block_diag(x[0], x[0, :1]),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_more": lambda x: x.repeat(2, 1, 1, 2),
    "tile": lambda x: x.tile(2),
    "roll": lambda x: x.roll((1, -2), (1, 2)),
    "roll_flat": lambda x: x.roll(3),
    "flip": lambda x: x.flip(0, 2),
    "fliplr": lambda x: torch.fliplr(x),
    "rot90": lambda x: (x.rot90(1, (1, 2)), x.rot90(2, (1, 2)), x.rot90(3, (1, 2))),
    "repeat_interleave": lambda x: (x.repeat_interleave(2, 1), x.repeat_interleave(3)),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1, :2], indexing="xy"),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:1, :, :1]),
    "cartesian": lambda x: torch.cartesian_prod(x[0, 0], x[0, 1]),
}
PADS = {
    "constant": lambda x: F.pad(x, (1, 2, 0, 1), value=7.0),
    "crop": lambda x: F.pad(x, (-1, 1)),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (3, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 3), mode="circular"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(4, 2, 3), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.reshape(1, 4, 6), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(1, 6, 2, 2), 3),
}


def test_views_and_parts() -> None:
    check_family(VIEWS | PARTS, [_numbers(2, 3, 4)])


def test_joins_and_pads() -> None:
    check_family(JOINS | PADS, [_numbers(2, 3, 4)])


def test_creation() -> None:
    check_family(
        {
            "zeros": lambda x: torch.zeros(2, 3),
            "full": lambda x: torch.full((2,), 3),
            "ones": lambda x: x.new_ones(2),
            "full_like": lambda x: torch.full_like(x, 2.5),
            "zeros_like": lambda x: torch.zeros_like(x, dtype=torch.int32),
            "new_full": lambda x: x.new_full((2, 2), 4),
            "arange": lambda x: torch.arange(5),
            "arange_step": lambda x: torch.arange(1, 10, 3),
            "arange_float": lambda x: torch.arange(0.5, 2.0, 0.25),
            "arange_back": lambda x: torch.arange(5, 0, -2),
            "linspace": lambda x: torch.linspace(-1, 2, 7),
            "logspace": lambda x: torch.logspace(0, 2, 3),
            "eye": lambda x: torch.eye(3, 4),
            "tril": lambda x: x.tril(-1),
            "triu": lambda x: x.triu(1),
            "one_hot": lambda x: F.one_hot(torch.tensor([0, 2, 1]), 4),
            "scalar_tensor": lambda x: x * torch.tensor(2.0),
            "tensor": lambda x: x + torch.tensor([1.0, 2, 3, 4]),
        },
        [_numbers(3, 4)],
    )


READS = {
    "index": lambda x, i: x[i],
    "index_two": lambda x, i: x[i, i],
    "index_apart": lambda x, i: x[i, :, i],
    "index_inner": lambda x, i: x[:, i],
    "index_broadcast": lambda x, i: x[i[:, None], i[None, :]],
    "index_inner_two": lambda x, i: x[:, i, i],
    "index_constant": lambda x, i: x[[0, 2]],
    "index_negative": lambda x, i: x[-i],
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(2, i.expand(3, 3, 2).clone()),
    "take": lambda x, i: x.take(i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i.view(1, 1, 2), 2),
    "embedding": lambda x, i: F.embedding(i, x[0]),
    "masked_fill": lambda x, i: x.masked_fill(x > 3, 0.0),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 3, x * 10),
    "bucketize": lambda x, i: torch.bucketize(x, torch.tensor([-1.0, 3.0, 7.0])),
    "searchsorted": lambda x, i: torch.searchsorted(torch.tensor([-1.0, 3.0, 7.0]), x, right=True),
}
WRITES = {
    "scatter": lambda x, i: x.scatter(2, i.expand(3, 3, 2).clone(), 9.0),
    "scatter_src": lambda x, i: x.scatter(0, i.expand(3, 3, 2).clone(), x * 2),
    "scatter_add": lambda x, i: x.scatter_add(1, i.expand(3, 3, 2).clone(), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(2, i.expand(3, 3, 2).clone(), x, "amax"),
    "scatter_prod": lambda x, i: x.scatter_reduce(2, i.expand(3, 3, 2).clone(), x, "prod", include_self=False),
    "index_add": lambda x, i: x.index_add(1, i, x[:, :2], alpha=2),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(2, i, -1.0),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index_put_add": lambda x, i: x.index_put((i, i), torch.tensor(2.0), accumulate=True),
    "index_put_inner": lambda x, i: torch.ops.aten.index_put(x, [None, i], x[:, :2] * 3),
    "index_put_repeat": lambda x, i: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "index_put_mask": lambda x, i: x.index_put((x > 3,), torch.tensor(0.5)),
}


def test_indexing() -> None:
    check_family(READS | WRITES, [_numbers(3, 3, 4), torch.tensor([2, 0])])


def _add_into(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1].add_(10)
    y[0] = 5
    y[:, ::2] *= 2
    y.t()[1:].sub_(1)
    return y


def _view_sees_base(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone()
    first, flat = y[0], y.view(-1)
    y.mul_(2)
    flat[3] = -1
    return first, y, flat


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y.copy_(x).relu_().add_(1).clamp_(max=3)
    y[x > 4] = 100
    a, b = y.split(2, 1)
    a.zero_()
    b += 1
    return y


def test_in_place_ops() -> None:
    check_family({"write": _add_into, "views": _view_sees_base, "chain": _chain}, [_numbers(3, 4)])
