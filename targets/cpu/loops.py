"""Kernels without an emitter of their own: elementwise domains and concatenations.

Each emits the body of one kernel function over tiles [begin, end) and says how many tiles there are, as a size
expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.val import Val
from mlc.dialects.views import Strided, contiguous
from mlir import ir
from mlir.dialects import arith, vector

from .index import Ix, Number, i64
from .kernel import Buffer, Kernel
from .streaming import AHEAD_BYTES, emit_streamed, streamed, vectors_a_line

# Elements a tile takes: long enough to hide the launch (about 1 us), short enough to balance two threads and stay in
# L1/L2.
TILE_ELEMENTS = 16384
# Registers that a step of an elementwise loop takes: enough to share constants and to have work for every unit.
VECTORS = 4


@dataclass(frozen=True)
class KernelBody:
    """The ops of one L1 kernel function and the memory of its results."""

    operations: list[ir.Operation]
    results: list[ir.Value]
    buffers: list[Buffer]


@dataclass(frozen=True)
class Domain:
    """An index space cut into tiles: rows of `inner` elements, or chunks of one row where there is only one."""

    outer: tuple[Size, ...]
    inner: Size

    @property
    def rows(self) -> Size:
        return dims.product(self.outer)

    @property
    def rows_a_tile(self) -> Size:
        return dims.maximum(1, dims.floordiv(TILE_ELEMENTS, dims.maximum(self.inner, 1)))

    @property
    def is_one_row(self) -> bool:
        return self.rows == 1

    @property
    def tiles(self) -> Size:
        if self.is_one_row:
            return dims.ceildiv(self.inner, TILE_ELEMENTS)
        return dims.ceildiv(self.rows, self.rows_a_tile)


def domain_of(shape: Sequence[Size]) -> Domain:
    return Domain(tuple(shape[:-1]), shape[-1]) if shape else Domain((), 1)


def emit_domain(k: Kernel, domain: Domain, tile: Number, body: Callable[[list[Ix]], None], vectors: int = 1) -> None:
    """Runs `body(index)` for the elements of one tile, lanes along the last dimension, `vectors` a step."""
    if domain.is_one_row:
        start = k.arith.mul(tile, TILE_ELEMENTS)
        stop = k.arith.min(k.size(domain.inner), k.arith.add(start, TILE_ELEMENTS))
        zero = [k.ix(0)] * len(domain.outer)
        whole = isinstance(domain.inner, int) and domain.inner % max(k.lanes, 1) == 0
        emit_lanes(k, start, stop, lambda i: body([*zero, i]), is_whole=whole, vectors=vectors)
        return

    def row(number: ir.Value, _: list[Val]) -> list[Val]:
        outer = k.delinearize(number, domain.outer)
        emit_lanes(k, 0, k.size(domain.inner), lambda i: body([*outer, i]), vectors=vectors)
        return []

    first = k.arith.mul(tile, k.size(domain.rows_a_tile))
    last = k.arith.min(k.size(domain.rows), k.arith.add(first, k.size(domain.rows_a_tile)))
    k.for_(first, last, 1, [], row)


def emit_lanes(
    k: Kernel, start: Number, stop: Number, body: Callable[[Ix], None], *, is_whole: bool = False, vectors: int = 1
) -> None:
    """`body(index)` over [start, stop): full vectors in a loop, then one masked vector; scalar when lanes are off.

    `is_whole`: the length is known to be a multiple of the lanes. `vectors`: how many a step of the loop takes.
    """
    if not k.lanes:
        k.for_(start, stop, 1, [], lambda i, _: body(Ix(k, i)))
        return
    step = k.lanes
    length = k.arith.sub(stop, start)
    if isinstance(length, int) and length % step == 0:
        is_whole = True
    full = stop if is_whole else k.arith.add(start, k.arith.sub(length, k.arith.mod(length, step)))
    if vectors > 1:
        start = _emit_vectors(k, start, full, vectors, body)
    if not isinstance(full, int) or full > (start if isinstance(start, int) else -1):
        k.for_(start, full, step, [], lambda i, _: body(Ix(k, i, 1)))
    if not is_whole:
        emit_tail(k, full, stop, body)


def _emit_vectors(k: Kernel, start: Number, full: Number, vectors: int, body: Callable[[Ix], None]) -> Number:
    """`body` over [start, full) by so many vectors a step; gives where it stopped, less than a step before `full`."""
    step = k.lanes * vectors
    length = k.arith.sub(full, start)
    stop = k.arith.add(start, k.arith.sub(length, k.arith.mod(length, step)))

    if stop != start:
        with k.wider(vectors):
            k.for_(start, stop, step, [], lambda i, _: body(Ix(k, i, 1)))
    return stop


def emit_tail(k: Kernel, start: Number, stop: Number, body: Callable[[Ix], None]) -> None:
    """One vector at `start`, masked to end at `stop`; nothing when they are equal."""

    def masked() -> None:
        with tail_mask(k, k.arith.sub(stop, start)):
            body(Ix(k, start, 1))

    if isinstance(start, int) and isinstance(stop, int):
        masked()
    else:
        k.when(k.ix(start).lt(k.ix(stop)), masked)


class tail_mask:  # noqa: N801 - reads as a statement: `with tail_mask(k, rest):`
    """Lanes at or past `rest` are off for reads and stores inside."""

    def __init__(self, k: Kernel, rest: Number) -> None:
        self.k, self.rest = k, rest

    def __enter__(self) -> Val:
        k = self.k
        limit = vector.broadcast(k.lane_type(i64()), k.number(self.rest))
        k.tail = Val(arith.cmpi(2, k.lane_numbers(), limit), "bool")
        return k.tail

    def __exit__(self, *_: object) -> None:
        self.k.tail = None


# elementwise ---------------------------------------------------------------------------------------------------------
def emit_pointwise(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """One loop nest over the result's elements."""
    root, buffer = body.results[0], body.buffers[0]
    del k.buffers[root]
    values = [*k.buffers, root]
    merged = coalesced_shapes(body)
    k.shape_of.update(merged)
    root, view = _stored(root, merged)
    shape = merged.get(root, type_of(root).shape)
    domain = domain_of(shape)
    target = streamed(k, Buffer(buffer.pointer, buffer.dtype, view), values, shape)

    def emit(target: Buffer) -> None:
        def element(index: list[Ix]) -> None:
            where = index[: len(shape)]  # of a 0-D result none
            k.store(target, where, k.read(root, where))

        vectors = max(VECTORS, vectors_a_line(k, target)) if k.lanes else 1
        for_tiles(k, begin, end, lambda tile: emit_domain(k, domain, tile, element, vectors))

    emit_streamed(k, target, emit, AHEAD_BYTES if any(map(is_expensive, body.operations)) else 0)
    return domain.tiles


