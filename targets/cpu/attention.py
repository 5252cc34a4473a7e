"""Attention by blocks of keys with an online softmax: scores never leave the stack.

A tile is one block of queries of one head. Scores are computed transposed, [key][query]: lanes run along queries, keys
are the rows that are broadcast. So neither K nor V is rearranged (the block of queries is, once), and a softmax is
maxima and sums of whole registers. The second product reads the same block with queries as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from mlc.dialects.val import Val
from mlc.dialects.vecmath import exp_nonpositive
from mlir import ir
from mlir.dialects import arith, vector

from .attention_plan import AttentionMask, AttentionPlan, AttentionSizes, attention_grid, plan_attention
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_scalar,
    load_vector,
    offset_ptr,
    splat,
    stack_array,
    store_vector,
    sum_dtype,
    zero_vector,
)
from .matmul import Epilogue, each_row_tile
from .microkernel import Panel, Rows, accumulate, zero_sums
from .packing import PanelCopy

__all__ = [
    "AttentionMask",
    "AttentionPlan",
    "AttentionSizes",
    "attention_grid",
    "emit_attention",
    "plan_attention",
]

_DIRECT_PANELS_MAX = 4  # V's rows at most this many panels apart are read in place


def emit_attention(
    isa: Isa, plan: AttentionPlan, sizes: AttentionSizes, q: StridedBuffer, k: StridedBuffer, v: StridedBuffer,
    scale: float, epilogue: Epilogue, begin: Size, end: Size, mask: AttentionMask | None = None,
    is_causal: bool = False,
) -> None:  # fmt: skip
    """The loop over tiles begin..end; the epilogue's index is [*batch, head, query, e].

    Head h meets group h // (heads / groups). is_causal: key j counts for query i where j <= i; later blocks are
    skipped. A query for which no key counts gives 0; NaN spreads to its row.
    """
    grid = attention_grid(sizes, plan)
    if plan.folds_heads:
        assert not is_causal, "plan_attention is told is_causal"
        sizes, q, mask, epilogue = _fold_heads(sizes, q, mask, epilogue)
    body = _Attention.make(isa, plan, sizes, (q, k, v), scale, epilogue, mask, is_causal)
    index.each(begin, end, 1, lambda tile: body.emit_tile(index.delinearize(tile, grid)))


def _fold_heads(
    sizes: AttentionSizes, q: StridedBuffer, mask: AttentionMask | None, epilogue: Epilogue
) -> tuple[AttentionSizes, StridedBuffer, AttentionMask | None, Epilogue]:
    """The same attention with the heads of a group as its queries."""
    count = sizes.heads // sizes.groups
    *batch, head, _, depth = q.strides
    q = replace(q, strides=(*batch, index.mul(head, count), head, depth))
    if mask is not None:
        *batch, head, _, key = mask.buffer.strides
        mask = AttentionMask(replace(mask.buffer, strides=(*batch, index.mul(head, count), head, key)))

    def unfolded(place: list[Size], value: ir.Value, lanes: ir.Value | None) -> None:
        *batch, group, member, column = place
        epilogue([*batch, index.add(index.mul(group, count), member), 0, column], value, lanes)

    return replace(sizes, heads=sizes.groups, queries=count), q, mask, unfolded


@dataclass(frozen=True)
class _Block:
    """A block of keys met by a tile's queries."""

    batch: list[Size]
    head: Size
    group: Size
    query: Size
    query_count: Size
    key: Size = 0
    key_count: Size = 0


