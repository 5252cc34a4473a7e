"""Convolutions as implicit products: rows are output pixels, columns output channels, k the elements under the kernel.

Three forms. `taps`: k is cut into segments of consecutive elements (the channels of one tap, or a whole kernel row
where no padding cuts it); a row's pointer is computed once a segment, and points at zeros where the tap lies in the
padding. `patches`: for few channels, where segments would be too short, each row's elements are copied side by side
first. `depthwise`: one channel a group, with lanes along the channels (conv_depthwise.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mlc.dialects.types import DTYPES

from .conv_depthwise import depthwise_vecs, emit_depthwise
from .conv_geometry import ConvSizes
from .conv_implicit import Axis, Patches, Taps, emit_implicit
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import StridedBuffer, sum_dtype
from .matmul import Epilogue, MatmulSizes, PackedPanels, plan_matmul
from .packing import PAIRED, pack_b


@dataclass(frozen=True)
class ConvPlan:
    """Form and blocks. `is_channels_first` is the order of k in the packed weights: channels outside the taps."""

    form: str
    is_channels_first: bool
    tile_rows: int
    tile_columns: int
    depth: int | None = None
    is_staged: bool = False
    is_paired: bool = False  # k by pairs of bf16, see microkernel_dot.py
    tile_lines: int = 1  # of depthwise outputs: so many lines share what they read in the first-level cache


_RUN_MIN = 16  # a segment shorter than this does not pay for its row pointers (about 12 cycles a segment on Zen 3)
_PATCH_BYTES_MAX = 40 * 1024  # of stack for the copied rows
_GROUP_MAX = 8  # channels of a group whose outputs share a register with other groups
_DEPTHWISE_PIXELS = 96  # of one line in a tile: about 5 us for 128 channels and 9 taps
_DEPTHWISE_LINE_MAX = 256  # a line of known length up to this is not cut
_DEPTHWISE_LINES = 8


def plan_conv(
    isa: Isa, sizes: ConvSizes, dtype: str, strides: Sequence[Size], threads: int, has_long_epilogue: bool,
    takes_pairs: bool = False,
) -> ConvPlan:
    """Chooses the form by the input's strides ([n, *spatial, c]) and sizes, and the blocks as for a matmul.

    `takes_pairs`: both factors are bf16 on a machine that multiplies pairs.
    Raises: ValueError for channels-first input with padding and too many channels for a patch on the stack.
    """
    channels_last = isinstance(strides[-1], int) and strides[-1] == 1
    if channels_last and _has_lanes_of_groups(isa, sizes, dtype):
        return _plan_depthwise(isa, sizes, dtype)
    is_channels_first = not channels_last and sizes.channels > 1
    axes, run, run_stride = _segments(sizes, strides, is_channels_first)
    is_short = run < _RUN_MIN and len(axes) > 0
    if is_channels_first and not is_short and _needs_zeros(sizes, axes) and run_stride != 1:
        is_short = True
    k = sizes.channels * int(np.prod(sizes.kernel))
    pixels = index.product(sizes.output) if all(isinstance(s, int) for s in sizes.output) else None
    known = MatmulSizes((sizes.batch, sizes.groups), pixels, sizes.outputs, k)
    plan = plan_matmul(isa, known, dtype, threads, b_is_packed=True, has_long_epilogue=has_long_epilogue)
    if not is_short:
        # Rows of neighbouring pixels share most of their input: the block is not as deep as k.
        pairs = takes_pairs and run_stride == 1 and (run % 2 == 0 or not axes)
        return ConvPlan("taps", is_channels_first, plan.tile_rows, plan.tile_columns, plan.depth, plan.is_staged, pairs)
    row_bytes = Patches.row_elements(isa, k, dtype) * DTYPES[dtype].bytes
    rows = min(plan.tile_rows, _PATCH_BYTES_MAX // row_bytes // isa.tile[0] * isa.tile[0])
    if not rows:
        raise ValueError(f"conv with {sizes.channels} channels a group needs its input channels-last")
    return ConvPlan("patches", is_channels_first, rows, plan.tile_columns, None, has_long_epilogue, takes_pairs)


def _plan_depthwise(isa: Isa, sizes: ConvSizes, dtype: str) -> ConvPlan:
    """Whole lines where their length is known, and as many channels as the first-level cache holds of a line's
    inputs."""
    total = sum_dtype(dtype)
    lanes = isa.lanes(total) * depthwise_vecs(isa, sizes, total)  # a channel in two tiles would be computed twice
    columns = min(8, index.ceil_div(sizes.groups * sizes.channels, lanes)) * lanes
    width, seen = sizes.output[-1], sizes.input[-1]
    if not isinstance(width, int) or not isinstance(seen, int) or not 0 < width <= _DEPTHWISE_LINE_MAX:
        return ConvPlan("depthwise", False, _DEPTHWISE_PIXELS, columns)
    taps = int(np.prod(sizes.kernel[:-1]))
    room = isa.l1_bytes * 3 // 4 // (taps * seen * DTYPES[dtype].bytes)
    columns = max(lanes, min(columns, room // lanes * lanes))
    lines = index.product(sizes.output[:-1])
    if not isinstance(lines, int) or not lines:
        return ConvPlan("depthwise", False, width, columns)
    together = -(-lines // -(-lines // _DEPTHWISE_LINES))
    return ConvPlan("depthwise", False, width, columns, tile_lines=together)


def _has_lanes_of_groups(isa: Isa, sizes: ConvSizes, dtype: str) -> bool:
    """True where groups are so narrow that a register of outputs spans several."""
    if sizes.groups == 1 or sizes.channels != sizes.outputs:
        return False
    if sizes.channels == 1:
        return True
    lanes = isa.lanes(sum_dtype(dtype))
    return not isa.is_scalable and sizes.channels <= _GROUP_MAX and lanes % sizes.channels == 0


def pack_conv(isa: Isa, plan: ConvPlan, weights: np.ndarray, groups: int, dtype: str) -> np.ndarray:
    """[O, C / groups, *K] as `plan` reads it: [groups, panels, k, columns]; for depthwise [taps, inputs, outputs]."""
    outputs, channels = weights.shape[0] // groups, weights.shape[1]
    flat = weights.reshape(groups, outputs, channels, -1)
    if plan.form == "depthwise":
        return np.ascontiguousarray(flat.reshape(groups * outputs, channels, -1).transpose(2, 1, 0))
    if not plan.is_channels_first:
        flat = flat.swapaxes(2, 3)
    columns = isa.panel_columns(sum_dtype(dtype))
    return pack_b(flat.reshape(groups, outputs, -1), columns, is_transposed=True, is_paired=plan.is_paired)


def conv_layout(form: str, groups: int, is_channels_first: bool, is_paired: bool = False) -> str:
    """The name of the packed layout that `pack_conv` gives."""
    if form == "depthwise":
        return "conv-depthwise"
    return f"conv-{'first' if is_channels_first else 'last'}-groups-{groups}{PAIRED if is_paired else ''}"


def pack_conv_layout(isa: Isa, layout: str, weights: np.ndarray, dtype: str) -> np.ndarray:
    """`pack_conv` by the layout's name."""
    if layout == "conv-depthwise":
        return pack_conv(isa, ConvPlan("depthwise", False, 0, 0), weights, weights.shape[0], dtype)
    is_paired = layout.endswith(PAIRED)
    _, order, _, groups = layout.removesuffix(PAIRED).split("-")
    return pack_conv(isa, ConvPlan("taps", order == "first", 0, 0, is_paired=is_paired), weights, int(groups), dtype)


