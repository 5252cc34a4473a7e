"""ONNX convolutions and pools: explicit and automatic padding, ceil mode, dilations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects import dims
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial axes; pads may be symbolic where SAME padding meets a stride."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    low: list[Any]
    high: list[Any]

    def extent(self, i: int) -> int:
        """How far the window reaches along axis i."""
        return (self.kernel[i] - 1) * self.dilations[i] + 1


def window_of(c: Call, spatial: list[Any], kernel: list[int]) -> Window:
    """The node's window over axes of these sizes."""
    rank = len(kernel)
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    pads = c.attr("pads") or [0] * 2 * rank
    low, high = list(pads[:rank]), list(pads[rank:])
    auto = c.attr("auto_pad", "NOTSET")
    if auto == "VALID":
        low, high = [0] * rank, [0] * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        for i, size in enumerate(spatial):
            extent = (kernel[i] - 1) * dilations[i] + 1
            total = c.sizes.larger_of((dims.ceildiv(size, strides[i]) - 1) * strides[i] + extent - size, 0)
            less = dims.floordiv(total, 2)
            low[i], high[i] = (less, total - less) if auto == "SAME_UPPER" else (total - less, less)
    return Window(list(kernel), list(strides), list(dilations), low, high)


def pad_if_needed(c: Call, x: Value, window: Window, value: float) -> tuple[Value, list[int], list[int]]:
    """(x, low, high) with pads as numbers: symbolic or negative ones are applied to `x` first."""
    pads = [*window.low, *window.high]
    if all(isinstance(p, int) and p >= 0 for p in pads):
        return x, window.low, window.high
    for i, (a, b) in enumerate(zip(window.low, window.high, strict=True)):
        stop = x.shape[i + 2] + (b if isinstance(b, int) and b < 0 else 0)
        x = c.sliced(x, i + 2, -a if isinstance(a, int) and a < 0 else 0, stop)
    keep = [[0 if isinstance(p, int) and p < 0 else p for p in side] for side in (window.low, window.high)]
    zeros = [0] * len(window.kernel)
    padded = c.pad(x, low=[0, 0, *keep[0]], high=[0, 0, *keep[1]], mode="constant", value=value)
    return padded, zeros, zeros


# --- convolutions ---


@row("Conv")
def _conv(c: Call, x: Value, w: Value, bias: Value | None = None) -> Value:
    window = window_of(c, list(x.shape[2:]), [int(k) for k in w.shape[2:]])
    return convolve(c, x, w, bias, window, c.attr("group", 1))


def convolve(c: Call, x: Value, w: Value, bias: Value | None, window: Window, groups: int) -> Value:
    """The mlc convolution of a window."""
    c.same_size(x.shape[1], w.shape[1] * groups)
    x, low, high = pad_if_needed(c, x, window, 0.0)
    return c.conv(
        x, w, bias, strides=window.strides, pads_low=low, pads_high=high, dilations=window.dilations, groups=groups
    )


