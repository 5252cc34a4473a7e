"""ATen rows: convolution, pooling, resampling."""

from __future__ import annotations

import math
from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.report import UnsupportedCaseError


def _each(value: Any, rank: int) -> list[Any]:
    """One number a spatial dimension from a number or a list of one or all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values


def _batched(b: AtenBuilder, x: Any, rank: int) -> tuple[Any, bool]:
    """`x` with a batch dimension, and whether it was added."""
    is_single = len(x.shape) == rank + 1
    return (b.unsqueeze(x, 0) if is_single else x), is_single


# --- convolution ---


@row("aten.conv1d", "aten.conv2d", "aten.conv3d")
def conv(
    b: AtenBuilder, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    rank = len(weight.shape) - 2
    x, is_single = _batched(b, x, rank)
    dilations = _each(dilation, rank)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, weight.shape[2:], strict=True)]
        low = [amount // 2 for amount in total]
        high = [amount - before for amount, before in zip(total, low, strict=True)]
    else:
        low = high = _each(padding, rank)
    result = b.op(
        "conv", x, weight, bias, strides=_each(stride, rank), pads_low=low, pads_high=high, dilations=dilations,
        groups=groups,
    )  # fmt: skip
    return b.squeeze(result, 0) if is_single else result


@row("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def conv_transpose(
    b: AtenBuilder, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    rank = len(weight.shape) - 2
    x, is_single = _batched(b, x, rank)
    pads = _each(padding, rank)
    result = b.op(
        "conv_transpose", x, weight, bias, strides=_each(stride, rank), pads_low=pads, pads_high=pads,
        output_pads=_each(output_padding, rank), dilations=_each(dilation, rank), groups=groups,
    )  # fmt: skip
    return b.squeeze(result, 0) if is_single else result


@row("aten.convolution", "aten._convolution")
def convolution(
    b: AtenBuilder, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *flags: Any,
) -> Any:  # fmt: skip
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


@row("aten.conv_tbc")
def conv_tbc(b: AtenBuilder, x: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """x [T, B, C], weight [K, C, O]."""
    result = conv(b, b.transpose(x, [1, 2, 0]), b.transpose(weight, [2, 1, 0]), bias, 1, pad)
    return b.transpose(result, [2, 0, 1])


# --- pooling ---


def _ceil_pads(
    b: AtenBuilder, x: Any, kernel: list[int], strides: list[int], low: list[int], dilations: list[int]
) -> list[Any]:
    """Extra high padding that makes room for ceil mode's windows; one that starts beyond the input does not count."""
    extra = []
    for axis, (k, s, p, d) in enumerate(zip(kernel, strides, low, dilations, strict=True)):
        size = x.shape[axis - len(kernel)]
        span = size + 2 * p - d * (k - 1) - 1
        missing = -span % s
        if not isinstance(missing, int):
            if s == 1:
                missing = 0
            else:
                raise UnsupportedCaseError("pooling in ceil mode over a dynamic size")
        windows = dims.ceildiv(span, s) + 1
        if isinstance(windows, int) and (windows - 1) * s >= size + p:
            missing = 0
        extra.append(missing)
    return extra


