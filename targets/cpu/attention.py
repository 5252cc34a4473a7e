"""Attention by blocks of keys with an online softmax: scores never leave the stack.

A tile is one block of queries of one head. Scores are computed transposed, [key][query]: lanes run along queries, keys
are the rows that are broadcast. So neither K nor V is rearranged (the block of queries is, once), and a softmax is
maxima and sums of whole registers. The second product reads the same block with queries as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir

from .attention_mask import LOG2_E, Block, Masking
from .attention_plan import (
    EVERYTHING,
    AttentionMask,
    AttentionPlan,
    AttentionSizes,
    Band,
    attention_grid,
    plan_attention,
)
from .attention_powers import Powers
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_scalar,
    load_vector,
    offset_ptr,
    prefetch,
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
    "Band",
    "attention_grid",
    "emit_attention",
    "plan_attention",
]

_FETCH_BYTES = 128  # lines come in pairs


def emit_attention(
    isa: Isa, plan: AttentionPlan, sizes: AttentionSizes, q: StridedBuffer, k: StridedBuffer, v: StridedBuffer,
    scale: float, epilogue: Epilogue, begin: Size, end: Size, mask: AttentionMask | None = None,
    band: Band = EVERYTHING,
) -> None:  # fmt: skip
    """The loop over tiles begin..end; the epilogue's index is [*batch, head, query, e].

    Head h meets group h // (heads / groups). Blocks of keys outside the band, or that the mask hides, are skipped. A
    query for which no key counts gives 0; NaN spreads to its row.
    """
    grid = attention_grid(sizes, plan)
    if plan.folds_heads:
        assert not band, "plan_attention is told the band"
        sizes, q, mask, epilogue = _fold_heads(sizes, q, mask, epilogue)
    body = _Attention.make(isa, plan, sizes, (q, k, v), scale, epilogue, mask, band)
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
class _Attention:
    isa: Isa
    plan: AttentionPlan
    sizes: AttentionSizes
    q: StridedBuffer
    k: StridedBuffer
    v: StridedBuffer
    scale: float
    epilogue: Epilogue
    masking: Masking
    # Stack: queries [depth][Q], scores [key][Q], sums [Q][value columns], and a lane a query of each statistic.
    queries: ir.Value
    scores: ir.Value
    sums: ir.Value
    values: ir.Value
    powers: Powers

    @staticmethod
    def make(
        isa: Isa, plan: AttentionPlan, sizes: AttentionSizes, operands: Sequence[StridedBuffer], scale: float,
        epilogue: Epilogue, mask: AttentionMask | None, band: Band,
    ) -> _Attention:  # fmt: skip
        q, k, v = operands
        total, width = sum_dtype(q.dtype), plan.tile_queries
        columns = isa.panel_columns(total)
        panels = index.ceil_div(sizes.value_depth, columns)
        masking = Masking.make(isa, total, sizes, band, mask, width, plan.block_keys)
        scores = stack_array(total, plan.block_keys * width)
        return _Attention(
            isa, plan, sizes, q, k, v, scale, epilogue, masking,
            queries=stack_array(total, sizes.depth * width),
            scores=scores,
            sums=stack_array(total, width * panels * columns),
            values=stack_array(total, plan.block_keys * columns),
            powers=Powers.make(isa, total, width, plan.query_vecs, scores),
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
        block = Block(list(batch), head, group, query, count)
        self._begin(block)
        # Out to whole register rows: what is past a band's edge is masked anyway.
        first, stop = self.masking.key_range(block, self.key_rows)

        def keys(key: ir.Value) -> None:
            size = index.minimum(self.plan.block_keys, index.sub(stop, key))
            self._emit_block(replace(block, key=key, key_count=size))

        index.each(first, stop, self.plan.block_keys, keys)
        self._finish(block)

    def _begin(self, block: Block) -> None:
        """Queries transposed and scaled; statistics of no key at all."""
        width = self.plan.tile_queries
        *_, query_stride, depth_stride = self.q.strides
        PanelCopy(
            self.isa, self.q.at([*block.batch, block.head, block.query, 0]), self.q.dtype, depth_stride, query_stride,
            self.sizes.depth, block.query_count, self.queries, width,
        ).emit()  # fmt: skip
        zero = Val(zero_vector(self.isa, self.total), self.total)

        def scaled(at: ir.Value) -> None:
            self._store(self._load(self.queries, at) * (self.scale * LOG2_E), self.queries, at)

        index.each(0, self.sizes.depth * width, self.lanes, scaled)
        self.powers.begin()
        index.each(0, width * self.sums_stride, self.lanes, lambda at: self._store(zero, self.sums, at))

    def _known_tail(self, size: Size, block: int, rows: int) -> int | None:
        return size % rows if isinstance(size, int) and block % rows == 0 else None

    def _emit_block(self, block: Block) -> None:
        """Nothing for a block that no query sees; no mask where each query sees all of it."""
        is_seen, is_whole = self.masking.inspect(block)

        def masked() -> None:
            self.masking.prepare(block)
            self._emit_scores(block, is_masked=True)

        def seen() -> None:
            index.when(is_whole, lambda: self._emit_scores(block, is_masked=False), masked)
            self.powers.settle(block.query_count)

            def powers(is_masked: bool) -> None:
                self.powers.emit(block.query_count, block.key_count, is_masked)

            index.when(is_whole, lambda: powers(False), lambda: powers(True))
            self._emit_values(block)

        index.when(is_seen, seen)

    def _emit_scores(self, block: Block, is_masked: bool) -> None:
        """Scores, and the largest of each query, tile by tile: a tile's keys meet all queries."""
        key_stride = self.k.strides[-2]
        start = self.k.at([*block.batch, block.group, block.key, 0])

        def rows(first: Size, height: int) -> None:
            pointers = [
                offset_ptr(start, index.mul(index.add(first, r), key_stride), self.k.dtype) for r in range(height)
            ]
            keys = Rows(pointers, self.k.dtype, self.k.strides[-1])
            # Panels of its columns would meet each line as a miss.
            self._fetch(self.v, block, first, height, self.sizes.value_depth)

            def panels(is_plain: bool) -> None:
                index.each(
                    0, block.query_count, self.plan.query_vecs * self.lanes,
                    lambda column: self._emit_score_tile(block, keys, first, column, not is_plain),
                )  # fmt: skip

            is_plain = True
            if is_masked:
                is_plain = self.masking.is_plain(replace(block, key=index.add(block.key, first), key_count=height))
            index.when(is_plain, lambda: panels(True), lambda: panels(False))

        tail = self._known_tail(self.sizes.keys, self.plan.block_keys, self.key_rows)
        each_row_tile(block.key_count, self.key_rows, rows, tail)

    def _emit_score_tile(self, block: Block, keys: Rows, first: Size, column: Size, is_masked: bool) -> None:
        """A register tile of scores: stored, and its largest taken."""
        width, vecs, height = self.plan.tile_queries, self.plan.query_vecs, len(keys.pointers)
        queries = Panel(offset_ptr(self.queries, column, self.total), self.total, width, vecs)
        sums = zero_sums(self.isa, height, vecs, self.total)
        sums = accumulate(self.isa, keys, queries, self.sizes.depth, sums)
        places = [index.add(column, v * self.lanes) for v in range(vecs)]
        peaks = [self.powers.peak(at) for at in places]
        for r, row in enumerate(sums):
            key = index.add(first, r)
            for v, (value, at) in enumerate(zip(row, places, strict=True)):
                score = Val(value, self.total)
                if is_masked:
                    score = self.masking.apply(block, key, at, score)
                self._store(score, self.scores, index.add(index.mul(key, width), at))
                peaks[v] = score.larger(peaks[v])
        for peak, at in zip(peaks, places, strict=True):
            self.powers.set_peak(peak, at)

    def _fetch(self, buffer: StridedBuffer, block: Block, first: Size, height: int, depth: int) -> None:
        """Asks for rows of K or V, which a sequence of some length has in the third-level cache."""
        *_, key_stride, column_stride = buffer.strides
        if not (isinstance(column_stride, int) and column_stride == 1):
            return
        start = buffer.at([*block.batch, block.group, index.add(block.key, first), 0])
        for r in range(height):
            row = offset_ptr(start, index.mul(r, key_stride), buffer.dtype)
            for column in range(0, depth, _FETCH_BYTES // DTYPES[buffer.dtype].bytes):
                prefetch(offset_ptr(row, column, buffer.dtype))

    def _emit_values(self, block: Block) -> None:
        """sums = sums * factor + powers x V, panel by panel of V's columns."""
        start = self.v.at([*block.batch, block.group, block.key, 0])
        *_, key_stride, column_stride = self.v.strides
        whole = self.sizes.value_depth // self.columns * self.columns
        # In place: copying a panel costs more than what rows far apart lose in the first-level cache, now that they are
        # asked for ahead of time (4 to 8% on Zen 3 with 8, 9, 12 and 16 heads inside a position, 2026-12).
        is_direct = isinstance(column_stride, int) and column_stride == 1 and self.v.dtype == self.total
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

    def _emit_value_panel(self, block: Block, column: Size, panel: Panel) -> None:
        rows = self.isa.tile[0]
        tail = self._known_tail(self.sizes.queries, self.plan.tile_queries, rows)

        def body(first: Size, height: int) -> None:
            self._emit_value_tile(block, first, height, column, panel)

        each_row_tile(block.query_count, rows, body, tail)

    def _emit_value_tile(self, block: Block, first: Size, height: int, column: Size, panel: Panel) -> None:
        """A register tile of queries and one panel of V's columns."""
        pointers = [offset_ptr(self.scores, index.add(first, r), self.total) for r in range(height)]
        powers = Rows(pointers, self.total, self.plan.tile_queries)
        # From zero: the error of a chain over all blocks would grow with the number of keys.
        added = zero_sums(self.isa, height, panel.vecs, self.total)
        added = accumulate(self.isa, powers, panel, block.key_count, added, self.plan.block_keys)
        for r, row in enumerate(added):
            query = index.add(first, r)
            factor = load_scalar(offset_ptr(self.powers.factors, query, self.total), self.total)
            factor_lanes = Val(splat(self.isa, factor, self.total), self.total)
            for value, at in zip(row, self._sum_places(query, column), strict=True):
                earlier = self._load(self.sums, at)
                self._store(earlier.fma(factor_lanes, Val(value, self.total)), self.sums, at)

    def _sum_places(self, query: Size, column: Size) -> list[Size]:
        start = index.add(index.mul(query, self.sums_stride), column)
        return [index.add(start, v * self.lanes) for v in range(self.isa.tile[1])]

    def _finish(self, block: Block) -> None:
        depth = self.sizes.value_depth
        whole = depth // self.lanes * self.lanes

        def row(query: ir.Value) -> None:
            total = Val(load_scalar(offset_ptr(self.powers.totals, query, self.total), self.total), self.total)
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
