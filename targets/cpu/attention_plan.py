"""Sizes and blocks of an attention kernel: what fits the stack."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlc.dialects.types import DTYPES

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import STACK_BYTES_MAX, StridedBuffer, sum_dtype


@dataclass(frozen=True)
class AttentionSizes:
    """q [*batch, heads, queries, depth], k [*batch, groups, keys, depth], v [*batch, groups, keys, value_depth]."""

    batch: tuple[Size, ...]
    heads: int
    groups: int
    queries: Size
    keys: Size
    depth: int
    value_depth: int


@dataclass(frozen=True)
class AttentionPlan:
    """Queries in a tile, keys in a block, and registers of queries in a register tile."""

    tile_queries: int
    block_keys: int
    query_vecs: int
    folds_heads: bool = False  # one query: the heads that share keys are the lanes


@dataclass(frozen=True)
class Band:
    """Key j counts for query i where i - before <= j <= i + after; None: no bound on that side."""

    before: int | None = None
    after: int | None = None

    def __bool__(self) -> bool:
        return self.before is not None or self.after is not None


EVERYTHING = Band()


@dataclass(frozen=True)
class AttentionMask:
    """Added to the scores, or bool: true where a key counts; strides [*batch, heads, queries, keys], 0 broadcasts."""

    buffer: StridedBuffer

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def is_one_row(self) -> bool:
        """The same for all queries."""
        return isinstance(self.buffer.strides[-2], int) and self.buffer.strides[-2] == 0

    @property
    def scanned_dtype(self) -> str:
        """What it is read as where it lies."""
        return "u8" if self.dtype == "bool" else self.dtype

    @property
    def stored_dtype(self) -> str:
        """What a block of it is copied as."""
        return "u8" if self.dtype == "bool" else sum_dtype(self.dtype)


_QUERIES_MAX = 48
_KEYS_MAX = 128
_KEYS_MIN = 24
_RESERVE_BYTES = 2048  # of stack, for spills and the rows' statistics


def plan_attention(
    isa: Isa, sizes: AttentionSizes, dtype: str, mask_dtype: str | None = None, band: Band = EVERYTHING
) -> AttentionPlan:
    """The largest blocks whose stack arrays fit.

    `mask_dtype` is given where the mask differs from query to query (or, for one query, from head to head).

    Raises: ValueError where not even the smallest fit.
    """
    total = sum_dtype(dtype)
    lanes, (rows, vecs) = isa.lanes(total), isa.tile
    folds_heads = isinstance(sizes.queries, int) and sizes.queries == 1 and sizes.heads > sizes.groups and not band
    if folds_heads:
        sizes = replace(sizes, heads=sizes.groups, queries=sizes.heads // sizes.groups)
    if isinstance(sizes.queries, int) and sizes.queries <= lanes:
        vecs = 1
    width = vecs * lanes
    most = max(width, _QUERIES_MAX // width * width)
    if isinstance(sizes.queries, int):
        most = min(most, max(1, index.ceil_div(sizes.queries, width)) * width)
    mask_bytes = 0 if mask_dtype is None else DTYPES[mask_dtype].bytes
    key_rows = rows * isa.tile[1] // vecs
    for keys in (_KEYS_MAX, _KEYS_MAX // 2, _KEYS_MIN):
        for queries in range(most, 0, -width):
            plan = AttentionPlan(
                queries, _block_keys(_span(sizes, band, queries, key_rows), keys, key_rows), vecs, folds_heads
            )
            if _stack_bytes(isa, plan, sizes, total, mask_bytes) <= STACK_BYTES_MAX:
                return plan
    raise ValueError(f"attention with a head of {sizes.depth} and {sizes.value_depth} does not fit the stack")


def _span(sizes: AttentionSizes, band: Band, queries: int, key_rows: int) -> Size:
    """The most keys that a tile of so many queries meets, both ends out to whole register rows."""
    if band.before is not None and band.after is not None:
        span = band.before + queries + band.after + 2 * (key_rows - 1)
        return min(span, sizes.keys) if isinstance(sizes.keys, int) else span
    return sizes.keys


def _block_keys(span: Size, most: int, key_rows: int) -> int:
    """Whole register rows: equal shares of a span that is known, so that the last block is not a sliver."""
    if not isinstance(span, int):
        return max(key_rows, most // key_rows * key_rows)
    blocks = max(1, index.ceil_div(span, most))
    return max(1, index.ceil_div(index.ceil_div(span, blocks), key_rows)) * key_rows


def _stack_bytes(isa: Isa, plan: AttentionPlan, sizes: AttentionSizes, total: str, mask_bytes: int) -> int:
    columns = isa.panel_columns(total)
    values = index.ceil_div(sizes.value_depth, columns) * columns
    elements = plan.tile_queries * (sizes.depth + values + plan.block_keys) + plan.block_keys * columns
    mask = plan.tile_queries * plan.block_keys * mask_bytes
    return elements * DTYPES[total].bytes + mask + _RESERVE_BYTES


def attention_grid(sizes: AttentionSizes, plan: AttentionPlan) -> list[Size]:
    """Tiles a dimension, [*batch, heads, query blocks]; their product is the kernel's tile count."""
    if plan.folds_heads:
        return [*sizes.batch, sizes.groups, index.ceil_div(sizes.heads // sizes.groups, plan.tile_queries)]
    return [*sizes.batch, sizes.heads, index.ceil_div(sizes.queries, plan.tile_queries)]