def _window(b: AtenBuilder, x: Any, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    kernel = _each(kernel, rank)
    return kernel, _each(stride, rank) if stride else kernel, _each(padding, rank), _each(dilation, rank)


def _max_pool(
    b: AtenBuilder, op: str, rank: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Any:
    kernel, strides, low, dilations = _window(b, x, rank, kernel, stride, padding, dilation)
    x, is_single = _batched(b, x, rank)
    extra = _ceil_pads(b, x, kernel, strides, low, dilations) if ceil else [0] * rank
    high = [p + e for p, e in zip(low, extra, strict=True)]
    result = b.op(op, x, kernel=kernel, strides=strides, pads_low=low, pads_high=high, dilations=dilations)
    if not is_single:
        return result
    return tuple(b.squeeze(part, 0) for part in result) if isinstance(result, tuple) else b.squeeze(result, 0)


for _rank in (1, 2, 3):

    @row(f"aten.max_pool{_rank}d")
    def _max_pool_row(
        b: AtenBuilder, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, rank: int = _rank,
    ) -> Any:  # fmt: skip
        return _max_pool(b, "max_pool", rank, x, kernel_size, stride, padding, dilation, ceil_mode)

    @row(f"aten.max_pool{_rank}d_with_indices")
    def _max_pool_indices_row(
        b: AtenBuilder, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, rank: int = _rank,
    ) -> Any:  # fmt: skip
        return _max_pool(b, "max_pool_with_indices", rank, x, kernel_size, stride, padding, dilation, ceil_mode)

    @row(f"aten.avg_pool{_rank}d")
    def _avg_pool_row(
        b: AtenBuilder, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None, rank: int = _rank,
    ) -> Any:  # fmt: skip
        kernel, strides, low, ones = _window(b, x, rank, kernel_size, stride, padding, 1)
        x, is_single = _batched(b, x, rank)
        extra = _ceil_pads(b, x, kernel, strides, low, ones) if ceil_mode else [0] * rank
        result = b.op(
            "avg_pool", x, kernel=kernel, strides=strides, pads_low=low, pads_high=low, ceil_high=extra,
            count_include_pad=count_include_pad,
        )  # fmt: skip
        if divisor_override:
            if ceil_mode or not count_include_pad:
                raise UnsupportedCaseError("avg_pool with divisor_override in ceil mode or not counting padding")
            result = b.mul(result, math.prod(kernel) / divisor_override, x.dtype)
        return b.squeeze(result, 0) if is_single else result

    @row(f"aten.adaptive_avg_pool{_rank}d")
    def _adaptive_avg_row(b: AtenBuilder, x: Any, output_size: Any, rank: int = _rank) -> Any:
        return _adaptive(b, "adaptive_avg_pool", "mean", x, output_size, rank)

    @row(f"aten.adaptive_max_pool{_rank}d")
    def _adaptive_max_row(b: AtenBuilder, x: Any, output_size: Any, rank: int = _rank) -> Any:
        result = _adaptive(b, "adaptive_max_pool", "max", x, output_size, rank)
        if len(b.outs) < 2:
            return result
        if any(size != 1 for size in _each(output_size, rank)):
            return result, None
        flat = b.reshape(x, [*x.shape[:-rank], dims.product(x.shape[-rank:])])
        at = b.op("argmax", flat, axis=len(flat.shape) - 1, keepdims=False)
        return result, b.reshape(at, list(result.shape))


@row("aten._adaptive_avg_pool2d")
def adaptive_avg_pool2d(b: AtenBuilder, x: Any, output_size: Any) -> Any:
    return _adaptive(b, "adaptive_avg_pool", "mean", x, output_size, 2)


@row("aten._adaptive_avg_pool3d")
def adaptive_avg_pool3d(b: AtenBuilder, x: Any, output_size: Any) -> Any:
    return _adaptive(b, "adaptive_avg_pool", "mean", x, output_size, 3)


def _adaptive(b: AtenBuilder, op: str, whole: str, x: Any, output_size: Any, rank: int) -> Any:
    """Bins of each spatial dimension; one bin of everything is a reduction."""
    x, is_single = _batched(b, x, rank)
    wanted = [own if w is None else w for w, own in zip(_each(output_size, rank), x.shape[-rank:], strict=True)]
    if all(isinstance(size, int) and size == 1 for size in wanted):
        result = b.reduce(whole, x, list(range(2, 2 + rank)), True)
    else:
        result = b.op(op, x, output=wanted)
    return b.squeeze(result, 0) if is_single else result


@row("aten.lp_pool2d")
def lp_pool(b: AtenBuilder, *args: Any) -> Any:
    raise UnsupportedCaseError("lp_pool; write it as avg_pool of powers")


# --- resampling ---


def _resize(b: AtenBuilder, x: Any, mode: str, align_corners: bool, scales: list[float] | None, **attrs: Any) -> Any:
    """To the sizes that torch records; scale factors that the model gives are used as they are."""
    sizes = b.out_shape[2:]
    coordinate = "align_corners" if align_corners else "half_pixel"
    if mode == "nearest" and "nearest" not in attrs:
        coordinate = "asymmetric"
    given = [float(s) for s in scales] if scales and all(s is not None for s in scales) and not align_corners else []
    attrs.setdefault("nearest", "floor")
    return b.op("resize", x, sizes=sizes, mode=mode, coordinate=coordinate, scales=given, **attrs)


for _rank, _names in ((1, ("linear1d",)), (2, ("bilinear2d", "bicubic2d")), (3, ("trilinear3d",))):
    for _name in _names:

        @row(f"aten.upsample_{_name}")
        def _smooth_row(
            b: AtenBuilder, x: Any, output_size: Any, align_corners: bool, *scales: Any, name: str = _name, **kw: Any
        ) -> Any:
            return _resize(b, x, "cubic" if "cubic" in name else "linear", align_corners, _scales(scales, kw))

    @row(f"aten.upsample_nearest{_rank}d")
    def _nearest_row(b: AtenBuilder, x: Any, output_size: Any, *scales: Any, **kw: Any) -> Any:
        return _resize(b, x, "nearest", False, _scales(scales, kw))

    @row(f"aten._upsample_nearest_exact{_rank}d")
    def _nearest_exact_row(b: AtenBuilder, x: Any, output_size: Any, *scales: Any, **kw: Any) -> Any:
        return _resize(b, x, "nearest", False, _scales(scales, kw), nearest="round_prefer_ceil")


@row("aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa")
def antialiased(b: AtenBuilder, x: Any, output_size: Any, align_corners: bool, *scales: Any, **kw: Any) -> Any:
    raise UnsupportedCaseError("antialiased interpolation; resize before the model")


def _scales(scales: Any, kwargs: dict[str, Any]) -> list[float] | None:
    """Scale factors, given as a list by the .vec overloads and one by one by the others."""
    if scales and isinstance(scales[0], list):
        return scales[0]
    if kwargs.get("scale_factors") is not None:
        return kwargs["scale_factors"]
    return list(scales) if scales and scales[0] is not None else None


# The schema's numbers.
_GRID_MODES = ["linear", "nearest", "cubic"]
_GRID_PADDING = ["zeros", "border", "reflection"]


@row("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(
    b: AtenBuilder, x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    return b.op(
        "grid_sample", x, grid, mode=_GRID_MODES[interpolation_mode], padding_mode=_GRID_PADDING[padding_mode],
        align_corners=align_corners,
    )  # fmt: skip


# --- patches ---


@row("aten.im2col")
def im2col(b: AtenBuilder, x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """x [N, C, H, W] -> [N, C * kh * kw, L]: a gather along each spatial dimension."""
    x, is_single = _batched(b, x, 2)
    kernel, dilations, pads, strides = (_each(value, 2) for value in (kernel_size, dilation, padding, stride))
    if any(pads):
        x = b.op("pad", x, low=[0, 0, *pads], high=[0, 0, *pads])
    batch, channels = x.shape[:2]
    counts = []
    for axis, (k, d, s) in enumerate(zip(kernel, dilations, strides, strict=True)):
        place = 2 + 2 * axis
        count = dims.floordiv(x.shape[place] - d * (k - 1) - 1, s) + 1
        at = b.add(b.unsqueeze(b.iota(k, "i64", 0, d), 1), b.unsqueeze(b.iota(count, "i64", 0, s), 0))
        x = b.op("gather", x, at, axis=place)
        counts.append(count)
    x = b.transpose(x, [0, 1, 2, 4, 3, 5])
    result = b.reshape(x, [batch, channels * kernel[0] * kernel[1], counts[0] * counts[1]])
    return b.squeeze(result, 0) if is_single else result


@row("aten.col2im")
def col2im(
    b: AtenBuilder, x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """The adjoint of im2col: patches added where they came from."""
    is_single = len(x.shape) == 2
    x = b.unsqueeze(x, 0) if is_single else x
    kernel, dilations, pads, strides = (_each(value, 2) for value in (kernel_size, dilation, padding, stride))
    padded = [size + 2 * p for size, p in zip(output_size, pads, strict=True)]
    counts = [
        dims.floordiv(size - d * (k - 1) - 1, s) + 1
        for size, k, d, s in zip(padded, kernel, dilations, strides, strict=True)
    ]
    channels = x.shape[1] // (kernel[0] * kernel[1])
    lines = []
    for k, d, s, count in zip(kernel, dilations, strides, counts, strict=True):
        lines.append(b.add(b.unsqueeze(b.iota(k, "i64", 0, d), 1), b.unsqueeze(b.iota(count, "i64", 0, s), 0)))
    rows = b.reshape(lines[0], [kernel[0], 1, counts[0], 1])
    columns = b.reshape(lines[1], [1, kernel[1], 1, counts[1]])
    spot = b.add(b.mul(rows, padded[1], "i64"), columns)
    total = kernel[0] * kernel[1] * counts[0] * counts[1]
    at = b.expand(b.reshape(spot, [total]), [x.shape[0], channels, total])
    flat = b.reshape(x, [x.shape[0], channels, total])
    canvas = b.full([x.shape[0], channels, padded[0] * padded[1]], 0, x.dtype)
    summed = b.op("scatter_elements", canvas, at, flat, axis=2, reduce="add")
    image = b.reshape(summed, [x.shape[0], channels, *padded])
    for axis, pad in enumerate(pads):
        image = b.slice(image, 2 + axis, pad, padded[axis] - pad)
    return b.squeeze(image, 0) if is_single else image
