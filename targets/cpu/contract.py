"""Heroes with a register-tile emitter (matmul, conv, attention): connects operands and epilogue to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlc.dialects import dims
from mlc.dialects.attention import NO_BOUND, band_of
from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.val import Val
from mlc.dialects.views import Strided, before_placing, strides_before
from mlir import ir

from .attention import AttentionMask, AttentionSizes, Band, emit_attention, plan_attention
from .conv import ConvPlan, conv_layout, emit_conv, plan_conv
from .conv_geometry import ConvSizes
from .conv_winograd import WinogradPlan, emit_winograd
from .index import Ix, Number
from .isa.memory import StridedBuffer, prefetch, sum_dtype
from .kernel import Buffer, EmitError, Kernel
from .loops import KernelBody, coalesced_shapes
from .matmul import MatmulPlan, MatmulSizes, PackedPanels, emit_matmul, plan_matmul
from .packing import PAIRED
from .schedule import Plan, tuned

# The count of threads that tiles are balanced for; results do not depend on it.
PLANNED_THREADS = 2


def emit_contract(k: Kernel, body: KernelBody, begin: ir.Value, end: ir.Value) -> Size:
    """Finds the hero and hands its strided operands and the fused epilogue to its emitter."""
    hero = next(op for op in body.operations if definition_of(op).kind == "contract")
    name = definition_of(hero).name
    if name not in _HEROES:
        raise EmitError(f"{hero.name} has no register-tile emitter ({hero.location})")
    return _HEROES[name](k, body, hero, begin, end)


def strided_operand(k: Kernel, value: ir.Value) -> StridedBuffer:
    """The memory beneath `value`, strides as numbers. Raises EmitError where it has to be computed: fuse keeps that
    out."""
    buffer = k.buffer_beneath(value)
    if buffer is None:
        raise EmitError(f"an operand of a contraction is not in memory: {value.owner}")
    return strided_memory(k, buffer)


def strided_memory(k: Kernel, buffer: Buffer) -> StridedBuffer:
    return StridedBuffer(
        buffer.pointer, buffer.dtype, k.size(buffer.view.offset), tuple(k.size(s) for s in buffer.view.strides)
    )


@dataclass(frozen=True)
class EpilogueSpace:
    """Where a hero's elements go: the value stored, its memory, and the shape its index is taken in."""

    stored: ir.Value
    target: Buffer
    is_merged: bool


def epilogue_space(k: Kernel, body: KernelBody, hero: ir.Operation, may_merge: bool) -> EpilogueSpace:
    """Splits trailing views off and, if asked and possible, merges the leading dimensions of everything after the
    hero."""
    root, buffer = body.results[0], body.buffers[0]
    k.buffers.pop(root, None)
    stored = before_placing(root)
    view = strides_before(stored, root)
    if view is None:
        raise EmitError(f"{hero.name}: the result cannot be written in place ({hero.location})")
    rank = type_of(stored).rank
    if not may_merge or rank < 3:
        return EpilogueSpace(stored, Buffer(buffer.pointer, buffer.dtype, view), False)
    after = [op for op in body.operations if op != hero and _comes_after(op, hero, stored)]
    merged = coalesced_shapes(KernelBody(after, [stored], [buffer]), rank_kept=rank - 1) if after else {}
    if not after:
        shape = type_of(stored).shape
        merged = {stored: (dims.product(shape[:-1]), shape[-1])}
    flat = merged.get(stored, ())
    if len(flat) != 2 or not _is_rows(view, type_of(stored).shape):
        return EpilogueSpace(stored, Buffer(buffer.pointer, buffer.dtype, view), False)
    k.shape_of.update(merged)
    rows = Strided(view.offset, view.strides[-2:])
    return EpilogueSpace(stored, Buffer(buffer.pointer, buffer.dtype, rows), True)


def _is_rows(view: Strided, shape: Sequence[Size]) -> bool:
    """Whether the leading dimensions are one dimension in memory."""
    pairs = zip(view.strides[:-2], view.strides[1:-1], shape[1:-1], strict=True)
    return view.strides[-1] == 1 and all(outer == inner * size for outer, inner, size in pairs)