@row("ConvTranspose")
def _conv_transpose(c: Call, x: Value, w: Value, bias: Value | None = None) -> Value:
    kernel = [int(k) for k in w.shape[2:]]
    rank, groups = len(kernel), c.attr("group", 1)
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    extra = list(c.attr("output_padding") or [0] * rank)
    pads = c.attr("pads") or [0] * 2 * rank
    low, high = list(pads[:rank]), list(pads[rank:])
    auto, wanted = c.attr("auto_pad", "NOTSET"), c.attr("output_shape")
    wanted = wanted[-rank:] if wanted else None
    if auto in ("SAME_UPPER", "SAME_LOWER") or wanted:
        for i, size in enumerate(x.shape[2:]):
            target = wanted[i] if wanted else size * strides[i]
            total = strides[i] * (size - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - target
            if not isinstance(total, int):
                raise c.unsupported(f"an output size of {target} from {size}: it must not depend on the size")
            if total < 0:
                extra[i], total = extra[i] - total, 0
            less = total // 2
            low[i], high[i] = (less, total - less) if auto == "SAME_UPPER" else (total - less, less)
    attrs = {"strides": list(strides), "dilations": list(dilations), "groups": groups}
    # Negative padding adds zeros around the output.
    grow = [[max(-p, 0) for p in side] for side in (low, high)]
    low, high = [max(p, 0) for p in low], [max(p, 0) for p in high]
    if any(map(any, grow)):
        y = c.conv_transpose(x, w, None, pads_low=low, pads_high=high, output_pads=extra, **attrs)
        y = c.pad(y, low=[0, 0, *grow[0]], high=[0, 0, *grow[1]], mode="constant", value=0.0)
        return y if bias is None else c.add(y, c.shaped(bias, [bias.shape[0]] + [1] * rank))
    return c.conv_transpose(x, w, bias, pads_low=low, pads_high=high, output_pads=extra, **attrs)


# --- pools ---


def _pool_window(c: Call, x: Value) -> tuple[Window, list[Any]]:
    """The pool's window, and by how much ceil mode lengthens the high side of each axis."""
    window = window_of(c, list(x.shape[2:]), c.attr("kernel_shape"))
    extra: list[Any] = [0] * len(window.kernel)
    if c.attr("ceil_mode", 0) and c.attr("auto_pad", "NOTSET") == "NOTSET":
        for i, size in enumerate(x.shape[2:]):
            stride, padded = window.strides[i], size + window.low[i] + window.high[i]
            steps = dims.ceildiv(padded - window.extent(i), stride)
            # A last window that would start beyond the data and its low padding is left out.
            if isinstance(steps, int) and steps * stride >= size + window.low[i]:
                steps -= 1
            extra[i] = c.sizes.larger_of(steps * stride + window.extent(i) - padded, 0)
    return window, extra


def _all_static(*sides: list[Any]) -> bool:
    return all(isinstance(size, int) for side in sides for size in side)


def _lowest(dtype: str) -> float:
    """What max pooling pads with."""
    return {"i8": -128.0, "u8": 0.0}.get(dtype, -np.inf)


@row("MaxPool")
def _max_pool(c: Call, x: Value) -> Any:
    window, extra = _pool_window(c, x)
    high = [a + b for a, b in zip(window.high, extra, strict=True)]
    if c.has_output(1):
        if not _all_static(window.low, high):
            raise c.unsupported("indices of a pool whose padding depends on a size")
        return _pool_with_indices(c, x, window, high)
    low = window.low
    if not _all_static(low, high):
        symbolic = Window(window.kernel, window.strides, window.dilations, low, high)
        x, low, high = pad_if_needed(c, x, symbolic, _lowest(x.dtype))
    attrs = {"strides": window.strides, "dilations": window.dilations}
    return c.max_pool(x, kernel=window.kernel, pads_low=low, pads_high=high, **attrs)


def _pool_with_indices(c: Call, x: Value, window: Window, high: list[int]) -> Any:
    y, index = c.max_pool_with_indices(
        x, kernel=window.kernel, strides=window.strides, pads_low=window.low, pads_high=high, dilations=window.dilations
    )
    spatial = list(x.shape[2:])
    if c.attr("storage_order", 0):
        index = _column_major(c, index, spatial)
    # The op counts within one image; ONNX over the whole tensor.
    images = c.iota(size=x.shape[0] * x.shape[1], dtype="i64")
    pixels = c.importer.materialize_size(product(spatial))
    base = c.shaped(c.mul(images, pixels), [x.shape[0], x.shape[1]] + [1] * len(spatial))
    return y, c.add(index, base)


def _column_major(c: Call, index: Value, spatial: list[Any]) -> Value:
    """Indices counted with the first spatial axis fastest, from the usual ones."""
    out, rest, scale, places = None, index, 1, []
    for size in reversed(spatial):
        extent = c.importer.materialize_size(size)
        places.append(c.remainder(rest, extent))
        rest = c.floor_div(rest, extent)
    for size, place in zip(spatial, reversed(places), strict=True):
        term = c.mul(place, c.importer.materialize_size(scale))
        out = term if out is None else c.add(out, term)
        scale = scale * size
    return out


@row("AveragePool")
def _average_pool(c: Call, x: Value) -> Value:
    window, extra = _pool_window(c, x)
    counts_pad = bool(c.attr("count_include_pad", 0))
    if any(d != 1 for d in window.dilations) or not _all_static(window.low, window.high, extra):
        return _average_by_sums(c, x, window, extra, counts_pad)
    high = [a + b for a, b in zip(window.high, extra, strict=True)]
    attrs = {"ceil_high": extra} if any(extra) else {}
    return c.avg_pool(
        x,
        kernel=window.kernel,
        strides=window.strides,
        pads_low=window.low,
        pads_high=high,
        count_include_pad=counts_pad,
        **attrs,
    )


def _average_by_sums(c: Call, x: Value, window: Window, extra: list[Any], counts_pad: bool) -> Value:
    """Sums of windows over counts of what is in them, both as depthwise convolutions with ones."""
    ones = c.full(shape=[1, 1, *x.shape[2:]], value=1, dtype=x.dtype)
    if counts_pad:
        low, high = [0, 0, *window.low], [0, 0, *window.high]
        ones = c.pad(ones, low=low, high=high, mode="constant", value=1.0)
        counted = Window(window.kernel, window.strides, window.dilations, [0] * len(extra), extra)
    else:
        high = [a + b for a, b in zip(window.high, extra, strict=True)]
        counted = Window(window.kernel, window.strides, window.dilations, window.low, high)
    total_high = [a + b for a, b in zip(window.high, extra, strict=True)]
    summed = Window(window.kernel, window.strides, window.dilations, window.low, total_high)
    return c.div(sum_windows(c, x, summed), sum_windows(c, ones, counted))


def sum_windows(c: Call, x: Value, window: Window) -> Value:
    """The sum under each window position, channel by channel."""
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise c.unsupported(f"{channels} channels: their number must be known")
    kernel = c.full(shape=[channels, 1, *window.kernel], value=1, dtype=x.dtype)
    return convolve(c, x, kernel, None, window, channels)


@row("LpPool")
def _lp_pool(c: Call, x: Value) -> Value:
    window, extra = _pool_window(c, x)
    high = [a + b for a, b in zip(window.high, extra, strict=True)]
    p = c.attr("p", 2)
    powered = c.mul(x, x) if p == 2 else c.pow(c.abs(x), c.scalar(p, x))
    summed = sum_windows(c, powered, Window(window.kernel, window.strides, window.dilations, window.low, high))
    return c.sqrt(summed) if p == 2 else c.pow(summed, c.scalar(1 / p, x))


@row("Col2Im")
def _col2im(c: Call, x: Value, image: Known, block: Known) -> Value:
    """Adds each column's block back into its place: a transposed convolution with one-hot kernels."""
    kernel, size = [int(k) for k in block.items()], list(image.items())
    rank, taps = len(kernel), int(np.prod(block.items()))
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    pads = c.attr("pads") or [0] * 2 * rank
    steps, spare = [], []
    for i in range(rank):
        reach = size[i] + pads[i] + pads[i + rank] - ((kernel[i] - 1) * dilations[i] + 1)
        steps.append(dims.floordiv(reach, strides[i]) + 1)
        spare.append(reach % strides[i])
    channels = x.shape[1] // taps
    weight = np.zeros((channels * taps, 1, *kernel), np.float32)
    for ch in range(channels):
        weight[ch * taps : (ch + 1) * taps, 0] = np.eye(taps, dtype=np.float32).reshape(taps, *kernel)
    return c.conv_transpose(
        c.shaped(x, [x.shape[0], channels * taps, *steps]),
        c.to(c.const(weight), x.dtype),
        None,
        strides=list(strides),
        pads_low=list(pads[:rank]),
        pads_high=list(pads[rank:]),
        output_pads=spare,
        dilations=list(dilations),
        groups=channels,
    )
