"""Convolution and its transpose, over one to three spatial dimensions."""

from __future__ import annotations

import numpy as np

from .matmul import accumulator, sum_type
from .op import op
from .types import TensorType
from .window import (
    channels_back,
    channels_first,
    check_counts,
    in_bounds,
    input_position,
    join_shape,
    loop_nest,
    padded,
    split_shape,
    taps,
    window_counts,
)


@op("contract")
def conv(
    x: F[N, C, *S], w: G[O, I, *K], bias: H[O] = None, *, strides: list[int], pads_low: list[int], pads_high: list[int],
    dilations: list[int], groups: int = 1, layout: str = "nchw", wide: Mark = False,
) -> F[N, O, *P]:
    """Cross-correlation of zero-padded `x` [N, C, *S] with `w` [O, C/groups, *K], plus `bias`.

    Accumulates in f32 for f16 and bf16, else in T. `wide`: the result keeps that type; a narrow `w` may meet an `x` of
    f32. With layout "nhwc" `x` and the result have the channels last; `w` has the same shape in either.
    Source: ONNX Conv-22; ATen convolution.
    """
    x = channels_first(x, layout)
    outputs, depth, *kernel = w.shape
    counts = window_counts(x.shape[2:], kernel, strides, pads_low, pads_high, dilations)
    sums = accumulator(x.dtype)
    x_wide = padded(x.astype(sums, copy=False), pads_low, pads_high, 0)
    grouped = w.astype(sums, copy=False).reshape(groups, outputs // groups, depth, *kernel)
    total = np.zeros((x.shape[0], groups, outputs // groups, int(np.prod(counts))), sums)
    for tap, seen in taps(x_wide, counts, kernel, strides, dilations):
        total += np.matmul(grouped[(slice(None),) * 3 + tap], seen.reshape(x.shape[0], groups, depth, -1))
    total = total.reshape(x.shape[0], outputs, *counts)
    if bias is not None:
        total += bias.astype(sums).reshape(-1, *[1] * len(counts))
    return channels_back(total, layout).astype(sums if wide else x.dtype, copy=False)


@conv.rule("infer")
def _(x, w, bias, *, strides, pads_low, pads_high, dilations, groups, layout, wide):
    dtype = sum_type(x.dtype, w.dtype, wide)
    if bias is not None and bias.dtype != dtype:
        raise ValueError(f"bias is {bias}, but the result is of {dtype}")
    batch, channels, spatial = split_shape(x.shape, layout)
    if w.rank != x.rank:
        raise ValueError(f"x is {x}, w is {w}: the ranks differ")
    if w.shape[0] % groups or w.shape[1] * groups != channels:
        raise ValueError(f"x has {channels} channels, w {w} takes {w.shape[1]} in each of {groups} groups")
    counts = window_counts(spatial, w.shape[2:], strides, pads_low, pads_high, dilations)
    return TensorType(dtype, join_shape(batch, w.shape[0], counts, layout))


@conv.rule("at")
def _(k, index, x, w, bias, *, strides, pads_low, pads_high, dilations, groups, layout, wide):
    batch, output, position = split_shape(tuple(index), layout)
    _, _, sizes = split_shape(tuple(k.shape(x)), layout)
    outputs, depth, *kernel = k.shape(w)
    first = output // (outputs // groups) * depth if groups > 1 else k.ix(0)

    def step(at, acc):
        channel, *tap = at
        where = [
            input_position(p, t, s, low, d)
            for p, t, s, low, d in zip(position, tap, strides, pads_low, dilations, strict=True)
        ]
        inside = in_bounds(where, sizes, pads_low, pads_high)
        factor = k.read(w, [output, channel, *tap])
        source = list(join_shape(batch, first + channel, where, layout))
        if inside is None:
            return [k.read(x, source).fma(factor, acc[0])]
        with k.masked(inside):
            seen = k.read(x, source)
        return [inside.select(seen, k.constant(0, k.dtype(x))).fma(factor, acc[0])]

    total = loop_nest(k, [depth, *kernel], [k.splat(k.constant(0, k.dtype(x)))], step)[0]
    total = total.cast(sum_type(k.dtype(x), k.dtype(w), wide))
    return total if bias is None else total + k.read(bias, [output])


def _transposed_counts(sizes, kernel, strides, pads_low, pads_high, output_pads, dilations):
    return tuple(
        (size - 1) * stride + (dilation * (extent - 1) + 1 + extra - low - high)
        for size, extent, stride, low, high, extra, dilation in zip(
            sizes, kernel, strides, pads_low, pads_high, output_pads, dilations, strict=True
        )
    )


@op("contract")
def conv_transpose(
    x: F[N, C, *S], w: F[I, J, *K], bias: F[O] = None, *, strides: list[int], pads_low: list[int], pads_high: list[int],
    output_pads: list[int], dilations: list[int], groups: int = 1, layout: str = "nchw",
) -> F[N, O, *P]:
    """The gradient of `conv` in its input: each element of `x` adds `w` [C, O/groups, *K] times itself to the result.

    `pads` crop the result, `output_pads` lengthen its high end. Source: ONNX ConvTranspose-22; ATen convolution.
    """
    x = channels_first(x, layout)
    depth, outputs, *kernel = w.shape
    batch, _, *sizes = x.shape
    counts = _transposed_counts(sizes, kernel, strides, pads_low, pads_high, output_pads, dilations)
    wide = accumulator(x.dtype)
    grouped = w.astype(wide, copy=False).reshape(groups, depth // groups, outputs, *kernel)
    columns = x.astype(wide, copy=False).reshape(batch, groups, depth // groups, -1)
    whole = [n + low + high for n, low, high in zip(counts, pads_low, pads_high, strict=True)]
    total = np.zeros((batch, groups * outputs, *whole), wide)
    for tap, seen in taps(total, sizes, kernel, strides, dilations):
        part = np.matmul(np.swapaxes(grouped[(slice(None),) * 3 + tap], -1, -2), columns)
        seen += part.reshape(batch, groups * outputs, *sizes)
    total = total[(slice(None), slice(None), *(slice(low, low + n) for low, n in zip(pads_low, counts, strict=True)))]
    if bias is not None:
        total = total + bias.astype(wide).reshape(-1, *[1] * len(counts))
    return channels_back(total, layout).astype(x.dtype, copy=False)


@conv_transpose.rule("infer")
def _(x, w, bias, *, strides, pads_low, pads_high, output_pads, dilations, groups, layout):
    batch, channels, spatial = split_shape(x.shape, layout)
    if w.rank != x.rank or w.shape[0] != channels or channels % groups:
        raise ValueError(f"x is {x}, w is {w}, in {groups} groups: w needs {channels} first, and the rank of x")
    outputs = w.shape[1] * groups
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"bias is {bias}, expected [{outputs}]")
    kernel = w.shape[2:]
    check_counts(len(spatial), strides=strides, pads_low=pads_low, pads_high=pads_high)
    check_counts(len(spatial), output_pads=output_pads, dilations=dilations)
    counts = _transposed_counts(spatial, kernel, strides, pads_low, pads_high, output_pads, dilations)
    return TensorType(x.dtype, join_shape(batch, outputs, counts, layout))


@conv_transpose.rule("at")
def _(k, index, x, w, bias, *, strides, pads_low, pads_high, output_pads, dilations, groups, layout):
    batch, output, position = split_shape(tuple(index), layout)
    _, channels, sizes = split_shape(tuple(k.shape(x)), layout)
    _, outputs, *kernel = k.shape(w)
    depth = channels // groups
    first = output // outputs * depth if groups > 1 else k.ix(0)
    inner = output % outputs if groups > 1 else output

    def step(at, acc):
        channel, *tap = at
        where, inside = [], None
        for d, (p, t, stride) in enumerate(zip(position, tap, strides, strict=True)):
            # Not negative before dividing, so that truncating and flooring division agree.
            reach = dilations[d] * (kernel[d] - 1)
            rounds = -(-reach // stride) * stride
            shifted = p + (pads_low[d] + rounds) - t * dilations[d]
            source = shifted // stride - rounds // stride if stride > 1 else shifted - rounds
            test = source.ge(0) & source.lt(sizes[d])
            test = test & (shifted % stride).eq(0) if stride > 1 else test
            inside = test if inside is None else inside & test
            where.append(source)
        factor = k.read(w, [first + channel, inner, *tap])
        with k.masked(inside):
            seen = k.read(x, list(join_shape(batch, first + channel, where, layout)))
        return [inside.select(seen, k.constant(0, k.dtype(x))).fma(factor, acc[0])]

    total = loop_nest(k, [depth, *kernel], [k.splat(k.constant(0, k.dtype(x)))], step)[0]
    return total if bias is None else total + k.read(bias, [output])