@dataclass(frozen=True)
class _Attention:
    isa: Isa
    plan: AttentionPlan
    sizes: AttentionSizes
    q: StridedBuffer
    k: StridedBuffer
    v: StridedBuffer
    scale: float
    epilogue: Epilogue
    mask: AttentionMask | None
    is_causal: bool
    # Stack: queries [depth][Q], scores [key][Q], sums [Q][value columns], and a lane a query of each statistic.
    queries: ir.Value
    scores: ir.Value
    sums: ir.Value
    peaks: ir.Value
    totals: ir.Value
    factors: ir.Value
    values: ir.Value
    mask_copy: ir.Value | None

    @staticmethod
    def make(
        isa: Isa, plan: AttentionPlan, sizes: AttentionSizes, operands: Sequence[StridedBuffer], scale: float,
        epilogue: Epilogue, mask: AttentionMask | None, is_causal: bool,
    ) -> _Attention:  # fmt: skip
        q, k, v = operands
        total, width = sum_dtype(q.dtype), plan.tile_queries
        columns = isa.panel_columns(total)
        panels = index.ceil_div(sizes.value_depth, columns)
        mask_copy = None
        if mask is not None and not mask.is_one_row:
            mask_copy = stack_array(mask.stored_dtype, plan.block_keys * width)
        return _Attention(
            isa, plan, sizes, q, k, v, scale, epilogue, mask, is_causal,
            queries=stack_array(total, sizes.depth * width),
            scores=stack_array(total, plan.block_keys * width),
            sums=stack_array(total, width * panels * columns),
            peaks=stack_array(total, width),
            totals=stack_array(total, width),
            factors=stack_array(total, width),
            values=stack_array(total, plan.block_keys * columns),
            mask_copy=mask_copy,
        )  # fmt: skip

    @property
    def total(self) -> str:
        return sum_dtype(self.q.dtype)

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.total)

    @property
    def columns(self) -> int:
        return self.isa.panel_columns(self.total)

    @property
    def sums_stride(self) -> int:
        return index.ceil_div(self.sizes.value_depth, self.columns) * self.columns

    @property
    def key_rows(self) -> int:
        """Rows of the score tile: as many sums as the full register tile has."""
        return self.isa.tile[0] * self.isa.tile[1] // self.plan.query_vecs

    def _load(self, ptr: ir.Value, at: Size) -> Val:
        return Val(load_vector(self.isa, offset_ptr(ptr, at, self.total), self.total), self.total)

    def _store(self, value: Val, ptr: ir.Value, at: Size) -> None:
        store_vector(value.value, offset_ptr(ptr, at, self.total), self.total)

    def emit_tile(self, place: Sequence[Size]) -> None:
        *batch, head, query_block = place
        query = index.mul(query_block, self.plan.tile_queries)
        count = index.minimum(self.plan.tile_queries, index.sub(self.sizes.queries, query))
        group = index.floor_div(head, self.sizes.heads // self.sizes.groups)
        block = _Block(list(batch), head, group, query, count)
        self._begin(block)
        stop = self.sizes.keys
        if self.is_causal:
            # Up to whole register rows: what is past the diagonal is masked anyway.
            seen = index.mul(index.ceil_div(index.add(query, count), self.key_rows), self.key_rows)
            stop = index.minimum(stop, seen)

        def keys(key: ir.Value) -> None:
            size = index.minimum(self.plan.block_keys, index.sub(stop, key))
            here = replace(block, key=key, key_count=size)
            self._emit_scores(here)
            self._emit_softmax(here)
            self._emit_values(here)

        index.each(0, stop, self.plan.block_keys, keys)
        self._finish(block)

    def _begin(self, block: _Block) -> None:
        """Queries transposed and scaled; statistics of no key at all."""
        width = self.plan.tile_queries
        *_, query_stride, depth_stride = self.q.strides
        PanelCopy(
            self.isa, self.q.at([*block.batch, block.head, block.query, 0]), self.q.dtype, depth_stride, query_stride,
            self.sizes.depth, block.query_count, self.queries, width,
        ).emit()  # fmt: skip
        zero = Val(zero_vector(self.isa, self.total), self.total)

        def scaled(at: ir.Value) -> None:
            self._store(self._load(self.queries, at) * self.scale, self.queries, at)

        index.each(0, self.sizes.depth * width, self.lanes, scaled)
        for lane in range(0, width, self.lanes):
            self._store(zero.like(-np.inf), self.peaks, lane)
            self._store(zero, self.totals, lane)
        index.each(0, width * self.sums_stride, self.lanes, lambda at: self._store(zero, self.sums, at))

    def _known_tail(self, size: Size, block: int, rows: int) -> int | None:
        return size % rows if isinstance(size, int) and block % rows == 0 else None

    def _emit_scores(self, block: _Block) -> None:
        width, vecs = self.plan.tile_queries, self.plan.query_vecs
        key_stride = self.k.strides[-2]
        start = self.k.at([*block.batch, block.group, block.key, 0])

        def panel(column: ir.Value) -> None:
            queries = Panel(offset_ptr(self.queries, column, self.total), self.total, width, vecs, is_aligned=False)

            def rows(first: Size, height: int) -> None:
                pointers = [
                    offset_ptr(start, index.mul(index.add(first, r), key_stride), self.k.dtype) for r in range(height)
                ]
                keys = Rows(pointers, self.k.dtype, self.k.strides[-1])
                sums = zero_sums(self.isa, height, vecs, self.total)
                sums = accumulate(self.isa, keys, queries, self.sizes.depth, sums)
                for r, row in enumerate(sums):
                    for v, value in enumerate(row):
                        at = index.add(index.mul(index.add(first, r), width), index.add(column, v * self.lanes))
                        self._store(Val(value, self.total), self.scores, at)

            tail = self._known_tail(self.sizes.keys, self.plan.block_keys, self.key_rows)
            each_row_tile(block.key_count, self.key_rows, rows, tail)

        index.each(0, block.query_count, vecs * self.lanes, panel)

    def _emit_softmax(self, block: _Block) -> None:
        """Scores become powers; peaks, totals and the factor of earlier sums are brought up to date."""
        if self.mask is not None and self.mask_copy is not None:
            self._copy_mask(self.mask, block)

        def lane(column: ir.Value) -> None:
            before = self._load(self.peaks, column)
            peak = self._peak(block, column, before)
            safe = peak.eq(-np.inf).select(peak.like(0), peak)  # all masked so far: -inf - -inf would be NaN
            factor = Val(exp_nonpositive((before - safe).value), self.total)

            def power(key: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
                at = index.add(index.mul(key, self.plan.tile_queries), column)
                value = Val(exp_nonpositive((self._load(self.scores, at) - safe).value), self.total)
                self._store(value, self.scores, at)
                return [(Val(state[0], self.total) + value).value]

            zero = zero_vector(self.isa, self.total)
            (added,) = index.loop(0, block.key_count, 1, [zero], power)
            self._store(self._load(self.totals, column).fma(factor, Val(added, self.total)), self.totals, column)
            self._store(factor, self.factors, column)
            self._store(peak, self.peaks, column)

        index.each(0, block.query_count, self.lanes, lane)

    def _peak(self, block: _Block, column: ir.Value, before: Val) -> Val:
        """The largest score of each query so far; applies masks to the block's scores on the way."""
        if not self.is_causal:
            return self._masked_peak(block, column, before, is_diagonal=False)
        last_key = index.sub(index.add(block.key, block.key_count), 1)
        crosses = index.less(index.add(block.query, column), last_key)
        peak = index.choose(
            index.as_condition(crosses),
            before.value.type,
            lambda: self._masked_peak(block, column, before, is_diagonal=True).value,
            lambda: self._masked_peak(block, column, before, is_diagonal=False).value,
        )
        return Val(peak, self.total)

    def _masked_peak(self, block: _Block, column: ir.Value, before: Val, is_diagonal: bool) -> Val:
        query = self._lane_numbers(index.add(block.query, column)) if is_diagonal else None

        def one(key: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            at = index.add(index.mul(key, self.plan.tile_queries), column)
            score = self._load(self.scores, at)
            if self.mask is not None:
                score = self._apply_mask(self.mask, block, key, at, score)
            if query is not None:
                absolute = Val(arith.trunci(ir.IntegerType.get_signless(32), index.add(block.key, key)), "i32")
                score = query.ge(absolute).select(score, score.like(-np.inf))
            if self.mask is not None or query is not None:
                self._store(score, self.scores, at)
            return [score.larger(Val(state[0], self.total)).value]

        return Val(index.loop(0, block.key_count, 1, [before.value], one)[0], self.total)

    def _lane_numbers(self, first: Size) -> Val:
        """first, first + 1, ... as i32, a lane each."""
        number = ir.IntegerType.get_signless(32)
        type_ = self.isa.vector(number, self.total)
        if self.isa.is_scalable:
            steps = vector.step(self.isa.vector(ir.IndexType.get(), self.total))
            lane = arith.index_cast(type_, steps)
        else:
            attr = ir.DenseElementsAttr.get(np.arange(self.lanes, dtype=np.int32), type=type_)
            lane = arith.constant(type_, attr)
        return Val(lane, "i32") + Val(arith.trunci(number, index.to_value(first)), "i32")

    def _copy_mask(self, mask: AttentionMask, block: _Block) -> None:
        """The mask's block as scores lie, [key][query]."""
        buffer = replace(mask.buffer, dtype="u8") if mask.dtype == "bool" else mask.buffer
        source = buffer.at([*block.batch, block.head, block.query, block.key])
        PanelCopy(
            self.isa, source, buffer.dtype, buffer.strides[-1], buffer.strides[-2], block.key_count, block.query_count,
            self.mask_copy, self.plan.tile_queries,
        ).emit()  # fmt: skip

    def _apply_mask(self, mask: AttentionMask, block: _Block, key: ir.Value, at: Size, score: Val) -> Val:
        if self.mask_copy is None:
            place = [*block.batch, block.head, 0, index.add(block.key, key)]
            value = Val(load_scalar(mask.buffer.at(place), mask.dtype), mask.dtype)
        else:
            raw = load_vector(
                self.isa, offset_ptr(self.mask_copy, at, mask.stored_dtype), mask.stored_dtype, like=self.total
            )
            value = Val(raw, mask.stored_dtype)
            value = value.ne(0) if mask.dtype == "bool" else value
        if mask.dtype == "bool":
            return value.select(score, score.like(-np.inf))
        return score + value.cast(self.total)

    def _emit_values(self, block: _Block) -> None:
        """sums = sums * factor + powers x V, panel by panel of V's columns."""
        start = self.v.at([*block.batch, block.group, block.key, 0])
        *_, key_stride, column_stride = self.v.strides
        whole = self.sizes.value_depth // self.columns * self.columns
        # Rows far apart fall into few sets of the first-level cache: a panel copied side by side is 20% faster there
        # (8 heads of 1024 x 64 on Zen 3, 2026-12).
        is_near = isinstance(key_stride, int) and key_stride <= _DIRECT_PANELS_MAX * self.columns
        is_direct = is_near and isinstance(column_stride, int) and column_stride == 1 and self.v.dtype == self.total
        if is_direct and whole:

            def direct(column: ir.Value) -> None:
                ptr = offset_ptr(start, column, self.v.dtype)
                self._emit_value_panel(block, column, Panel(ptr, self.v.dtype, key_stride, self.isa.tile[1]))

            index.each(0, whole, self.columns, direct)

        def copied(column: Size) -> None:
            source = offset_ptr(start, index.mul(column, column_stride), self.v.dtype)
            left = index.sub(self.sizes.value_depth, column)
            PanelCopy(
                self.isa, source, self.v.dtype, key_stride, column_stride, block.key_count, left, self.values,
                self.columns,
            ).emit()  # fmt: skip
            panel = Panel(self.values, self.total, self.columns, self.isa.tile[1], is_aligned=True)
            self._emit_value_panel(block, column, panel)

        if not is_direct:
            index.each(0, self.sizes.value_depth, self.columns, copied)
        elif whole < self.sizes.value_depth:
            copied(whole)

    def _emit_value_panel(self, block: _Block, column: Size, panel: Panel) -> None:
        rows = self.isa.tile[0]

        def body(first: Size, height: int) -> None:
            pointers = [offset_ptr(self.scores, index.add(first, r), self.total) for r in range(height)]
            powers = Rows(pointers, self.total, self.plan.tile_queries)
            # From zero: the error of a chain over all blocks would grow with the number of keys.
            added = zero_sums(self.isa, height, panel.vecs, self.total)
            added = accumulate(self.isa, powers, panel, block.key_count, added)
            for r, row in enumerate(added):
                query = index.add(first, r)
                factor = load_scalar(offset_ptr(self.factors, query, self.total), self.total)
                factor_lanes = Val(splat(self.isa, factor, self.total), self.total)
                for value, at in zip(row, self._sum_places(query, column), strict=True):
                    earlier = self._load(self.sums, at)
                    self._store(earlier.fma(factor_lanes, Val(value, self.total)), self.sums, at)

        tail = self._known_tail(self.sizes.queries, self.plan.tile_queries, rows)
        each_row_tile(block.query_count, rows, body, tail)

    def _sum_places(self, query: Size, column: Size) -> list[Size]:
        start = index.add(index.mul(query, self.sums_stride), column)
        return [index.add(start, v * self.lanes) for v in range(self.isa.tile[1])]

    def _finish(self, block: _Block) -> None:
        depth = self.sizes.value_depth
        whole = depth // self.lanes * self.lanes

        def row(query: ir.Value) -> None:
            total = Val(load_scalar(offset_ptr(self.totals, query, self.total), self.total), self.total)
            inverse = total.eq(0).select(total.like(0), total.like(1) / total)
            place = [*block.batch, block.head, index.add(block.query, query)]

            def store(column: Size, mask: ir.Value | None) -> None:
                value = self._load(self.sums, index.add(index.mul(query, self.sums_stride), column)) * inverse
                self.epilogue([*place, column], value.value, mask)

            if whole:
                index.each(0, whole, self.lanes, lambda column: store(column, None))
            if whole < depth:
                store(whole, lane_mask(self.isa, self.total, depth - whole))

        index.each(0, block.query_count, 1, row)