def _stored(root: ir.Value, merged: Mapping[ir.Value, tuple[Size, ...]]) -> tuple[ir.Value, Strided]:
    """The value that the loop computes and where in the result its elements lie."""
    if root.owner.operation.name == "mlc.pad_rows":
        return root.owner.operation.operands[0], contiguous(type_of(root).shape)
    value = before_reshapes(root)
    return value, contiguous(merged.get(value, type_of(value).shape))


def before_reshapes(root: ir.Value) -> ir.Value:
    """The value whose elements are those of `root` in order, so that no index is taken apart."""
    value = root
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in ("mlc.reshape", "mlc.copy"):
        value = value.owner.operation.operands[0]
    return value


def is_expensive(operation: ir.Operation) -> bool:
    """Whether an element takes tens of instructions."""
    return definition_of(operation).family == "pointwise_math"


def for_tiles(k: Kernel, begin: ir.Value, end: ir.Value, body: Callable[[ir.Value], None]) -> None:
    k.for_(begin, end, 1, [], lambda tile, _: body(tile))


def coalesced_shapes(body: KernelBody, rank_kept: int | None = None) -> dict[ir.Value, tuple[Size, ...]]:
    """Shapes with neighbouring dimensions merged where every value of the kernel has both or neither.

    Empty when some op is not purely elementwise. `rank_kept`: dimensions before it never merge with those after.
    """
    values: list[ir.Value] = []
    for operation in body.operations:
        definition = definition_of(operation)
        is_plain = definition is not None and (
            "emit" in definition.rules or definition.name in ("full", "constant", "dim_value")
        )
        if not is_plain and not (rank_kept is not None and definition is not None and definition.kind == "reduce"):
            return {}
        values.extend([*operation.results, *operation.operands])
    root_shape = max((type_of(v).shape for v in values), key=len, default=())
    rank = len(root_shape)
    padded = {v: (1,) * (rank - len(type_of(v).shape)) + type_of(v).shape for v in values}
    full = [next((s[d] for s in padded.values() if s[d] != 1), 1) for d in range(rank)]
    groups: list[list[int]] = []
    for d in range(rank):
        joins = (
            groups
            and d != rank_kept
            and all(
                full[e] == 1 or full[d] == 1 or (s[e] == 1) == (s[d] == 1) for s in padded.values() for e in groups[-1]
            )
        )
        groups[-1].append(d) if joins else groups.append([d])
    return {v: tuple(dims.product(s[d] for d in group) for group in groups) for v, s in padded.items()}


# concatenation -------------------------------------------------------------------------------------------------------
def emit_concat(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """Each piece has tiles of its own, numbered one piece after another."""
    operation = body.results[0].owner.operation
    axis, target = attrs_of(operation)["axis"], body.buffers[0]
    del k.buffers[body.results[0]]
    pieces, first_tile, at = [], 0, 0
    for piece in operation.operands:
        domain = domain_of(type_of(piece).shape)
        pieces.append((piece, domain, first_tile, at))
        first_tile, at = first_tile + domain.tiles, at + type_of(piece).shape[axis]

    def tile_body(tile: ir.Value) -> None:
        for piece, domain, start, offset in pieces:

            def element(index: list[Ix], piece=piece, offset=offset) -> None:
                where = list(index)
                where[axis] = where[axis] + k.ix(offset)
                k.store(target, where, k.read(piece, index))

            local = k.arith.sub(tile, k.size(start))
            inside = k.ix(local).ge(0) & k.ix(local).lt(k.ix(domain.tiles))
            k.when(inside, lambda d=domain, t=local, e=element: emit_domain(k, d, t, e))

    for_tiles(k, begin, end, tile_body)
    return first_tile
