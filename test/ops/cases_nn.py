"""Rows of the contractions, windows, normalisations, attention and recurrent layers."""

from __future__ import annotations

import itertools

import numpy as np
from case import FLOATS, Case

_WIDE = ("f32", "f64")
_RANK = {1: "1d", 2: "2d", 3: "3d"}


def _functional(t, name: str, rank: int):
    return getattr(t.nn.functional, name + _RANK[rank])


def _first(layout: str, x):
    return x if layout == "nchw" else x.movedim(-1, 1)


def _last(layout: str, x):
    return x if layout == "nchw" else x.movedim(1, -1)


def _in_f32(oracle):
    """`oracle` run in f32 on narrow floats and rounded once: torch's own kernels for those round in between."""

    def wide(t, *tensors, **attrs):
        narrow = next((x.dtype for x in tensors if x is not None and x.dtype in (t.float16, t.bfloat16)), None)
        if narrow is None:
            return oracle(t, *tensors, **attrs)
        widened = [x.float() if x is not None and x.dtype == narrow else x for x in tensors]
        return oracle(t, *widened, **attrs).to(narrow)

    return wide


# matmul --------------------------------------------------------------------------------------------------------------
def _matmul(t, a, b, transpose_a=False, transpose_b=False):
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


_MATMULS = (
    ((1, 1), (1, 1)), ((5, 7), (7, 3)), ((17, 64), (64, 33)), ((32, 48), (48, 64)), ((2, 3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (4, 5, 6)), ((3, 4, 130), (130, 9)), ((1, 37), (37, 100)), ((4, 0), (0, 3)),
)


def _turn(shape, is_turned: bool):
    return (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape


_MATMUL_CASES = [
    Case(
        "matmul", [_turn(a, ta), _turn(b, tb)], FLOATS if not ta else _WIDE, {"transpose_a": ta, "transpose_b": tb},
        length=a[-1], magnitude=16.0, oracle=_matmul,
    )
    for a, b in _MATMULS
    for ta, tb in ((False, False), (False, True), (True, False))
] + [
    # Many rows: the second operand is packed at run time.
    Case("matmul", [a, b], _WIDE, {"transpose_a": ta, "transpose_b": tb}, length=70, magnitude=16.0, oracle=_matmul)
    for a, b, ta, tb in (
        ((200, 70), (70, 77), False, False),
        ((70, 193), (77, 70), True, True),
        ((2, 3, 192, 70), (3, 70, 64), False, False),
    )
] + [Case("matmul", [(5, 7), (7, 9)], ("i64", "i32", "u8"), oracle=_matmul)]


# convolution ---------------------------------------------------------------------------------------------------------
def _conv(t, x, w, bias, strides, pads_low, pads_high, dilations, groups=1, layout="nchw"):
    x = _first(layout, x)
    widths = [n for pair in reversed(list(zip(pads_low, pads_high, strict=True))) for n in pair]
    y = _functional(t, "conv", len(strides))(t.nn.functional.pad(x, widths), w, bias, strides, 0, dilations, groups)
    return _last(layout, y)


def _conv_transpose(t, x, w, bias, strides, pads_low, pads_high, output_pads, dilations, groups=1, layout="nchw"):
    x = _first(layout, x)
    y = _functional(t, "conv_transpose", len(strides))(x, w, bias, strides, pads_low, output_pads, groups, dilations)
    return _last(layout, y)


# spatial sizes, kernel, strides, low pads, high pads, dilations
_WINDOWS = (
    ([9], [3], [1], [1], [1], [1]), ([40], [4], [2], [3], [0], [3]), ([8, 9], [3, 3], [1, 1], [1, 1], [1, 1], [1, 1]),
    ([11, 7], [3, 2], [2, 1], [0, 1], [1, 0], [2, 1]), ([6, 37], [1, 1], [1, 1], [0, 0], [0, 0], [1, 1]),
    ([4, 5, 6], [2, 3, 2], [1, 2, 1], [1, 1, 0], [1, 1, 0], [1, 1, 2]),
)


def _conv_rows() -> list[Case]:
    rows = []
    for (sizes, kernel, strides, low, high, dilations), (channels, outputs, groups), layout in itertools.product(
        _WINDOWS, ((3, 5, 1), (4, 6, 2), (8, 8, 8)), ("nchw", "nhwc")
    ):
        shape = (2, channels, *sizes) if layout == "nchw" else (2, *sizes, channels)
        attrs = {
            "strides": strides, "pads_low": low, "pads_high": high, "dilations": dilations, "groups": groups,
            "layout": layout,
        }
        terms = channels // groups * int(np.prod(kernel))
        bias = (outputs,) if groups != 2 else None
        dtypes = FLOATS if len(sizes) == 2 else ("f32",)
        rows.append(
            Case(
                "conv", [shape, (outputs, channels // groups, *kernel), bias], dtypes, attrs, length=terms,
                magnitude=16.0, oracle=_conv,
            )
        )
        attrs = attrs | {"output_pads": [s - 1 for s in strides], "pads_high": low}
        bias = (outputs,) if groups != 2 else None
        rows.append(
            Case(
                "conv_transpose", [shape, (channels, outputs // groups, *kernel), bias], dtypes, attrs, length=terms,
                magnitude=16.0, oracle=_in_f32(_conv_transpose),
            )
        )
    return rows


# pooling -------------------------------------------------------------------------------------------------------------
def _max_pool(t, x, kernel, strides, pads_low, pads_high, dilations, layout="nchw"):
    values, indices = _functional(t, "max_pool", len(kernel))(
        _first(layout, x), kernel, strides, pads_low, dilations, return_indices=True
    )
    return [_last(layout, values), _last(layout, indices)]


def _avg_pool(t, x, kernel, strides, pads_low, pads_high, count_include_pad=False, ceil_high=(), layout="nchw"):
    y = _functional(t, "avg_pool", len(kernel))(
        _first(layout, x), kernel, strides, pads_low, ceil_mode=bool(ceil_high), count_include_pad=count_include_pad
    )
    return _last(layout, y)


def _adaptive(kind: str):
    def oracle(t, x, output, layout="nchw"):
        return _last(layout, _functional(t, f"adaptive_{kind}_pool", len(output))(_first(layout, x), output))

    return oracle


# spatial sizes, kernel, strides, pads on both sides, dilations
_POOLS = (
    ([9], [2], [2], [0], [1]), ([8, 9], [3, 3], [2, 2], [1, 1], [1, 1]), ([7, 37], [3, 2], [1, 1], [1, 0], [2, 1]),
    ([4, 5, 6], [2, 2, 2], [2, 1, 2], [0, 1, 0], [1, 1, 1]),
)


def _pool_rows() -> list[Case]:
    rows = []
    for (sizes, kernel, strides, pads, dilations), layout in itertools.product(_POOLS, ("nchw", "nhwc")):
        shape = (2, 3, *sizes) if layout == "nchw" else (2, *sizes, 3)
        attrs = {"kernel": kernel, "strides": strides, "pads_low": pads, "pads_high": pads, "layout": layout}
        terms = int(np.prod(kernel))
        most = attrs | {"dilations": dilations}
        rows += [
            Case("max_pool", [shape], FLOATS, most, special=True, oracle=lambda t, x, **a: _max_pool(t, x, **a)[0]),
            Case("max_pool", [shape], ("u8", "i32"), most),
            Case("max_pool_with_indices", [shape], _WIDE, most, oracle=_max_pool),
            Case("max_pool_indices", [shape], _WIDE, most, oracle=lambda t, x, **a: _max_pool(t, x, **a)[1]),
        ]
        mean = {"length": terms, "magnitude": 4.0, "oracle": _avg_pool}
        rows += [
            Case("avg_pool", [shape], FLOATS, attrs | {"count_include_pad": counts}, **mean) for counts in (False, True)
        ]
    mean = {"length": 9, "magnitude": 4.0, "oracle": _avg_pool}
    for counts in (False, True):
        attrs = {"kernel": [3, 3], "strides": [3, 3], "pads_low": [1, 1], "pads_high": [1, 1], "ceil_high": [1, 0]}
        rows.append(Case("avg_pool", [(2, 3, 9, 10)], FLOATS, attrs | {"count_include_pad": counts}, **mean))
    for layout, (sizes, output) in itertools.product(
        ("nchw", "nhwc"), (([9], [4]), ([8, 12], [4, 3]), ([7, 37], [3, 11]), ([5, 6], [7, 6]), ([4, 5, 6], [2, 1, 4]))
    ):
        shape = (2, 3, *sizes) if layout == "nchw" else (2, *sizes, 3)
        attrs = {"output": output, "layout": layout}
        average = _in_f32(_adaptive("avg"))
        rows.append(Case("adaptive_avg_pool", [shape], FLOATS, attrs, length=16, magnitude=4.0, oracle=average))
        rows.append(Case("adaptive_max_pool", [shape], _WIDE, attrs, oracle=_adaptive("max")))
    return rows


# resize, grid_sample -------------------------------------------------------------------------------------------------
_TORCH_MODES = {
    ("nearest", 2): "nearest", ("nearest", 1): "nearest", ("linear", 1): "linear", ("linear", 2): "bilinear",
    ("linear", 3): "trilinear", ("cubic", 2): "bicubic", ("nearest", 3): "nearest",
}


def _resize(t, x, sizes, mode, coordinate="half_pixel", nearest="floor", antialias=False, layout="nchw", **_):
    name = _TORCH_MODES[mode, len(sizes)]
    if mode == "nearest":
        name = "nearest" if coordinate == "asymmetric" else "nearest-exact"
        return _last(layout, t.nn.functional.interpolate(_first(layout, x), sizes, mode=name))
    y = t.nn.functional.interpolate(
        _first(layout, x), sizes, mode=name, align_corners=coordinate == "align_corners", antialias=antialias
    )
    return _last(layout, y)


def _resize_row(sizes, to, mode, layout="nchw", dtypes=("f32", "f64", "bf16"), **attrs) -> Case:
    shape = (2, 3, *sizes) if layout == "nchw" else (2, *sizes, 3)
    return Case(
        "resize", [shape], dtypes, {"sizes": to, "mode": mode, "layout": layout, **attrs},
        length=1 if mode == "nearest" else 64, magnitude=4.0, oracle=_resize if "scales" not in attrs else None,
    )


def _resize_rows() -> list[Case]:
    rows = []
    for (sizes, to), layout in itertools.product(
        (([9], [20]), ([5, 7], [10, 14]), ([8, 9], [5, 37]), ([4, 4], [4, 9]), ([2, 3, 4], [4, 5, 3])), ("nchw", "nhwc")
    ):
        rows += [
            _resize_row(sizes, to, "nearest", layout, coordinate="asymmetric", nearest="floor"),
            _resize_row(sizes, to, "nearest", layout, coordinate="half_pixel", nearest="round_prefer_ceil"),
            _resize_row(sizes, to, "linear", layout, ("f32",), coordinate="half_pixel"),
            _resize_row(sizes, to, "linear", layout, ("f32",), coordinate="align_corners"),
        ]
        if len(sizes) == 2:
            rows += [
                _resize_row(sizes, to, "cubic", layout, ("f32",), coordinate=c) for c in ("half_pixel", "align_corners")
            ]
            rows.append(_resize_row(sizes, to, "linear", layout, ("f32",), antialias=True))
            rows.append(_resize_row(sizes, to, "cubic", layout, ("f32",), antialias=True, cubic_coeff_a=-0.5))
    rows += [
        _resize_row([5, 9], [8, 5], mode, dtypes=("f32",), coordinate=coordinate, nearest=nearest, scales=[1.7, 0.6])
        for mode, coordinate, nearest in (
            ("nearest", "half_pixel", "ceil"), ("nearest", "asymmetric", "round_prefer_floor"),
            ("linear", "asymmetric", "floor"), ("cubic", "pytorch_half_pixel", "floor"),
        )
    ]
    rows.append(_resize_row([5, 9], [8, 5], "cubic", dtypes=("f32",), exclude_outside=True, scales=[1.6, 0.6]))
    return rows


def _grid_sample(t, x, grid, mode="linear", padding_mode="zeros", align_corners=False):
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return t.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)


_GRID_CASES = [
    Case(
        "grid_sample", [shape, grid], _WIDE, {"mode": mode, "padding_mode": padding, "align_corners": corners},
        domain=[(-4, 4), (-1.5, 1.5)], length=16, magnitude=40.0, oracle=_grid_sample,
    )
    for shape, grid, modes in (
        ((2, 3, 7, 9), (2, 5, 37, 2), ("nearest", "linear", "cubic")),
        ((2, 3, 4, 5, 6), (2, 3, 4, 5, 3), ("nearest", "linear")),
    )
    for mode in modes
    for padding in ("zeros", "border", "reflection")
    for corners in (False, True)
]


# normalisation -------------------------------------------------------------------------------------------------------
_SOFTMAX_ROWS = (((5,), 0), ((3, 37), 1), ((3, 64), 1), ((3, 37), 0), ((2, 5, 7), 1), ((1, 1), 1), ((2, 3, 131), 2))


def _layer_norm(t, x, weight, bias, axis, epsilon):
    return t.layer_norm(x, x.shape[axis:], weight, bias, epsilon)


def _rms_norm(t, x, weight, axis, epsilon):
    return t.rms_norm(x, x.shape[axis:], weight, epsilon)


def _group_norm(t, x, weight, bias, groups, epsilon, layout):
    return _last(layout, t.nn.functional.group_norm(_first(layout, x), groups, weight, bias, epsilon))


def _norm_rows() -> list[Case]:
    rows = []
    for name, magnitude in (("softmax", 1.0), ("log_softmax", 60.0)):
        rows += [
            Case(
                name, [shape], FLOATS, {"axis": axis}, domain=(-30, 30), length=shape[axis], magnitude=magnitude,
                oracle=_in_f32(lambda t, x, axis, name=name: getattr(t, name)(x, axis)),
            )
            for shape, axis in _SOFTMAX_ROWS
        ]
    row = {"length": 16, "magnitude": 16.0, "ulps": 8.0}
    for shape, axis in (((3, 37), 1), ((3, 64), 1), ((2, 3, 5, 7), 2), ((4, 1), 1), ((2, 3, 768), 2)):
        scale, attrs = shape[axis:], {"axis": axis, "epsilon": 1e-5}
        rows += [
            Case("layer_norm", [shape, weight, bias], FLOATS, attrs, oracle=_in_f32(_layer_norm), **row)
            for weight, bias in ((scale, scale), (scale, None), (None, None))
        ]
        rows += [
            Case("rms_norm", [shape, weight], FLOATS, attrs, oracle=_in_f32(_rms_norm), **row)
            for weight in (scale, None)
        ]
    for layout, (sizes, channels, groups) in itertools.product(
        ("nchw", "nhwc"), (((5,), 6, 3), ((4, 9), 8, 2), ((3, 3), 4, 4), ((2, 3, 4), 6, 1))
    ):
        shape = (2, channels, *sizes) if layout == "nchw" else (2, *sizes, channels)
        attrs = {"groups": groups, "epsilon": 1e-5, "layout": layout}
        rows += [
            Case("group_norm", [shape, scale, scale], FLOATS, attrs, oracle=_in_f32(_group_norm), **row)
            for scale in ((channels,), None)
        ]
    return rows


# attention -----------------------------------------------------------------------------------------------------------
def _attention(t, q, k, v, mask=None, scale=1.0, is_causal=False, before=None, after=None):
    if before is not None:
        ahead = t.arange(k.shape[-2]) - t.arange(q.shape[-2])[:, None]
        mask = (ahead >= -before) & (ahead <= after)
    return t.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=True
    )


def _keeps(rng, shape, dtype):
    keeps = rng.random(shape) < 0.6
    keeps[..., 0, :] = False  # one query that sees nothing
    return keeps


def _attention_rows() -> list[Case]:
    rows = []
    for heads, groups, queries, keys, depth, width in (
        (1, 1, 1, 1, 8, 8), (4, 4, 7, 9, 16, 16), (4, 2, 5, 37, 8, 12), (6, 1, 33, 64, 32, 32),
    ):
        shapes = [(2, heads, queries, depth), (2, groups, keys, depth), (2, groups, keys, width)]
        row = {"domain": (-2, 2), "length": keys + depth, "magnitude": 4.0, "oracle": _in_f32(_attention)}
        attrs = {"scale": depth**-0.5}
        rows += [
            Case("attention", [*shapes, None], FLOATS, attrs, **row),
            Case("attention", [*shapes, None], FLOATS, attrs | {"is_causal": True}, **row),
            Case("attention", [*shapes, None], FLOATS, attrs | {"before": 2, "after": keys - 3}, name="band", **row),
            Case("attention", [*shapes, (2, 1, queries, keys)], _WIDE, attrs, make={3: _keeps}, name="bool", **row),
            Case("attention", [*shapes, (queries, keys)], FLOATS, attrs, name="added", **row),
        ]
    rows.append(
        Case(
            "attention", [(3, 5, 8), (3, 6, 8), (3, 6, 4), None], ("f32",), {"scale": 0.3}, length=14, magnitude=4.0,
            domain=(-2, 2), oracle=lambda t, *x, scale: _attention(t, *(v[None] for v in x[:3]), None, scale)[0],
        )
    )
    return rows


# recurrent -----------------------------------------------------------------------------------------------------------
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch gate i is gate _ORDER[i] of ours


def _torch_gates(name: str, x):
    return x.reshape(len(_ORDER[name]), -1, *x.shape[1:])[list(_ORDER[name])].reshape(x.shape)


def _layer(name: str, state_count: int):
    def oracle(t, x, w, r, bias, *states, direction="forward", activation="tanh", linear_before_reset=True):
        if direction == "reverse" or not linear_before_reset:
            raise NotImplementedError("not implemented for torch")
        directions, hidden = w.shape[0], r.shape[2]
        more = {"nonlinearity": activation} if name == "RNN" else {}
        layer = getattr(t.nn, name)(x.shape[2], hidden, bidirectional=directions == 2, dtype=x.dtype, **more)
        bias = t.zeros(directions, 2 * r.shape[1], dtype=x.dtype) if bias is None else bias
        for d, suffix in zip(range(directions), ("", "_reverse"), strict=False):
            halves = bias[d].reshape(2, r.shape[1])
            parts = (("weight_ih", w[d]), ("weight_hh", r[d]), ("bias_ih", halves[0]), ("bias_hh", halves[1]))
            for part, value in parts:
                getattr(layer, f"{part}_l0{suffix}").data = _torch_gates(name, value)
        given = [t.zeros(directions, x.shape[1], hidden, dtype=x.dtype) if s is None else s for s in states]
        y, last = layer(x, tuple(given) if state_count == 2 else given[0])
        y = y.reshape(*x.shape[:2], directions, hidden).transpose(1, 2)
        return [y, *(last if state_count == 2 else [last])]

    return oracle


def _recurrent_rows() -> list[Case]:
    rows = []
    for name, gates, states in (("lstm", 4, 2), ("gru", 3, 1), ("rnn", 1, 1)):
        for direction, (steps, batch, width, hidden), is_full in itertools.product(
            ("forward", "reverse", "bidirectional"), ((1, 1, 3, 4), (5, 3, 7, 9)), (True, False)
        ):
            directions = 1 + (direction == "bidirectional")
            state = (directions, batch, hidden) if is_full else None
            shapes = [
                (steps, batch, width), (directions, gates * hidden, width), (directions, gates * hidden, hidden),
                (directions, 2 * gates * hidden) if is_full else None, *[state] * states,
            ]
            choices = {
                "lstm": ({},), "gru": ({"linear_before_reset": True}, {"linear_before_reset": False}),
                "rnn": ({"activation": "tanh"}, {"activation": "relu"}),
            }[name]
            for more in choices:
                rows.append(
                    Case(
                        name, shapes, _WIDE, {"direction": direction, **more}, domain=(-1, 1),
                        length=steps * (width + hidden), magnitude=1.0 if more.get("activation") != "relu" else 50.0,
                        oracle=_layer(name.upper(), states),
                    )
                )
    return rows


CASES: list[Case] = [
    *_MATMUL_CASES, *_conv_rows(), *_pool_rows(), *_resize_rows(), *_GRID_CASES, *_norm_rows(), *_attention_rows(),
    *_recurrent_rows(),
]