def _comes_after(op: ir.Operation, hero: ir.Operation, stored: ir.Value) -> bool:
    """Whether the op computes part of the epilogue (not a view of a hero operand, not a trailing view)."""
    pending, seen = [stored], set()
    while pending:
        value = pending.pop()
        if value == hero.results[0] or isinstance(value.owner, ir.Block):
            continue
        owner = value.owner.operation
        if owner == op:
            return True
        if owner not in seen:
            seen.add(owner)
            pending.extend(owner.operands)
    return False


def make_epilogue(k: Kernel, space: EpilogueSpace, hero: ir.Operation, bias: ir.Value | None = None) -> Callable:
    """`epilogue(index, sums, mask)` for the emitters: evaluates what follows the hero on one register and stores it.

    `bias` holds one element a column, added first.
    """
    result = hero.results[0]
    dtype = type_of(result).dtype
    wide = _wide_operands(k, space, hero)

    def epilogue(index: Sequence[Number], sums: ir.Value, mask: ir.Value | None) -> None:
        with k.scope():
            *outer, column = index
            where = [k.ix(i) for i in outer] + [Ix(k, column, 1)]
            k.tail = None if mask is None else Val(mask, "bool")
            total = Val(sums, dtype)
            if bias is not None:
                total = total + k.read(bias, where[-1:])
            k.bound[result] = lambda _: total
            for buffer, ahead in wide if mask is None else ():
                prefetch(k.element_pointer(buffer, (k.offset(buffer, where) + k.ix(ahead)).base))
            k.store(space.target, where, k.read(space.stored, where))
            k.tail = None

    return epilogue


# A panel is one line wide, so that its rows of a second operand (a residual, a gate) lie in as many pages, and the
# hardware's prefetchers see no pattern. In rows; measured on Zen 3, 2026-12.
_ROWS_AHEAD = 8


def _wide_operands(k: Kernel, space: EpilogueSpace, hero: ir.Operation) -> list[tuple[Buffer, int]]:
    """What the epilogue reads besides the sums, as large as the result, and how many elements ahead to ask for."""
    shape = k.shape(space.stored)
    pending, seen, found = [space.stored], set(), []
    while pending:
        value = pending.pop()
        if value == hero.results[0] or value in seen:
            continue
        seen.add(value)
        buffer = k.buffer_beneath(value)
        if buffer is None:
            pending.extend(value.owner.operands)
        elif k.shape(value) == shape and len(shape) > 1 and buffer.view.strides[-1] == 1:
            stride = buffer.view.strides[-2]
            if isinstance(stride, int):
                found.append((buffer, _ROWS_AHEAD * stride))
    return found


def _settled(k: Kernel, plan: Plan) -> Plan:
    """The plan that is emitted: an emitter's choice, with tuned numbers in place of its own where there are some."""
    k.plan = tuned(plan, k.schedule)
    return k.plan


