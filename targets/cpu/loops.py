"""Kernels without an emitter of their own: elementwise domains, row programs (reductions over trailing axes),
concatenations.

Each emits the body of one kernel function over tiles [begin, end) and says how many tiles there are, as a size
expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.val import Val
from mlc.dialects.views import contiguous, strides_before
from mlir import ir
from mlir.dialects import arith, vector

from .index import Ix, Number, i64
from .kernel import Buffer, EmitError, Kernel
from .row_slot import RowSlot
from .streaming import AHEAD_BYTES, emit_streamed, streamed, vectors_a_line

# Elements a tile takes: long enough to hide the launch (about 1 us), short enough to balance two threads and stay in
# L1/L2.
TILE_ELEMENTS = 16384
# Independent accumulators of a row reduction: covers the latency of a vector add (4 cycles) at one add a cycle.
ROW_ACCUMULATORS = 4
# Registers that a step of an elementwise loop takes: enough to share constants and to have work for every unit.
VECTORS = 4
# Steps that an accumulator of a rounding reduction takes before it is added to a total: the error of a chain of
# additions grows with its length.
CHAIN_STEPS = 64


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
    merged = coalesced_shapes(body)
    k.shape_of.update(merged)
    shape = merged.get(root, type_of(root).shape)
    domain = domain_of(shape)
    target = streamed(k, Buffer(buffer.pointer, buffer.dtype, contiguous(shape)), list(k.buffers), shape)
    del k.buffers[root]

    def emit(target: Buffer) -> None:
        def element(index: list[Ix]) -> None:
            where = index[: len(shape)]  # of a 0-D result none
            k.store(target, where, k.read(root, where))

        vectors = max(VECTORS, vectors_a_line(k, target)) if k.lanes else 1
        for_tiles(k, begin, end, lambda tile: emit_domain(k, domain, tile, element, vectors))

    emit_streamed(k, target, emit, AHEAD_BYTES if any(map(is_expensive, body.operations)) else 0)
    return domain.tiles


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


# rows ----------------------------------------------------------------------------------------------------------------
def emit_rows(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """Reductions over trailing axes and what is elementwise around them, row by row, each row read from L1 after the
    first pass."""
    reductions = [op for op in body.operations if definition_of(op).kind == "reduce"]
    source = type_of(reductions[0].operands[0]).shape
    first_axis = min(attrs_of(reductions[0])["axes"])
    root = body.results[0]
    space = RowSpace.of(k, body, source, first_axis)
    del k.buffers[root]
    stored, target = _row_target(k, body)
    passes = [*(reduction.operands[0] for reduction in reductions), stored]
    slot = RowSlot(k, passes, [reduction.results[0] for reduction in reductions], target)

    def row(number: ir.Value, _: list[Val]) -> list[Val]:
        outer = k.delinearize(number, space.rows)
        for n, reduction in enumerate(reductions):
            is_kept = slot.keeps(n)
            scalar = _reduce_row(k, space, reduction, outer, slot if is_kept else None)
            k.bound[reduction.results[0]] = _always(scalar)
            if is_kept:
                slot.hold(passes[n])
        _store_row(k, space, stored, target, outer)
        slot.release()
        return []

    def tile_rows(tile: ir.Value) -> None:
        step = k.size(space.rows_a_tile)
        first = k.arith.mul(tile, step)
        k.for_(first, k.arith.min(k.size(space.row_count), k.arith.add(first, step)), 1, [], row)

    for_tiles(k, begin, end, tile_rows)
    return dims.ceildiv(space.row_count, space.rows_a_tile)


@dataclass(frozen=True)
class RowSpace:
    """Leading dimensions that rows run over, and the dimensions of a row."""

    rows: tuple[Size, ...]
    columns: tuple[Size, ...]

    @staticmethod
    def of(k: Kernel, body: KernelBody, source: tuple[Size, ...], first_axis: int) -> RowSpace:
        merged = coalesced_shapes(body, rank_kept=first_axis)
        if not merged:
            return RowSpace(source[:first_axis], source[first_axis:])
        k.shape_of.update(merged)
        rank = max(map(len, merged.values()))
        widest = [next((s[d] for s in merged.values() if s[d] != 1), 1) for d in range(rank)]
        count = next(i for i in range(rank + 1) if dims.product(source[:first_axis]) == dims.product(widest[:i]))
        return RowSpace(tuple(widest[:count]), tuple(widest[count:]))

    @property
    def row_count(self) -> Size:
        return dims.product(self.rows)

    @property
    def rows_a_tile(self) -> Size:
        return dims.maximum(1, dims.floordiv(TILE_ELEMENTS, dims.maximum(dims.product(self.columns), 1)))


def _reduce_row(
    k: Kernel, space: RowSpace, reduction: ir.Operation, outer: list[Ix], slot: RowSlot | None = None
) -> Val:  # fmt: skip
    """The scalar that `reduction` gives for this row; what it reduces is left in `slot`, if there is one."""
    definition = definition_of(reduction)
    rule = definition.rules["combine"](k.dtype(reduction.operands[0]), k.dtype(reduction.results[0]))
    source = reduction.operands[0]

    def read(columns: list[Ix]) -> Val:
        value = k.read_broadcast(source, [*outer, *columns])
        if slot is not None:
            slot.write([*outer, *columns], value)
        return value.cast(rule.dtype)

    def inner(leading: list[Ix], acc: Val) -> Val:
        return _reduce_lanes(k, space.columns[-1], rule, lambda i: read([*leading, i]), acc)

    start = k.constant(rule.initial, rule.dtype)
    total = _nest(k, space.columns[:-1], [], start, inner)
    count = k.size_val(dims.product(space.columns), rule.dtype)
    return rule.finish(total, count).cast(k.dtype(reduction.results[0]))


def _nest(k: Kernel, sizes: Sequence[Size], leading: list[Ix], acc: Val, inner) -> Val:
    if not sizes:
        return inner(leading, acc)
    if sizes[0] == 1:
        return _nest(k, sizes[1:], [*leading, k.ix(0)], acc, inner)
    return k.loop(sizes[0], [acc], lambda i, a: [_nest(k, sizes[1:], [*leading, i], a[0], inner)])[0]


def _reduce_lanes(k: Kernel, length: Size, rule, read, acc: Val) -> Val:
    """`acc` combined with `read(i)` for i in [0, length): several vector accumulators, a tail, then across lanes."""
    if not k.lanes:
        one = [k.constant(rule.initial, rule.dtype)]
        (total,) = _by_chains(k, k.size(length), 1, one, rule, lambda i, a: [rule.combine(a[0], read(Ix(k, i)))])
        return rule.combine(acc, total)
    step, stop = k.lanes, k.size(length)
    identity = k.splat(k.constant(rule.initial, rule.dtype))
    block = k.arith.mul(step, ROW_ACCUMULATORS)
    blocked = k.arith.sub(stop, k.arith.mod(stop, block))

    def many(i: ir.Value, accs: list[Val]) -> list[Val]:
        return [rule.combine(a, read(Ix(k, k.arith.add(i, k.arith.mul(step, n)), 1))) for n, a in enumerate(accs)]

    accs = [identity] * ROW_ACCUMULATORS
    if blocked != 0:
        accs = _by_chains(k, blocked, block, accs, rule, many)
    while len(accs) > 1:
        accs = [rule.combine(a, b) for a, b in zip(accs[::2], accs[1::2], strict=True)]
    full = k.arith.sub(stop, k.arith.mod(stop, step))
    if full != blocked:
        accs = k.for_(blocked, full, step, accs, lambda i, a: [rule.combine(a[0], read(Ix(k, i, 1)))])
    vector_acc = accs[0]
    if full != stop:
        vector_acc = _reduce_tail(k, full, stop, rule, read, vector_acc)
    return rule.combine(acc, across_lanes(k, rule, vector_acc))


def _by_chains(k: Kernel, stop: Number, step: Number, identities: list[Val], rule, body) -> list[Val]:
    """Accumulators of `body(i, accs)` over range(0, stop, step), begun anew every `CHAIN_STEPS` where they round."""
    span = k.arith.mul(step, CHAIN_STEPS)
    is_short = isinstance(stop, int) and isinstance(span, int) and stop <= span
    if not rule.rounds or is_short:
        return k.for_(0, stop, step, identities, body)

    def chain(first: ir.Value, totals: list[Val]) -> list[Val]:
        found = k.for_(first, k.arith.min(k.arith.add(first, span), stop), step, identities, body)
        return [rule.combine(total, value) for total, value in zip(totals, found, strict=True)]

    return k.for_(0, stop, span, identities, chain)


def _reduce_tail(k: Kernel, full: Number, stop: Number, rule, read, acc: Val) -> Val:
    def masked() -> list[Val]:
        with tail_mask(k, k.arith.sub(stop, full)) as mask:
            return [mask.select(rule.combine(acc, read(Ix(k, full, 1))), acc)]

    if isinstance(full, int) and isinstance(stop, int):
        return masked()[0]
    return k.choose(k.ix(full).lt(k.ix(stop)), masked, lambda: [acc])[0]


def across_lanes(k: Kernel, rule, value: Val) -> Val:
    """The lanes of `value` combined to a scalar, by halves where the vector is fixed, in order where it is scalable."""
    if not k.lanes_info.scalable_count:
        lanes = k.lanes
        current = value.value
        while lanes > 1:
            lanes //= 2
            low = vector.shuffle(current, current, list(range(lanes)))
            high = vector.shuffle(current, current, list(range(lanes, 2 * lanes)))
            current = rule.combine(Val(low, value.dtype), Val(high, value.dtype)).value
        return (
            Val(vector.extract(current, [], [0]), value.dtype)
            if isinstance(current.type, ir.VectorType)
            else Val(current, value.dtype)
        )
    total = Val(vector.extract(value.value, [], [0]), value.dtype)
    for lane in range(1, k.lanes):
        position = arith.index_cast(ir.IndexType.get(), k.number(lane))
        total = rule.combine(total, Val(vector.extract(value.value, [position], [_DYNAMIC]), value.dtype))
    return total


_DYNAMIC = -(2**63)


def _row_target(k: Kernel, body: KernelBody) -> tuple[ir.Value, Buffer]:
    """The value that is stored and its memory, trailing views taken off."""
    root, buffer = body.results[0], body.buffers[0]
    inside = _before_trailing_views(root)
    view = strides_before(inside, root)
    if view is None:
        raise EmitError(
            f"{inside.owner.name}: the row kernel's result cannot be written in place ({inside.owner.location})"
        )
    if inside in k.shape_of:
        view = contiguous(k.shape(inside))
    return inside, Buffer(buffer.pointer, buffer.dtype, view)


def _always(scalar: Val) -> Callable[[list[Ix]], Val]:
    return lambda _: scalar


def _store_row(k: Kernel, space: RowSpace, inside: ir.Value, target: Buffer, outer: list[Ix]) -> None:
    shape = k.shape(inside)
    rank = len(space.rows) + len(space.columns)
    if len(shape) < rank or all(s == 1 for s in shape[len(space.rows) :]):
        index = [*outer, *[k.ix(0)] * (len(shape) - len(space.rows))]
        k.store(target, index, k.read(inside, index))
        return

    def nest(sizes: Sequence[Size], leading: list[Ix]) -> None:
        if len(sizes) > 1:
            k.loop(sizes[0], [], lambda i, _: nest(sizes[1:], [*leading, i]))
            return
        emit_lanes(k, 0, k.size(sizes[0]), lambda i: k.store(target, [*leading, i], k.read(inside, [*leading, i])))

    nest(space.columns, list(outer))


def _before_trailing_views(root: ir.Value) -> ir.Value:
    value = root
    while value.owner.operation.name in ("mlc.reshape", "mlc.transpose", "mlc.copy"):
        value = value.owner.operation.operands[0]
    return value


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
