"""Row programs: reductions over trailing axes and what is elementwise around them.

A row is read from memory by the first pass over it, and by the others from the first-level cache; while they compute,
the next row is asked for. Every pass takes several registers a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlc.dialects.views import Strided, before_placing, contiguous, strides_before
from mlir import ir
from mlir.dialects import arith, vector

from .index import Ix, Number
from .isa.memory import stack_array
from .kernel import Buffer, EmitError, Kernel
from .loops import TILE_ELEMENTS, VECTORS, KernelBody, coalesced_shapes, emit_lanes, for_tiles, tail_mask
from .row_slot import RowSlot
from .streaming import bytes_of, emit_streamed, streamed

# Independent accumulators of a row reduction: covers the latency of a vector add (4 cycles) at one add a cycle.
ROW_ACCUMULATORS = 4
# Where an element takes tens of instructions, which then need the registers.
_EXPENSIVE_VECTORS = 2
# Steps that an accumulator of a rounding reduction takes before it is added to a total: the error of a chain of
# additions grows with its length.
CHAIN_STEPS = 64
# A row held on the stack, where the result is written past the caches: beside the row read it is to stay in L1.
_SLOT_BYTES_MAX = 16384
# Shorter rows are found by the core's own prefetchers.
_LEAST_AHEAD_BYTES = 512


def emit_rows(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """Reductions over trailing axes and what is elementwise around them, row by row, each row read from L1 after the
    first pass."""
    reductions = [op for op in body.operations if definition_of(op).kind == "reduce"]
    source = type_of(reductions[0].operands[0]).shape
    first_axis = min(attrs_of(reductions[0])["axes"])
    root = body.results[0]
    space = RowSpace.of(k, body, source, first_axis)
    values = list(k.buffers)
    del k.buffers[root]
    stored, target = _row_target(k, body)
    passes = [*(reduction.operands[0] for reduction in reductions), stored]
    ahead = _next_rows(k, space, body)

    def emit(target: Buffer) -> None:
        memory = _slot_memory(k, space, target)
        slot = RowSlot(k, passes, [reduction.results[0] for reduction in reductions], memory)

        def row(number: ir.Value, _: list[Val]) -> list[Val]:
            outer = k.delinearize(number, space.rows)
            for n, reduction in enumerate(reductions):
                is_kept = slot.keeps(n)
                # The first pass waits for memory itself; one that reads from the slot has no read to prefetch beside.
                k.ahead_bytes = ahead if n == min(1, len(reductions) - 1) else {}
                scalar = _reduce_row(k, space, reduction, outer, slot, is_kept)
                k.ahead_bytes = {}
                k.bound[reduction.results[0]] = _always(scalar)
                if is_kept:
                    slot.hold(passes[n])
            vectors = _EXPENSIVE_VECTORS if slot.is_expensive(stored) else VECTORS
            _store_row(k, space, stored, target, outer, vectors)
            slot.release()
            return []

        def tile_rows(tile: ir.Value) -> None:
            step = k.size(space.rows_a_tile)
            first = k.arith.mul(tile, step)
            k.for_(first, k.arith.min(k.size(space.row_count), k.arith.add(first, step)), 1, [], row)

        for_tiles(k, begin, end, tile_rows)
        for reduction in reductions:
            k.bound.pop(reduction.results[0], None)

    shape = (*space.rows, *space.columns)
    if len(target.view.strides) == len(shape) and not _is_reduced(k, space, stored):
        target = streamed(k, target, values, shape)
    emit_streamed(k, target, emit)
    return dims.ceildiv(space.row_count, space.rows_a_tile)


def _is_reduced(k: Kernel, space: RowSpace, stored: ir.Value) -> bool:
    """Whether the result has one element a row."""
    shape = k.shape(stored)
    return len(shape) < len(space.rows) + len(space.columns) or all(s == 1 for s in shape[len(space.rows) :])


def _slot_memory(k: Kernel, space: RowSpace, target: Buffer) -> Buffer:
    """Where a row is held: its place in the result, or the stack where that is written past the caches."""
    columns = dims.product(space.columns)
    is_short = isinstance(columns, int) and columns * DTYPES[target.dtype].bytes <= _SLOT_BYTES_MAX
    if not target.is_streamed or not is_short:
        return replace(target, is_streamed=False)
    assert isinstance(columns, int)
    strides = (*[0] * len(space.rows), *contiguous(space.columns).strides)
    return Buffer(stack_array(target.dtype, columns), target.dtype, Strided(0, strides))


def _next_rows(k: Kernel, space: RowSpace, body: KernelBody) -> dict[ir.Value, int]:
    """How far ahead the next row of each operand lies that comes from beyond the second-level cache."""
    columns, found = dims.product(space.columns), {}
    for value, buffer in k.buffers.items():
        size, row_bytes = bytes_of(value), columns * DTYPES[buffer.dtype].bytes
        if not isinstance(size, int) or not isinstance(row_bytes, int) or value in body.results:
            continue
        fits = _LEAST_AHEAD_BYTES <= row_bytes <= k.isa.l1_bytes // 2
        if fits and size > k.isa.l2_bytes and size == space.row_count * row_bytes:
            found[buffer.pointer] = row_bytes
    return found


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
    k: Kernel, space: RowSpace, reduction: ir.Operation, outer: list[Ix], slot: RowSlot, is_kept: bool
) -> Val:  # fmt: skip
    """The scalar that `reduction` gives for this row; what it reduces is left in `slot` if `is_kept`."""
    definition = definition_of(reduction)
    rule = definition.rules["combine"](k.dtype(reduction.operands[0]), k.dtype(reduction.results[0]))
    source = reduction.operands[0]

    def read(columns: list[Ix]) -> Val:
        value = k.read_broadcast(source, [*outer, *columns])
        if is_kept:
            slot.write([*outer, *columns], value)
        return value.cast(rule.dtype)

    vectors = _EXPENSIVE_VECTORS if slot.is_expensive(source) else ROW_ACCUMULATORS

    def inner(leading: list[Ix], acc: Val) -> Val:
        return _reduce_lanes(k, space.columns[-1], rule, lambda i: read([*leading, i]), acc, vectors)

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


def _reduce_lanes(k: Kernel, length: Size, rule, read, acc: Val, vectors: int) -> Val:
    """`acc` combined with `read(i)` for i in [0, length): several accumulators at once, a tail, then across lanes."""
    if not k.lanes:
        one = [k.constant(rule.initial, rule.dtype)]
        (total,) = _by_chains(k, k.size(length), 1, one, rule, lambda i, a: [rule.combine(a[0], read(Ix(k, i)))])
        return rule.combine(acc, total)
    step, stop = k.lanes, k.size(length)
    identity = k.splat(k.constant(rule.initial, rule.dtype))
    block = k.arith.mul(step, ROW_ACCUMULATORS)
    blocked = k.arith.sub(stop, k.arith.mod(stop, block))
    accs = [identity] * ROW_ACCUMULATORS

    def many(i: ir.Value, accs: list[Val]) -> list[Val]:
        found: list[Val] = []
        for first in range(0, ROW_ACCUMULATORS, vectors):
            at = k.arith.add(i, k.arith.mul(step, first))
            with k.wider(vectors):
                several = read(Ix(k, at, 1))
            found += _split(k, several, vectors)
        return [rule.combine(a, value) for a, value in zip(accs, found, strict=True)]

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


def _split(k: Kernel, several: Val, vectors: int) -> list[Val]:
    """The registers that a value of `vectors` registers is; each the scalar where it is uniform."""
    if not several.is_vector:
        return [several] * vectors
    element = ir.VectorType(several.value.type).element_type
    part = k.lane_type(element)
    lanes = k.lanes_info.scalable_count
    if lanes:
        pieces = [vector.scalable_extract(part, several.value, n * lanes) for n in range(vectors)]
    else:
        pieces = [
            vector.extract_strided_slice(part, several.value, [n * k.lanes], [k.lanes], [1]) for n in range(vectors)
        ]
    return [Val(piece, several.dtype) for piece in pieces]


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
    inside = before_placing(root)
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


def _store_row(
    k: Kernel, space: RowSpace, inside: ir.Value, target: Buffer, outer: list[Ix], vectors: int
) -> None:  # fmt: skip
    shape = k.shape(inside)
    if _is_reduced(k, space, inside):
        index = [*outer, *[k.ix(0)] * (len(shape) - len(space.rows))]
        k.store(target, index, k.read(inside, index))
        return

    def nest(sizes: Sequence[Size], leading: list[Ix]) -> None:
        if len(sizes) > 1:
            k.loop(sizes[0], [], lambda i, _: nest(sizes[1:], [*leading, i]))
            return

        def element(i: Ix) -> None:
            k.store(target, [*leading, i], k.read(inside, [*leading, i]))

        emit_lanes(k, 0, k.size(sizes[0]), element, vectors=vectors)

    nest(space.columns, list(outer))
