"""ATen reductions, scans, sorting, matrix products, norms, convolutions, recurrent layers against eager torch."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch_exports import assert_same, check_family, export, flat, imported_results  # noqa: E402


@cache  # made in eager mode first, so that an export sees constants and no generator
def _floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


REDUCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.int().sum(0), x.sum(dtype=torch.float64)),
    "mean": lambda x: (x.mean(), x.mean(-1, True)),
    "prod": lambda x: (x.prod(), x.prod(1)),
    "amax": lambda x: (x.amax(), x.amax((0, 1)), x.amin(2, True)),
    "max": lambda x: (x.max(), x.min()),
    "max_dim": lambda x: (*x.max(1), *x.min(-1, True)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmin(0, True)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1), x.bool().all(2, True), (x > -9).all()),
    "var": lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0, keepdim=True), x.var(1, False)),
    "std": lambda x: (x.std(1), *torch.std_mean(x, 2), *torch.var_mean(x, (0, 1), unbiased=False)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 2), True)),
    "count": lambda x: x.round().count_nonzero(1),
    "norm": lambda x: (x.norm(), x.norm(1, 2), x.norm(3, 1, True), torch.linalg.norm(x[0])),
    "vector_norm": lambda x: [
        torch.linalg.vector_norm(x, p, (1, 2)) for p in (0, 1, 2, 3.5, float("inf"), -float("inf"))
    ],
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
    "nansum": lambda x: x.log().nansum(1),
    "nanmean": lambda x: x.log().nanmean(),
    "median": lambda x: (x.median(), *x.median(1)),
    "cumsum": lambda x: (x.cumsum(1), x.int().cumsum(0)),
    "cumprod": lambda x: x.cumprod(2),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: (*x.round().cummax(1), *x.cummin(0)),
    "diff": lambda x: (x.diff(), x.diff(2, 1)),
    "topk": lambda x: (*x.topk(2), *x.topk(3, 1, False)),
    "sort": lambda x: (*x.sort(), *x.sort(1, descending=True), x.argsort(0)),
    "kthvalue": lambda x: tuple(x.kthvalue(2, 1)),
    "dist": lambda x: (torch.dist(x, x * 2, 1), torch.cdist(x, x + 1)),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, 2),
    "normalize": lambda x: F.normalize(x, dim=1),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "histc": lambda x: x.histc(4, -2, 2),
    "bool_max": lambda x: (x > 0).amax(1),
    "int_mean": lambda x: x.int().float().mean(),
}


def test_reductions() -> None:
    check_family(REDUCTIONS, [_floats(3, 5, 4)])


PRODUCTS = {
    "mm": lambda x, y: x[0] @ y[0],
    "bmm": lambda x, y: torch.bmm(x, y),
    "matmul_vector": lambda x, y: (x @ y[0, :, 0], x[0, 0] @ y),
    "matmul_broadcast": lambda x, y: (x.unsqueeze(1) @ y, x @ y[0]),
    "dot": lambda x, y: x[0, 0].dot(y[0, :, 1]),
    "mv": lambda x, y: x[0].mv(y[0, :, 0]),
    "outer": lambda x, y: torch.outer(x[0, 0], y[0, 0]),
    "addmm": lambda x, y: torch.addmm(x[0, :, :1], x[0], y[0], beta=0.5, alpha=2),
    "baddbmm": lambda x, y: torch.baddbmm(x[:, :, :1], x, y),
    "addbmm": lambda x, y: torch.addbmm(x[0, :, :1], x, y),
    "linear": lambda x, y: F.linear(x, y[0].t(), y[0, 0]),
    "inner": lambda x, y: torch.inner(x, x[0]),
    "tensordot": lambda x, y: torch.tensordot(x, y, ([2], [1])),
    "kron": lambda x, y: torch.kron(x[0], y[0, :2]),
    "cross": lambda x, y: torch.linalg.cross(x[..., :3], x[..., 1:4]),
    "bilinear": lambda x, y: F.bilinear(x[0], x[1], _floats(2, 4, 4), _floats(2)),
    "vecdot": lambda x, y: torch.linalg.vecdot(x, x + 1),
    "einsum": lambda x, y: (
        torch.einsum("bik,bkj->bij", x, y),
        torch.einsum("bik,bkj->ji", x, y),
        torch.einsum("bii->bi", x[:, :3, :3]),
        torch.einsum("...ik,...kj", x, y),
        torch.einsum("i,j->ij", x[0, 0], y[0, 0]),
        torch.einsum("bij->", x),
        torch.einsum("bik,bkj,bj->bi", x, y, y[:, 0]),
        torch.einsum("ij,ij->j", x[0], x[1]),
    ),
}


def test_products() -> None:
    check_family(PRODUCTS, [_floats(2, 3, 4), _floats(2, 4, 5, seed=1)])


def test_attention() -> None:
    q, k = _floats(2, 4, 5, 8), _floats(2, 4, 7, 8, seed=1)
    attend = F.scaled_dot_product_attention
    mask = _floats(5, 7, seed=2)
    check_family(
        {
            "plain": lambda q, k: attend(q, k, k),
            "causal": lambda q, k: attend(q, k, k, is_causal=True),
            "scale": lambda q, k: attend(q, k, k, scale=0.3),
            "float mask": lambda q, k: attend(q, k, k, attn_mask=mask),
            "bool mask": lambda q, k: attend(q, k, k, attn_mask=mask > -1),
            "batch mask": lambda q, k: attend(q, k, k, attn_mask=mask.expand(2, 1, 5, 7) > -1),
            "grouped": lambda q, k: attend(q, k[:, :2], k[:, :2], enable_gqa=True),
            "three dims": lambda q, k: attend(q[0], k[0], k[0]),
            "two dims": lambda q, k: attend(q[0, 0], k[0, 0], k[0, 0]),
            "broadcast": lambda q, k: attend(q, k[:1], k[:1]),
        },
        [q, k],
    )


NORMS = {
    "layer": lambda x: F.layer_norm(x, (6, 8)),
    "layer_affine": lambda x: F.layer_norm(x, (8,), _floats(8), _floats(8, seed=1), 1e-3),
    "rms": lambda x: (F.rms_norm(x, (8,), _floats(8)), F.rms_norm(x, (6, 8), eps=1e-3)),
    "group": lambda x: F.group_norm(x, 2, _floats(4), _floats(4, seed=1)),
    "instance": lambda x: F.instance_norm(x),
    "batch": lambda x: F.batch_norm(
        x, _floats(4), _floats(4, seed=1).abs() + 0.5, _floats(4, seed=2), _floats(4, seed=3)
    ),
    "batch_plain": lambda x: F.batch_norm(x, _floats(4), _floats(4, seed=1).abs() + 0.5),
    "local_response": lambda x: F.local_response_norm(x, 3),
}
CONVOLUTIONS = {
    "conv2d": lambda x: F.conv2d(x, _floats(6, 4, 3, 3), _floats(6), stride=2, padding=1),
    "conv2d_groups": lambda x: F.conv2d(x, _floats(8, 2, 3, 2), groups=2, dilation=(1, 2)),
    "conv2d_same": lambda x: F.conv2d(x, _floats(6, 4, 3, 2), padding="same"),
    "conv1d": lambda x: F.conv1d(x[0], _floats(3, 6, 3)),
    "conv1d_single": lambda x: F.conv1d(x[0, 0], _floats(3, 6, 3), padding=1),
    "conv3d": lambda x: F.conv3d(x.unsqueeze(1), _floats(2, 1, 2, 3, 3)),
    "transposed": lambda x: F.conv_transpose2d(x, _floats(4, 3, 3, 3), _floats(6), 2, 1, 1, groups=2),
    "transposed1d": lambda x: F.conv_transpose1d(x[0], _floats(6, 3, 4), stride=2),
    "max_pool": lambda x: (
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, 2, ceil_mode=True, stride=3),
        F.max_pool1d(x[0], 2),
    ),
    "max_pool_indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "avg_pool": lambda x: (
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool1d(x[0], 2),
    ),
    "avg_pool_ceil": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive": lambda x: (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 5)),
        F.adaptive_max_pool2d(x, (4, 3)),
    ),
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "fold": lambda x: F.fold(F.unfold(x, 2), (6, 8), 2),
    "nearest": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 9), mode="nearest-exact")),
    "bilinear": lambda x: (
        F.interpolate(x, (9, 5), mode="bilinear"),
        F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        F.interpolate(x, (9, 5), mode="bilinear", align_corners=True),
    ),
    "bicubic": lambda x: F.interpolate(x, (7, 9), mode="bicubic"),
    "linear": lambda x: F.interpolate(x[0], 5, mode="linear"),
    "grid_sample": lambda x: F.grid_sample(x, _floats(2, 3, 4, 2).clamp(-1, 1), align_corners=False),
}


def test_norms() -> None:
    check_family(NORMS, [_floats(2, 4, 6, 8)])


def test_convolutions() -> None:
    check_family(CONVOLUTIONS, [_floats(2, 4, 6, 8)])


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False}], ids=str
)
def test_recurrent_layers(kind: type, options: dict) -> None:
    torch.manual_seed(0)
    module, x = kind(5, 6, **options).eval(), _floats(3, 4, 5)
    with torch.no_grad():
        expected = flat(module(x))
    for found, wanted in zip(imported_results(export(module, [x]), [x]), expected, strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_recurrent_cells(kind: type) -> None:
    torch.manual_seed(0)
    module, x = kind(5, 6).eval(), _floats(3, 5)
    with torch.no_grad():
        expected = flat(module(x))
    for found, wanted in zip(imported_results(export(module, [x]), [x]), expected, strict=True):
        assert_same(found, wanted)
