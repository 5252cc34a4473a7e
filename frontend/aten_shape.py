"""ATen rows: views, joining, splitting, repeating, padding."""

from __future__ import annotations

from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, alias, row
from mlc.frontend.aten_views import part_sizes, replace_region
from mlc.frontend.report import UnsupportedCaseError

alias("aten.concat", "aten.cat")
alias("aten.concatenate", "aten.cat")
alias("aten.swapaxes", "aten.transpose")
alias("aten.swapdims", "aten.transpose")
alias("aten.moveaxis", "aten.movedim")
alias("aten.split_copy", "aten.split")
alias("aten.permute_copy", "aten.permute")
alias("aten.row_stack", "aten.vstack")


# --- the same elements in another shape: torch's record has the sizes worked out ---


@row(
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.view_as", "aten.reshape_as", "aten.flatten",
    "aten.unflatten", "aten.unsqueeze", "aten.squeeze", "aten.ravel", "aten._reshape_alias", "aten.view_copy",
    "aten.unsqueeze_copy", "aten.squeeze_copy", "aten.atleast_1d", "aten.atleast_2d", "aten.atleast_3d",
    "prims.collapse_view", "prims.split_dim",
)  # fmt: skip
def reshape(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    if b.out_dtype != x.dtype:  # view(dtype)
        return b.reshape(b.op("bitcast", x, dtype=b.out_dtype), b.out_shape)
    return b.reshape(x, b.out_shape)


@row("aten.permute")
def permute(b: AtenBuilder, x: Any, dims: list[int]) -> Any:
    return b.transpose(x, [b.axis(x, dim) for dim in dims])


@row("aten.transpose", "aten.transpose_copy")
def transpose(b: AtenBuilder, x: Any, dim0: int, dim1: int) -> Any:
    return b.swap(x, dim0, dim1)


@row("aten.t", "aten.numpy_T", "aten.t_copy")
def t(b: AtenBuilder, x: Any) -> Any:
    return b.transpose(x, list(range(len(x.shape)))[::-1])


@row("aten.mT", "aten.adjoint", "aten.mH", "aten.matrix_H")
def matrix_transpose(b: AtenBuilder, x: Any) -> Any:
    return b.swap(x, -1, -2)


@row("aten.movedim")
def movedim(b: AtenBuilder, x: Any, source: Any, destination: Any) -> Any:
    rank = len(x.shape)
    sources, targets = ([a] if isinstance(a, int) else a for a in (source, destination))
    moved = dict(zip((t % rank for t in targets), (s % rank for s in sources), strict=True))
    rest = iter(axis for axis in range(rank) if axis not in moved.values())
    return b.transpose(x, [moved[axis] if axis in moved else next(rest) for axis in range(rank)])


@row("aten.expand", "aten.expand_as", "aten.broadcast_to", "aten.expand_copy")
def expand(b: AtenBuilder, x: Any, size: Any, implicit: bool = False) -> Any:
    return b.expand(x, b.out_shape)


@row("aten.broadcast_tensors")
def broadcast_tensors(b: AtenBuilder, tensors: list[Any]) -> Any:
    return [b.expand(x, b.out_shape) for x in tensors]


@row("aten.meshgrid")
def meshgrid(b: AtenBuilder, tensors: list[Any], indexing: str = "ij") -> Any:
    rank = len(tensors)
    grids = []
    for position, x in enumerate(tensors):
        axis = 1 - position if indexing == "xy" and position < 2 <= rank else position
        shape = [1] * rank
        shape[axis] = x.shape[0] if x.shape else 1
        grids.append(b.expand(b.reshape(x, shape), b.out_shape))
    return grids


# --- parts ---


@row("aten.slice", "aten.slice_copy")
def slice_(b: AtenBuilder, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return b.slice(x, dim, start, end, step)


@row("aten.select", "aten.select_copy")
def select(b: AtenBuilder, x: Any, dim: int, index: Any) -> Any:
    axis = b.axis(x, dim)
    if isinstance(index, int) and index < 0:
        index = x.shape[axis] + index
    return b.squeeze(b.slice(x, axis, index, index + 1), axis)


@row("aten.narrow", "aten.narrow_copy")
def narrow(b: AtenBuilder, x: Any, dim: int, start: Any, length: Any) -> Any:
    return b.slice(x, dim, start, start + length)


@row("aten.split_with_sizes")
def split_with_sizes(b: AtenBuilder, x: Any, split_sizes: list[Any], dim: int = 0) -> Any:
    return _parts(b, x, split_sizes, b.axis(x, dim))


@row("aten.split", "aten.unsafe_split")
def split(b: AtenBuilder, x: Any, split_size: Any, dim: int = 0) -> Any:
    axis = b.axis(x, dim)
    return _parts(b, x, part_sizes("split", x.shape[axis], split_size), axis)


@row("aten.chunk", "aten.unsafe_chunk")
def chunk(b: AtenBuilder, x: Any, chunks: int, dim: int = 0) -> Any:
    axis = b.axis(x, dim)
    return _parts(b, x, part_sizes("chunk", x.shape[axis], chunks), axis)


@row("aten.tensor_split")
def tensor_split(b: AtenBuilder, x: Any, spec: Any, dim: int = 0) -> Any:
    axis = b.axis(x, dim)
    return _parts(b, x, part_sizes("tensor_split", x.shape[axis], spec), axis)


for _name, _axis in (("hsplit", 1), ("vsplit", 0), ("dsplit", 2)):

    @row(f"aten.{_name}")
    def _split_row(b: AtenBuilder, x: Any, spec: Any, axis: int = _axis) -> Any:
        return tensor_split(b, x, spec, min(axis, len(x.shape) - 1))


def _parts(b: AtenBuilder, x: Any, sizes: list[Any], axis: int) -> list[Any]:
    parts, start = [], 0
    for size in sizes:
        parts.append(b.slice(x, axis, start, start + size))
        start = start + size
    return parts


@row("aten.unbind", "aten.unbind_copy")
def unbind(b: AtenBuilder, x: Any, dim: int = 0) -> Any:
    axis = b.axis(x, dim)
    if not isinstance(x.shape[axis], int):
        raise UnsupportedCaseError("unbind of a dynamic dimension")
    return [b.squeeze(b.slice(x, axis, i, i + 1), axis) for i in range(x.shape[axis])]


@row("aten.slice_scatter")
def slice_scatter(
    b: AtenBuilder, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    return replace_region(b, x, b.cast(src, x.dtype), b.axis(x, dim), start, end, step)


@row("aten.select_scatter")
def select_scatter(b: AtenBuilder, x: Any, src: Any, dim: int, index: Any) -> Any:
    axis = b.axis(x, dim)
    index = index if not isinstance(index, int) or index >= 0 else x.shape[axis] + index
    return replace_region(b, x, b.unsqueeze(b.cast(src, x.dtype), axis), axis, index, index + 1)


@row("aten.diagonal", "aten.diagonal_copy")
def diagonal(b: AtenBuilder, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    perm = [axis for axis in range(rank) if axis not in (first, second)] + [first, second]
    x = b.transpose(x, perm)
    length = b.out_shape[-1]
    at = b.iota(length, "i64", max(-offset, 0)), b.iota(length, "i64", max(offset, 0))
    flat = b.reshape(x, [*x.shape[:-2], x.shape[-2] * x.shape[-1]])
    return b.op("gather", flat, b.add(b.mul(at[0], x.shape[-1], "i64"), at[1]), axis=rank - 2)


@row("aten.linalg_diagonal")
def linalg_diagonal(b: AtenBuilder, A: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return diagonal(b, A, offset, dim1, dim2)


@row("aten.diagonal_scatter")
def diagonal_scatter(b: AtenBuilder, x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`x` with `src` on a diagonal: the source's last dimension runs along it."""
    rank = len(x.shape)
    first, second = dim1 % rank, dim2 % rank
    perm = [axis for axis in range(rank) if axis not in (first, second)] + [first, second]
    turned = b.transpose(x, perm)
    lead, tall, wide = turned.shape[:-2], turned.shape[-2], turned.shape[-1]
    length = src.shape[-1]
    at = b.iota(length, "i64", max(-offset, 0)), b.iota(length, "i64", max(offset, 0))
    place = b.expand(b.add(b.mul(at[0], wide, "i64"), at[1]), [*lead, length])
    flat = b.reshape(turned, [*lead, tall * wide])
    done = b.op("scatter_elements", flat, place, b.cast(src, x.dtype), axis=rank - 2, reduce="none")
    back = [perm.index(axis) for axis in range(rank)]
    return b.transpose(b.reshape(done, list(turned.shape)), back)


@row("aten.diag_embed")
def diag_embed(b: AtenBuilder, x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = len(x.shape) + 1
    size = x.shape[-1] + abs(offset)
    before, after = (0, offset) if offset >= 0 else (-offset, 0)
    low, high = [0] * (rank - 1), [0] * (rank - 1)
    low[-1], high[-1] = after, before
    wide = b.op("pad", x, low=low, high=high) if offset > 0 else x
    tall = b.op("pad", x, low=[0] * (rank - 2) + [before], high=[0] * (rank - 1)) if offset < 0 else wide
    rows, columns = b.iota(size, "i64"), b.iota(size, "i64")
    on_line = b.binary("eq", b.add(b.unsqueeze(rows, 1), offset, "i64"), b.unsqueeze(columns, 0))
    # A row's one entry stands over its column for offset >= 0, at its own row below.
    values = b.unsqueeze(tall, -2) if offset >= 0 else b.unsqueeze(tall, -1)
    full = b.where(on_line, values, 0, x.dtype)
    first, second = dim1 % rank, dim2 % rank
    rest = iter(range(rank - 2))
    return b.transpose(full, [rank - 2 if a == first else rank - 1 if a == second else next(rest) for a in range(rank)])


@row("aten.diag")
def diag(b: AtenBuilder, x: Any, diagonal_: int = 0) -> Any:
    return diag_embed(b, x, diagonal_) if len(x.shape) == 1 else diagonal(b, x, diagonal_)


@row("aten.unfold", "aten.unfold_copy")
def unfold(b: AtenBuilder, x: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of `size` every `step` along a dimension, as a new last dimension."""
    if not x.shape:
        return b.reshape(x, [1])
    axis = b.axis(x, dimension)
    count = dims.floordiv(x.shape[axis] - size, step) + 1
    starts = b.iota(count, "i64", 0, step)
    at = b.add(b.unsqueeze(starts, 1), b.unsqueeze(b.iota(size, "i64"), 0))
    return b.move(b.op("gather", x, at, axis=axis), axis + 1, -1)


@row("aten.as_strided", "aten.as_strided_copy")
def as_strided(b: AtenBuilder, x: Any, size: list[Any], stride: list[Any], storage_offset: Any = None) -> Any:
    """Any strides, as a gather from the flat elements of an operand laid out row by row, as torch's mostly are."""
    total = dims.product(x.shape)
    flat = b.reshape(x, [total])
    at = b.iota(1, "i64", storage_offset or 0)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = count
        at = b.add(at, b.reshape(b.mul(b.iota(count, "i64"), step, "i64"), shape))
    return b.op("gather", flat, b.reshape(at, size), axis=0)


# --- joining ---


@row("aten.cat")
def cat(b: AtenBuilder, tensors: list[Any], dim: int = 0) -> Any:
    # Torch lets an empty 1-D tensor stand among others of any rank.
    parts = [b.cast(x, b.out_dtype) for x in tensors if not (len(x.shape) == 1 and x.shape[0] == 0)]
    return _joined(b, parts or tensors[:1], dim)


def _joined(b: AtenBuilder, parts: list[Any], dim: int) -> Any:
    axis = b.axis(parts[0], dim)
    like = parts[0].shape
    return b.concat([b.reshape(x, [*like[:axis], x.shape[axis], *like[axis + 1 :]]) for x in parts], axis)


@row("aten.stack")
def stack(b: AtenBuilder, tensors: list[Any], dim: int = 0) -> Any:
    axis = dim % (len(tensors[0].shape) + 1)
    return _joined(b, [b.unsqueeze(b.cast(x, b.out_dtype), axis) for x in tensors], axis)


@row("aten.hstack")
def hstack(b: AtenBuilder, tensors: list[Any]) -> Any:
    parts = [x if x.shape else b.reshape(x, [1]) for x in tensors]
    return cat(b, parts, 0 if len(parts[0].shape) == 1 else 1)


@row("aten.vstack")
def vstack(b: AtenBuilder, tensors: list[Any]) -> Any:
    return cat(b, [x if len(x.shape) > 1 else b.reshape(x, [1, *(x.shape or [1])]) for x in tensors], 0)


@row("aten.dstack")
def dstack(b: AtenBuilder, tensors: list[Any]) -> Any:
    parts = [x if len(x.shape) > 1 else b.reshape(x, [1, *(x.shape or [1])]) for x in tensors]
    return cat(b, [x if len(x.shape) > 2 else b.unsqueeze(x, 2) for x in parts], 2)


@row("aten.column_stack")
def column_stack(b: AtenBuilder, tensors: list[Any]) -> Any:
    return cat(b, [x if len(x.shape) > 1 else b.reshape(x, [*(x.shape or [1]), 1]) for x in tensors], 1)


@row("aten.block_diag")
def block_diag(b: AtenBuilder, tensors: list[Any]) -> Any:
    blocks = [b.cast(x if len(x.shape) == 2 else b.reshape(x, [1, *(x.shape or [1])]), b.out_dtype) for x in tensors]
    width, rows, first = b.out_shape[1], [], 0
    for x in blocks:
        after = width - first - x.shape[1]
        rows.append(b.op("pad", x, low=[0, first], high=[0, after]))
        first = first + x.shape[1]
    return b.concat(rows, 0)


# --- repeating and reordering ---


@row("aten.repeat", "aten.tile")
def repeat(b: AtenBuilder, x: Any, repeats: list[Any]) -> Any:
    lead = max(len(x.shape) - len(repeats), 0)
    repeats = [1] * lead + list(repeats)
    sizes = [1] * (len(repeats) - len(x.shape)) + list(x.shape)
    if all(isinstance(count, int) and count == 1 for count in repeats):
        return b.reshape(x, sizes)
    split_shape = [size for size in sizes for size in (1, size)]
    wide = [size for pair in zip(repeats, sizes, strict=True) for size in pair]
    total = [count * size for count, size in zip(repeats, sizes, strict=True)]
    return b.reshape(b.expand(b.reshape(x, split_shape), wide), total)


@row("aten.repeat_interleave.self_int")
def repeat_interleave(b: AtenBuilder, x: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    if dim is None:
        x, dim = b.reshape(x, [dims.product(x.shape)]), 0
    axis = b.axis(x, dim)
    split_shape = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
    wide = [*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]]
    total = [*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]]
    return b.reshape(b.expand(b.reshape(x, split_shape), wide), total)


@row("aten.flip")
def flip(b: AtenBuilder, x: Any, dims: list[int]) -> Any:
    return b.op("flip", x, axes=sorted(b.axis(x, dim) for dim in dims)) if dims else x


@row("aten.fliplr")
def fliplr(b: AtenBuilder, x: Any) -> Any:
    return b.op("flip", x, axes=[1])


@row("aten.flipud")
def flipud(b: AtenBuilder, x: Any) -> Any:
    return b.op("flip", x, axes=[0])


@row("aten.rot90")
def rot90(b: AtenBuilder, x: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    first, second = (b.axis(x, dim) for dim in dims)
    match k % 4:
        case 1:
            return b.swap(b.op("flip", x, axes=[second]), first, second)
        case 2:
            return b.op("flip", x, axes=sorted([first, second]))
        case 3:
            return b.op("flip", b.swap(x, first, second), axes=[second])
    return x


@row("aten.roll")
def roll(b: AtenBuilder, x: Any, shifts: Any, dims: Any = ()) -> Any:
    axes = list(dims)
    if not axes:
        flat = b.reshape(x, [_product(x.shape)])
        return b.reshape(roll(b, flat, shifts, [0]), list(x.shape))
    for shift, dim in zip([shifts] if isinstance(shifts, int) else shifts, axes, strict=True):
        axis = b.axis(x, dim)
        size = x.shape[axis]
        at = -shift % size
        if not (isinstance(at, int) and at == 0):
            x = b.concat([b.slice(x, axis, at, size), b.slice(x, axis, 0, at)], axis)
    return x


def _product(sizes: Any) -> Any:
    return dims.product(sizes)


# --- padding ---

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


@row("aten.pad")
def pad(b: AtenBuilder, x: Any, pad: list[Any], mode: str = "constant", value: Any = None) -> Any:
    return _padded(b, x, pad, mode, value or 0)


@row("aten.constant_pad_nd")
def constant_pad_nd(b: AtenBuilder, x: Any, pad: list[Any], value: Any = 0) -> Any:
    return _padded(b, x, pad, "constant", value)


@row("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def reflection_pad(b: AtenBuilder, x: Any, padding: list[Any]) -> Any:
    return _padded(b, x, padding, "reflect", 0)


@row("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def replication_pad(b: AtenBuilder, x: Any, padding: list[Any]) -> Any:
    return _padded(b, x, padding, "replicate", 0)


@row("aten._pad_circular")
def pad_circular(b: AtenBuilder, x: Any, pad: list[Any]) -> Any:
    return _padded(b, x, pad, "circular", 0)


def _padded(b: AtenBuilder, x: Any, amounts: list[Any], mode: str, value: Any) -> Any:
    """`amounts`: (low, high) pairs from the last dimension on; a negative one crops."""
    rank = len(x.shape)
    low, high = [0] * rank, [0] * rank
    for position in range(len(amounts) // 2):
        axis = rank - 1 - position
        before, after = amounts[2 * position], amounts[2 * position + 1]
        cut_low, cut_high = (-a if isinstance(a, int) and a < 0 else 0 for a in (before, after))
        if cut_low or cut_high:
            x = b.slice(x, axis, cut_low, x.shape[axis] - cut_high)
        low[axis], high[axis] = (0 if isinstance(a, int) and a < 0 else a for a in (before, after))
    if not any(not isinstance(amount, int) or amount for amount in [*low, *high]):
        return x
    return b.op("pad", x, low=low, high=high, mode=_PAD_MODES[mode], value=float(value))


# --- pixels ---


@row("aten.pixel_shuffle")
def pixel_shuffle(b: AtenBuilder, x: Any, upscale_factor: int) -> Any:
    r, lead = upscale_factor, list(x.shape[:-3])
    c, h, w = x.shape[-3:]
    c, n = c // (r * r), len(lead)
    split_up = b.reshape(x, [*lead, c, r, r, h, w])
    mixed = b.transpose(split_up, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return b.reshape(mixed, [*lead, c, h * r, w * r])


@row("aten.pixel_unshuffle")
def pixel_unshuffle(b: AtenBuilder, x: Any, downscale_factor: int) -> Any:
    r, lead = downscale_factor, list(x.shape[:-3])
    c, h, w = x.shape[-3:]
    n = len(lead)
    split_up = b.reshape(x, [*lead, c, h // r, r, w // r, r])
    mixed = b.transpose(split_up, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return b.reshape(mixed, [*lead, c * r * r, h // r, w // r])


@row("aten.channel_shuffle", "aten.native_channel_shuffle")
def channel_shuffle(b: AtenBuilder, x: Any, groups: int) -> Any:
    batch, channels, *rest = x.shape
    grouped = b.reshape(x, [batch, groups, channels // groups, *rest])
    return b.reshape(b.swap(grouped, 1, 2), list(x.shape))