# matmul --------------------------------------------------------------------------------------------------------------
def _emit_matmul(k: Kernel, body: KernelBody, hero: ir.Operation, begin: ir.Value, end: ir.Value) -> Size:
    attrs = attrs_of(hero)
    a_value, b_value = hero.operands
    a, result = strided_operand(k, a_value), type_of(hero.results[0])
    if attrs["transpose_a"]:
        a = swapped(a)
    b: StridedBuffer | PackedPanels
    if hero.name == "mlc.packed_matmul":
        b, b_shape = _run_time_panels(k, b_value, result.shape[-1])
    else:
        b, b_shape = _panels(k, a, b_value, attrs["transpose_b"]), type_of(b_value).shape
        b_shape = (*b_shape[:-2], b_shape[-1], b_shape[-2]) if attrs["transpose_b"] else b_shape
    k_size, n = b_shape[-2:]
    batch = result.shape[:-2]
    rows_merge = len(b_shape) == 2 and _merged_rows(k, a_value, attrs["transpose_a"])
    space = epilogue_space(k, body, hero, may_merge=bool(rows_merge))
    if space.is_merged:
        sizes = ((), dims.product(result.shape[:-1]), n, k_size)
        a = StridedBuffer(a.ptr, a.dtype, a.offset, tuple(a.strides[-2:]))
    else:
        sizes = (batch, result.shape[-2], n, k_size)
        a = _broadcast_batch(a, type_of(a_value).shape, batch)
    b = _broadcast_b(b, b_shape, sizes[0])
    epilogue = make_epilogue(k, space, hero)
    known = MatmulSizes(*sizes)
    numbers = MatmulSizes(tuple(map(k.size, known.batch)), k.size(known.m), k.size(known.n), k.size(known.k))
    is_packed = isinstance(b, PackedPanels)
    plan = _settled(k, plan_matmul(k.isa, numbers, a.dtype, PLANNED_THREADS, is_packed, _is_long(body, hero)))
    emit_matmul(k.isa, plan, numbers, a, b, epilogue, begin, end)
    return dims.product(_grid_sizes(known, plan))


def _grid_sizes(sizes: MatmulSizes, plan: MatmulPlan) -> list[Size]:
    """`matmul_grid` over size expressions."""
    return [*sizes.batch, dims.ceildiv(sizes.m, plan.tile_rows), dims.ceildiv(sizes.n, plan.tile_columns)]


def _is_long(body: KernelBody, hero: ir.Operation) -> bool:
    """Whether the epilogue holds a transcendental, which is too long to be repeated for every row of the tile."""
    return any(definition_of(op).family == "pointwise_math" for op in body.operations if op != hero)


def swapped(buffer: StridedBuffer) -> StridedBuffer:
    strides = list(buffer.strides)
    strides[-1], strides[-2] = strides[-2], strides[-1]
    return StridedBuffer(buffer.ptr, buffer.dtype, buffer.offset, tuple(strides))


def _run_time_panels(k: Kernel, value: ir.Value, columns: Size) -> tuple[PackedPanels, tuple[Size, ...]]:
    """What `pack_panels` wrote, and the shape it was packed from."""
    *batch, _, depth, width = type_of(value).shape
    if width != k.isa.panel_columns(type_of(value).dtype):
        raise EmitError(f"panels of {width} columns do not fit this machine's register tile")
    strided = strided_operand(k, value)
    strides = tuple(0 if size == 1 else stride for size, stride in zip(batch, strided.strides, strict=False))
    return PackedPanels(strided.at([]), strided.dtype, strides), (*batch, depth, columns)


def _takes_pairs(k: Kernel, factor: StridedBuffer, weight: ir.Value) -> bool:
    """Whether a step of the register tile takes two k at once."""
    is_run = isinstance(factor.strides[-1], int) and factor.strides[-1] == 1
    return is_run and bool(k.isa.dot) and factor.dtype == type_of(weight).dtype == "bf16"


def _panels(k: Kernel, a: StridedBuffer, value: ir.Value, is_transposed: bool) -> StridedBuffer | PackedPanels:
    if value in k.packed:
        shape = type_of(value).shape
        columns = k.isa.panel_columns(sum_dtype(type_of(value).dtype))
        depth, width = (shape[-1], shape[-2]) if is_transposed else (shape[-2], shape[-1])
        is_paired = _takes_pairs(k, a, value)
        if is_paired:
            k.packed[value] += PAIRED
            depth = dims.ceildiv(depth, 2) * 2
        step: Size = dims.ceildiv(width, columns) * columns * depth
        strides: list[Size] = []
        for size in reversed(shape[:-2]):
            strides.append(0 if size == 1 else step)
            step = step * size
        batch = tuple(k.size(s) for s in reversed(strides))
        return PackedPanels(k.buffers[value].pointer, type_of(value).dtype, batch, is_paired)
    strided = strided_operand(k, value)
    return swapped(strided) if is_transposed else strided