def conv_grid(sizes: ConvSizes, plan: ConvPlan) -> list[Size]:
    """Tiles a dimension, whose product is the kernel's tile count.

    [n, group, pixel blocks, column blocks]; for depthwise [n, blocks of lines, blocks of a line, column blocks].
    """
    pixels = index.ceil_div(index.product(sizes.output), plan.tile_rows)
    if plan.form == "depthwise":
        *lines, width = sizes.output
        blocks = [
            index.ceil_div(width, plan.tile_rows),
            index.ceil_div(sizes.groups * sizes.channels, plan.tile_columns),
        ]
        return [sizes.batch, index.ceil_div(index.product(lines), plan.tile_lines), *blocks]
    return [sizes.batch, sizes.groups, pixels, index.ceil_div(sizes.outputs, plan.tile_columns)]


def emit_conv(
    isa: Isa, plan: ConvPlan, sizes: ConvSizes, x: StridedBuffer, weights: PackedPanels, epilogue: Epilogue,
    begin: Size, end: Size,
) -> None:  # fmt: skip
    """The loop over tiles begin..end, last dimension of `conv_grid` fastest.

    `x` has strides [n, *spatial, c]; the epilogue's index is [n, *spatial, o], o counted over all groups.
    """
    grid = conv_grid(sizes, plan)
    if plan.form == "depthwise":
        blocks = (plan.tile_lines, plan.tile_rows, plan.tile_columns)
        emit_depthwise(isa, blocks, sizes, x, weights, epilogue, grid, begin, end)
        return
    axes, run, run_stride = _segments(sizes, x.strides, plan.is_channels_first)
    if plan.form == "patches":
        rows: Patches | Taps = Patches.make(isa, sizes, x, plan.is_channels_first, plan.tile_rows)
    else:
        axes, run = _shorten(axes, run, run_stride, plan.depth, 2 if plan.is_paired else 1)
        rows = Taps.make(sizes, x, axes, run, run_stride, _needs_zeros(sizes, axes))
    emit_implicit(isa, plan, sizes, rows, weights, epilogue, grid, begin, end)


