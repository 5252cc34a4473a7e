"""ATen rows whose results are as long as data say, or that read a number from a tensor."""

from __future__ import annotations

from typing import Any

from mlc.dialects import dims
from mlc.dialects.dims import Size
from mlc.frontend import data_sizes
from mlc.frontend.aten_rows import AtenBuilder, row
from mlc.frontend.data_sizes import DataSize
from mlc.frontend.report import UnsupportedCaseError

_LARGEST_SIZE = 2**31 - 1


def wanted_size(b: AtenBuilder, size: Size, most: Size | None = None) -> DataSize:
    """The size that the node at hand makes: a symbol of torch's that nothing defined before, or a size it must be.

    `most` is what the operands allow; torch's own range of the symbol may allow less.
    Raises: UnsupportedCaseError where neither bounds it, since memory is planned for the most.
    """
    name = str(size)
    if isinstance(size, int) or name not in b.unread:
        return DataSize(size, size)
    low, high = b.sizes.ranges[name]
    limit = high if most is None else min(high, b.sizes.bounds(most)[1])
    if limit > _LARGEST_SIZE:
        raise UnsupportedCaseError(
            f"the size {name} is read from data and has no bound: say torch._check({name} <= 4096) in the model, of "
            "the number or of the result's shape"
        )
    if most is None:
        most = high
    elif high < b.sizes.bounds(most)[1]:
        most = dims.minimum(most, high)
    b.unread.discard(name)
    b.sizes.ranges[name] = b.graph.symbols[name] = (max(low, 0), limit)
    return DataSize(size, most)


def _own_size(b: AtenBuilder, most: Size | None = None) -> DataSize:
    """The size of the node at hand's results that data decide; the first result's first where none is new."""
    sizes = [dims.parse(s) for out in b.outs if out is not None and out.shape for s in out.shape if isinstance(s, str)]
    return wanted_size(b, next((s for s in sizes if str(s) in b.unread), b.out_shape[0]), most)


def read_item(b: AtenBuilder, x: Any, size: Size) -> Size:
    """`x.item()` of an integer tensor, as the size that torch calls it."""
    data_sizes.read_size(b.graph, x, wanted_size(b, size))
    return size


@row("aten.nonzero")
def nonzero(b: AtenBuilder, x: Any) -> Any:
    return data_sizes.nonzero(b.graph, x, _own_size(b, dims.product(x.shape)))


@row("aten.nonzero_numpy")
def nonzero_numpy(b: AtenBuilder, x: Any) -> list[Any]:
    """One tensor of positions a dimension."""
    wanted = _own_size(b, dims.product(x.shape))
    rows = data_sizes.nonzero(b.graph, x, wanted)
    parts = [
        b.op("slice", rows, starts=[0, axis], limits=[wanted.size, axis + 1], steps=[1, 1])
        for axis in range(len(x.shape))
    ]
    return [b.reshape(part, [wanted.size]) for part in parts]


@row("aten.masked_select")
def masked_select(b: AtenBuilder, x: Any, mask: Any) -> Any:
    rank = max(len(x.shape), len(mask.shape))
    x, mask = (b.reshape(one, [1] * (rank - len(one.shape)) + list(one.shape)) for one in (x, mask))
    pairs = zip(x.shape, mask.shape, strict=True)
    shape = [q if isinstance(p, int) and p == 1 else p for p, q in pairs]
    x, mask = b.expand(x, shape), b.expand(mask, shape)
    return data_sizes.compress(b.graph, x, mask, _own_size(b, dims.product(shape)))


@row("aten._unique2")
def unique2(
    b: AtenBuilder, x: Any, is_sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    flat = b.reshape(x, [dims.product(x.shape)])
    found = data_sizes.unique(b.graph, flat, _own_size(b, flat.shape[0]))
    return _unique_results(b, found, found.values, list(x.shape), return_inverse, return_counts)


@row("aten.unique_consecutive")
def unique_consecutive(
    b: AtenBuilder, x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        return _unique_slices(b, x, dim, consecutive=True)
    flat = b.reshape(x, [dims.product(x.shape)])
    found = data_sizes.unique(b.graph, flat, _own_size(b, flat.shape[0]), consecutive=True)
    return _unique_results(b, found, found.values, list(x.shape), return_inverse, return_counts)


@row("aten.unique_dim")
def unique_dim(
    b: AtenBuilder, x: Any, dim: int, is_sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return _unique_slices(b, x, dim, consecutive=False)


def _unique_slices(b: AtenBuilder, x: Any, dim: int, consecutive: bool) -> Any:
    """Along a dimension torch gives positions and counts, asked for or not."""
    axis = b.axis(x, dim)
    front = b.move(x, axis, 0)
    width = dims.product(front.shape[1:])
    if not isinstance(width, int):
        raise UnsupportedCaseError(f"unique slices of {width} elements; their number must be known")
    rows = b.reshape(front, [front.shape[0], width])
    wanted = _own_size(b, rows.shape[0])
    found = data_sizes.unique(b.graph, rows, wanted, consecutive=consecutive)
    values = b.move(b.reshape(found.values, [wanted.size, *front.shape[1:]]), 0, axis)
    return _unique_results(b, found, values, [rows.shape[0]], True, True)


def _unique_results(
    b: AtenBuilder, found: data_sizes.Unique, values: Any, shape: list[Size], inverse: bool, counts: bool
) -> tuple[Any, Any, Any]:
    """Torch gives empty tensors for what is not asked for."""
    none = b.full([0], 0, "i64")
    return values, b.reshape(found.inverse, shape) if inverse else none, found.counts if counts else none


@row("aten.repeat_interleave.self_Tensor")
def repeat_interleave_by(b: AtenBuilder, x: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    if dim is None:
        x, dim = b.reshape(x, [dims.product(x.shape)]), 0
    axis = b.axis(x, dim)
    total = b.out_shape[axis]
    repeats = b.expand(repeats, [x.shape[axis]])
    return b.op("gather", x, _repeated(b, repeats, wanted_size(b, total)), axis=axis)


@row("aten.repeat_interleave.Tensor")
def repeated_positions(b: AtenBuilder, repeats: Any, output_size: Any = None) -> Any:
    return _repeated(b, repeats, wanted_size(b, b.out_shape[0]))


def _repeated(b: AtenBuilder, repeats: Any, wanted: DataSize) -> Any:
    """i64[wanted]: 0 as often as the first element of `repeats` says, then 1, ...: how many runs began up to there."""
    repeats = b.cast(repeats, "i64")
    count, size = repeats.shape[0], wanted.size
    data_sizes.read_size(b.graph, b.op("sum", repeats, axes=[0], keepdims=False), wanted)
    ends = b.op("cumsum", repeats, axis=0)
    starts = b.clamp(b.sub(ends, repeats, "i64"), 0, size)
    begun = b.op(
        "scatter_elements", b.full([size + 1], 0, "i64"), starts, b.full([count], 1, "i64"), axis=0, reduce="add"
    )
    running = b.sub(b.op("cumsum", begun, axis=0), 1, "i64")
    return b.op("slice", running, starts=[0], limits=[size], steps=[1])