def _merged_rows(k: Kernel, value: ir.Value, is_transposed: bool) -> bool:
    """Whether the leading dimensions of A and its rows are one dimension in memory."""
    buffer = k.buffer_beneath(value)
    shape = type_of(value).shape
    if buffer is None or is_transposed:
        return False
    strides: tuple[Size, ...] = buffer.view.strides
    return all(shape[d] == 1 or strides[d] == strides[d + 1] * shape[d + 1] for d in range(len(shape) - 2))


def _broadcast_batch(buffer: StridedBuffer, shape: Sequence[Size], batch: Sequence[Size]) -> StridedBuffer:
    """Strides with one entry a batch dimension, 0 where the operand has none or one element."""
    own = list(buffer.strides[:-2])
    own = [0 if s == 1 else stride for s, stride in zip(shape[:-2], own, strict=True)]
    lead = [0] * (len(batch) - len(own))
    return StridedBuffer(buffer.ptr, buffer.dtype, buffer.offset, (*lead, *own, *buffer.strides[-2:]))


def _broadcast_b(b: StridedBuffer | PackedPanels, shape: Sequence[Size], batch: Sequence[Size]):
    if isinstance(b, PackedPanels):
        strides = (0,) * (len(batch) - len(b.batch_strides)) + tuple(b.batch_strides)
        return PackedPanels(b.ptr, b.dtype, strides[len(strides) - len(batch):] if batch else (), b.is_paired)
    return _broadcast_batch(b, shape, batch)


# convolution ---------------------------------------------------------------------------------------------------------
def _emit_conv(k: Kernel, body: KernelBody, hero: ir.Operation, begin: ir.Value, end: ir.Value) -> Size:
    x_value, w_value, bias = operands_of(hero)
    known = _conv_sizes(hero, attrs_of(hero))
    sizes = _numbers(k, known)
    x = strided_operand(k, x_value)
    pairs = bool(k.isa.dot) and x.dtype == type_of(w_value).dtype == "bf16"
    plan = _settled(k, plan_conv(k.isa, sizes, x.dtype, x.strides, PLANNED_THREADS, _is_long(body, hero), pairs))
    if w_value not in k.packed:
        raise EmitError(f"{hero.name}: its weight is not packed ({hero.location})")
    k.packed[w_value] = conv_layout(plan.form, known.groups, plan.is_channels_first, plan.is_paired)
    space = epilogue_space(k, body, hero, may_merge=False)
    epilogue = make_epilogue(k, space, hero, bias)
    weights = PackedPanels(k.buffers[w_value].pointer, type_of(w_value).dtype, is_paired=plan.is_paired)
    emit_conv(k.isa, plan, sizes, x, weights, epilogue, begin, end)
    return _conv_tiles(known, plan)


def _numbers(k: Kernel, sizes: ConvSizes) -> ConvSizes:
    """Expressions as numbers, or values of the run."""
    return replace(
        sizes, batch=k.size(sizes.batch), input=tuple(map(k.size, sizes.input)), output=tuple(map(k.size, sizes.output))
    )


def _conv_sizes(hero: ir.Operation, attrs: Mapping[str, Any]) -> ConvSizes:
    """Sizes as expressions."""
    x, w = type_of(hero.operands[0]).shape, type_of(hero.operands[1]).shape
    groups = attrs["groups"]
    return ConvSizes(
        x[0], groups, w[1], w[0] // groups, tuple(x[1:-1]), tuple(type_of(hero.results[0]).shape[1:-1]), tuple(w[2:]),
        tuple(attrs["strides"]), tuple(attrs["pads_low"]), tuple(attrs["dilations"]),
    )


def _conv_tiles(sizes: ConvSizes, plan: ConvPlan) -> Size:
    """The product of `conv_grid` over size expressions."""
    if plan.form == "depthwise":
        *lines, width = sizes.output
        columns = sizes.groups * sizes.channels
        blocks = dims.ceildiv(width, plan.tile_rows) * dims.ceildiv(columns, plan.tile_columns)
        return sizes.batch * dims.ceildiv(dims.product(lines), plan.tile_lines) * blocks
    pixels = dims.ceildiv(dims.product(sizes.output), plan.tile_rows)
    return sizes.batch * sizes.groups * pixels * dims.ceildiv(sizes.outputs, plan.tile_columns)