def _segments(sizes: ConvSizes, strides: Sequence[Size], is_channels_first: bool) -> tuple[list[Axis], int, Size]:
    """The axes that k is walked along, outermost first, then the length and step of the runs inside."""
    *spatial, channel_stride = strides[1:]
    taps = [
        Axis(count, dim, index.mul(sizes.dilations[dim], spatial[dim]))
        for dim, count in enumerate(sizes.kernel)
        if count > 1 or sizes.is_padded(dim)
    ]
    last = len(sizes.kernel) - 1
    row_is_free = not sizes.is_padded(last) and sizes.kernel[last] > 1
    row_step = index.mul(sizes.dilations[last], spatial[last])
    if is_channels_first:
        channel = Axis(sizes.channels, None, channel_stride)
        if row_is_free:
            return [channel, *taps[:-1]], sizes.kernel[last], row_step
        if not taps:
            return [], sizes.channels, channel_stride
        return [channel, *taps], 1, 1
    if row_is_free and row_step == index.mul(sizes.channels, channel_stride):
        return taps[:-1], sizes.kernel[last] * sizes.channels, channel_stride
    return taps, sizes.channels, channel_stride


def _shorten(
    axes: list[Axis], run: int, run_stride: Size, depth: int | None, unit: int
) -> tuple[list[Axis], int]:  # fmt: skip
    """Cuts runs longer than `depth` into equal ones of whole units, where a divisor of a useful size exists."""
    if depth is None or run <= depth:
        return axes, run
    part = max((p for p in range(unit, depth + 1, unit) if run % p == 0), default=run)
    if part < depth // 4:
        return axes, run
    return [*axes, Axis(run // part, None, index.mul(part, run_stride))], part


def _needs_zeros(sizes: ConvSizes, axes: Sequence[Axis]) -> bool:
    return any(axis.dim is not None and sizes.is_padded(axis.dim) for axis in axes)
