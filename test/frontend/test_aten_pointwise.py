"""Elementwise ATen ops against eager torch."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from mlc.dialects.build import load_ops  # noqa: E402
from torch_exports import check_family  # noqa: E402


@cache  # made in eager mode first, so that an export sees constants and no generator
def _floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


_SPECIAL = torch.tensor([[0.0, -0.0, 1.0, -1.0, float("inf")], [float("-inf"), float("nan"), 0.5, -0.5, 2.5]])

# The pointwise ops of one operand that torch has by the same name, and those it has besides.
NAMESAKES = [
    definition.name
    for definition in load_ops().values()
    if definition.kind == "pointwise" and len(definition.operands) == 1 and hasattr(torch, definition.name)
]
BESIDES = ["square", "frac", "isfinite", "isposinf", "isneginf", "nan_to_num", "signbit", "deg2rad", "rad2deg", "sinc"]
OTHER_NAMES = ["sgn", "logit", "absolute", "negative", "arccos", "arcsinh", "positive", "fix"]


@pytest.mark.parametrize("x", [_SPECIAL, _floats(3, 7), _floats(3, 7).abs() * 0.99], ids=["special", "normal", "unit"])
def test_functions_of_one_float(x: torch.Tensor) -> None:
    names = [name for name in NAMESAKES + BESIDES + OTHER_NAMES if name != "bitwise_not"]
    check_family({name: getattr(torch, name) for name in names} | {"entr": torch.special.entr}, [x])


def test_functions_of_one_integer() -> None:
    x = torch.tensor([[-3, 0, 2], [7, 1, -1]])
    names = ["abs", "neg", "sign", "sqrt", "exp", "floor", "ceil", "round", "sigmoid", "square", "isfinite"]
    names += ["logical_not", "bitwise_not", "reciprocal"]
    check_family({name: getattr(torch, name) for name in names}, [x])


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "prelu": lambda x: F.prelu(x, torch.full((4,), 0.25)),
    "glu": lambda x: F.glu(x, 1),
    "rrelu": lambda x: F.rrelu(x),
    "softmax": lambda x: F.softmax(x, -1),
    "softmin": lambda x: F.softmin(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "softmax_dtype": lambda x: F.softmax(x, 1, dtype=torch.float64),
    "dropout": lambda x: F.dropout(x, 0.5, False),
}


def test_activations() -> None:
    check_family(ACTIVATIONS, [_floats(3, 4, 6) * 3])


BINARY = {
    "add": lambda x, y: x + y,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: torch.rsub(x, y, alpha=3),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "where": lambda x, y: torch.where(x > y, x, y),
    "max_other": torch.max,
    "scalar": lambda x, y: 2 - x + 3.5 * y / 4,
    "pow2": lambda x, y: x**2 + y**3,
    "scalar_pow": lambda x, y: 2.0**x,
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clamp_tensor": lambda x, y: x.clamp(min=y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 5),
    "where_scalar": lambda x, y: torch.where(x > 0, x, 0),
}
FLOAT_BINARY = {
    "pow": lambda x, y: x.abs() ** y,
    "sqrt_pow": lambda x, y: x.abs() ** 0.5,
    "inverse_pow": lambda x, y: x**-1,
    "atan2": torch.atan2,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "heaviside": torch.heaviside,
    "isclose": torch.isclose,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_tensor": lambda x, y: torch.lerp(x, y, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2.0),
}


def test_functions_of_two_floats() -> None:
    check_family(BINARY | FLOAT_BINARY, [_floats(3, 1, 5), _floats(4, 5, seed=1) * 2])


def test_functions_of_two_integers() -> None:
    x, y = torch.tensor([[7, -7, 5], [0, 3, -4]]), torch.tensor([3, -2, 4])
    bits = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "invert": lambda x, y: ~x,
        "left": lambda x, y: x << y.abs(),
        "right": lambda x, y: x >> y.abs(),
    }
    check_family(BINARY | bits, [x, y])


def test_booleans() -> None:
    x, y = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    check_family(
        {
            "add": lambda x, y: x + y,
            "mul": lambda x, y: x * y,
            "and": lambda x, y: x & y,
            "not": lambda x, y: ~x,
            "number": lambda x, y: x + 1,
            "float": lambda x, y: x * 0.5,
            "sum": lambda x, y: x.sum(),
            "eq": lambda x, y: x == y,
        },
        [x, y],
    )


def test_type_promotion() -> None:
    """A 0-D tensor or a number does not widen a tensor of its own category."""
    check_family(
        {
            "f32 * f64 0-D": lambda x, i, h: x * torch.tensor(2.0, dtype=torch.float64),
            "i32 + 0.5": lambda x, i, h: i + 0.5,
            "i32 + i64 0-D": lambda x, i, h: i + torch.tensor(3),
            "i32 + i64": lambda x, i, h: i + torch.ones(3, dtype=torch.int64),
            "i32 * f32 0-D": lambda x, i, h: i * torch.tensor(1.5),
            "bf16 + f32": lambda x, i, h: h + x,
            "bf16 + 1": lambda x, i, h: h + 1,
            "i32 / i32": lambda x, i, h: i / 2,
            "u8 + i8": lambda x, i, h: i.to(torch.uint8) + i.to(torch.int8),
            "compare": lambda x, i, h: i > 1.5,
            "to": lambda x, i, h: (
                x.to(torch.int32),
                i.to(torch.float16),
                x.bool(),
                x.double(),
                h.float(),
                x.type_as(i),
            ),
        },
        [
            torch.tensor([1.5, -2.5, 3.0]),
            torch.tensor([1, 2, 3], dtype=torch.int32),
            torch.ones(3, dtype=torch.bfloat16),
        ],
    )


def test_losses() -> None:
    x, y = _floats(4, 3).sigmoid(), _floats(4, 3, seed=1).sigmoid()
    labels = torch.tensor([0, 2, 1, -100])
    check_family(
        {
            "mse": F.mse_loss,
            "l1": F.l1_loss,
            "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.2),
            "huber": lambda x, y: F.huber_loss(x, y, reduction="sum", delta=0.3),
            "bce": F.binary_cross_entropy,
            "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(2.0)),
            "kl": lambda x, y: F.kl_div(x.log(), y, reduction="batchmean"),
            "kl_log": lambda x, y: F.kl_div(x.log(), y.log(), reduction="none", log_target=True),
            "cross_entropy": lambda x, y: F.cross_entropy(x, labels),
            "cross_entropy_weight": lambda x, y: F.cross_entropy(x, labels, weight=torch.tensor([1.0, 2.0, 0.5])),
            "cross_entropy_soft": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"),
            "nll": lambda x, y: F.nll_loss(x.log(), labels, reduction="sum"),
            "poisson": F.poisson_nll_loss,
            "cosine": F.cosine_similarity,
            "pairwise": F.pairwise_distance,
            "triplet": lambda x, y: F.triplet_margin_loss(x, y, x + y),
            "full": lambda x, y: F.poisson_nll_loss(x, y * 3, False, True),
            "ranking": lambda x, y: F.margin_ranking_loss(x, y, (x - 0.5).sign(), 0.1),
            "hinge": lambda x, y: F.hinge_embedding_loss(x, (y - 0.5).sign()),
            "soft_margin": lambda x, y: F.soft_margin_loss(x, (y - 0.5).sign()),
            "cosine_embedding": lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, -1]), 0.2),
        },
        [x, y],
    )