def _emit_conv_winograd(k: Kernel, body: KernelBody, hero: ir.Operation, begin: ir.Value, end: ir.Value) -> Size:
    x_value, w_value, scratch, bias = operands_of(hero)
    attrs = attrs_of(hero)
    known = _conv_sizes(hero, {**attrs, "groups": 1, "strides": (1, 1), "dilations": (1, 1)})
    plan = WinogradPlan(attrs["block"], attrs["columns"], attrs["group"])
    if w_value not in k.packed:
        raise EmitError(f"{hero.name}: its weight is not packed ({hero.location})")
    k.packed[w_value] = conv_layout("taps", 1, is_channels_first=False)
    weights = PackedPanels(k.buffers[w_value].pointer, "f32")
    epilogue = make_epilogue(k, epilogue_space(k, body, hero, may_merge=False), hero, bias)
    memory = strided_operand(k, scratch).at([])
    emit_winograd(k.isa, plan, _numbers(k, known), strided_operand(k, x_value), weights, memory, epilogue, begin, end)
    tiles = dims.product([known.batch, *(dims.ceildiv(size, 2) for size in known.output)])
    return dims.ceildiv(tiles, plan.block) * dims.ceildiv(known.outputs, plan.columns)


# attention -----------------------------------------------------------------------------------------------------------
def _emit_attention(k: Kernel, body: KernelBody, hero: ir.Operation, begin: ir.Value, end: ir.Value) -> Size:
    attrs, (q_value, k_value, v_value, mask_value) = attrs_of(hero), operands_of(hero)
    q_shape, k_shape, v_shape = (type_of(x).shape for x in (q_value, k_value, v_value))

    def sizes_of(number: Callable[[Size], Number]) -> AttentionSizes:
        batch = tuple(number(s) for s in q_shape[:-3])
        return AttentionSizes(
            batch, q_shape[-3], k_shape[-3], number(q_shape[-2]), number(k_shape[-2]), q_shape[-1], v_shape[-1]
        )

    q, keys, values = (strided_operand(k, x) for x in (q_value, k_value, v_value))
    mask = None if mask_value is None else AttentionMask(_broadcast_mask(k, mask_value, (*q_shape[:-1], k_shape[-2])))
    mask_dtype = mask.dtype if mask is not None and not mask.is_one_row else None
    band = Band(*(None if bound == NO_BOUND else bound for bound in band_of(attrs)))
    plan = _settled(k, plan_attention(k.isa, sizes_of(k.size), q.dtype, mask_dtype, band))
    space = epilogue_space(k, body, hero, may_merge=False)
    emit_attention(
        k.isa, plan, sizes_of(k.size), q, keys, values, attrs["scale"], make_epilogue(k, space, hero), begin, end, mask,
        band,
    )
    known = sizes_of(lambda size: size)
    rows = dims.ceildiv(known.heads // known.groups if plan.folds_heads else known.queries, plan.tile_queries)
    return dims.product(known.batch) * (known.groups if plan.folds_heads else known.heads) * rows


def _broadcast_mask(k: Kernel, value: ir.Value, scores: Sequence[Size]) -> StridedBuffer:
    buffer, shape = strided_operand(k, value), type_of(value).shape
    own = [0 if s == 1 else stride for s, stride in zip(shape, buffer.strides, strict=True)]
    return StridedBuffer(buffer.ptr, buffer.dtype, buffer.offset, (*[0] * (len(scores) - len(own)), *own))


_HEROES: dict[str, Callable[..., Size]] = {
    "matmul": _emit_matmul, "packed_matmul": _emit_matmul, "conv": _emit_conv, "conv_winograd": _emit_conv_winograd,
    "attention": _emit_attention,
}
