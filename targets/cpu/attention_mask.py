"""Which keys count for which queries: the range of keys of a tile, what a block of keys needs, a register of scores.

Blocks where no key counts are not computed, and blocks where all count are computed without a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir
from mlir.dialects import arith, vector

from .attention_plan import AttentionMask, AttentionSizes, Band
from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import load_scalar, load_vector, offset_ptr, stack_array
from .packing import PanelCopy

LOG2_E = 1.4426950408889634  # scores are in powers of two


@dataclass(frozen=True)
class Block:
    """A block of keys met by a tile's queries."""

    batch: list[Size]
    head: Size
    group: Size
    query: Size
    query_count: Size
    key: Size = 0
    key_count: Size = 0


@dataclass(frozen=True)
class Masking:
    """The band and the mask of one attention; `copy` holds a block of the mask as scores lie, [key][query]."""

    isa: Isa
    total: str
    sizes: AttentionSizes
    band: Band
    mask: AttentionMask | None
    width: int  # queries of a tile
    copy: ir.Value | None

    @staticmethod
    def make(
        isa: Isa, total: str, sizes: AttentionSizes, band: Band, mask: AttentionMask | None, width: int, keys: int
    ) -> Masking:
        """`width` and `keys` are the most queries and keys of a block."""
        copy = None
        if mask is not None and not mask.is_one_row:
            copy = stack_array(mask.stored_dtype, keys * width)
        return Masking(isa, total, sizes, band, mask, width, copy)

    @property
    def is_trivial(self) -> bool:
        """Whether every key counts for every query."""
        return self.mask is None and not self.band

    def key_range(self, block: Block, align: int) -> tuple[Size, Size]:
        """[first, stop) of the keys that any query of the tile may see, out to multiples of `align`."""
        first: Size = 0
        stop = self.sizes.keys
        if self.band.before is not None:
            first = index.maximum(0, index.sub(block.query, self.band.before))
            first = index.mul(index.floor_div(first, align), align)
        if self.band.after is not None:
            seen = index.add(index.add(block.query, block.query_count), self.band.after)
            seen = index.maximum(seen, first)
            stop = index.minimum(stop, index.mul(index.ceil_div(seen, align), align))
        return first, stop

    def inspect(self, block: Block) -> tuple[ir.Value | bool, ir.Value | bool]:
        """(whether any key of the block may count, whether each counts for each query)."""
        is_seen, is_whole = self._scan(block)
        return is_seen, _both(is_whole, self._is_inside(block))

    def is_plain(self, block: Block) -> ir.Value | bool:
        """Whether a few keys of a block that is masked need no mask."""
        return self._is_inside(block) if self.mask is None else False

    def _is_inside(self, block: Block) -> ir.Value | bool:
        """Whether the band lets every query of the block see each of its keys."""
        is_inside: ir.Value | bool = True
        if self.band.after is not None:
            last_key = index.sub(index.add(block.key, block.key_count), 1)
            last_seen = index.add(index.add(block.query, self.band.after), 1)
            is_inside = index.less(last_key, last_seen)
        if self.band.before is not None:
            last_query = index.sub(index.add(block.query, block.query_count), 1)
            first_seen = index.sub(last_query, self.band.before)
            is_inside = _both(is_inside, index.less(first_seen, index.add(block.key, 1)))
        return is_inside

    def _scan(self, block: Block) -> tuple[ir.Value | bool, ir.Value | bool]:
        """What the mask alone says of the block."""
        if self.mask is None:
            return True, True
        mask = self.mask
        if not (isinstance(mask.buffer.strides[-1], int) and mask.buffer.strides[-1] == 1):
            return True, False
        buffer = replace(mask.buffer, dtype=mask.scanned_dtype)
        rows = 1 if mask.is_one_row else block.query_count
        lanes = self.isa.lanes(self.total)
        some = self._mask_bits(True)

        def row(query: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            start = buffer.at([*block.batch, block.head, index.add(block.query, query), block.key])

            def piece(key: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
                # The last one overlaps the one before it.
                at = index.minimum(key, index.sub(block.key_count, lanes))
                raw = load_vector(self.isa, offset_ptr(start, at, buffer.dtype), buffer.dtype, like=self.total)
                counts, is_plain = self._reading(Val(raw, buffer.dtype))
                return [arith.ori(state[0], counts.value), arith.andi(state[1], is_plain.value)]

            return index.loop(0, block.key_count, lanes, state, piece)

        def scanned() -> list[ir.Value]:
            anything, everything = index.loop(0, rows, 1, [self._mask_bits(False), some], row)
            bit = ir.IntegerType.get_signless(1)
            return [
                vector.reduction(bit, vector.CombiningKind.OR, anything),
                vector.reduction(bit, vector.CombiningKind.AND, everything),
            ]

        bit = ir.IntegerType.get_signless(1)
        is_long = index.as_condition(index.less(lanes - 1, block.key_count))
        unknown = [index.as_condition(True), index.as_condition(False)]
        is_seen, is_whole = index.choose_all(is_long, [bit, bit], scanned, lambda: unknown)
        return is_seen, is_whole

    def _mask_bits(self, value: bool) -> ir.Value:
        type_ = self.isa.vector(ir.IntegerType.get_signless(1), self.total)
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, ir.BoolAttr.get(value)))

    def _reading(self, value: Val) -> tuple[Val, Val]:
        """(whether the key counts, whether the score stays as it is), a lane each."""
        assert self.mask is not None
        if self.mask.dtype == "bool":
            return value.ne(0), value.ne(0)
        return value.ne(-np.inf), value.eq(0)

    def prepare(self, block: Block) -> None:
        """The mask's block as scores lie."""
        if self.mask is None or self.copy is None:
            return
        buffer = replace(self.mask.buffer, dtype=self.mask.scanned_dtype)
        source = buffer.at([*block.batch, block.head, block.query, block.key])
        PanelCopy(
            self.isa, source, buffer.dtype, buffer.strides[-1], buffer.strides[-2], block.key_count, block.query_count,
            self.copy, self.width,
        ).emit()  # fmt: skip

    def apply(self, block: Block, key: Size, column: Size, score: Val) -> Val:
        """A register of scores, of queries `column`.. and the block's key number `key`, with what hides them."""
        if self.mask is not None:
            score = self._apply_mask(self.mask, block, key, column, score)
        if self.band:
            # Differences of positions are small: both lie in one sequence.
            ahead = index.sub(index.add(block.query, column), index.add(block.key, key))
            distance = self._lane_numbers(ahead)
            for bound, is_seen in ((self.band.before, Val.le), (self.band.after, Val.ge)):
                if bound is not None:
                    sign = 1 if is_seen is Val.le else -1
                    score = is_seen(distance, sign * bound).select(score, score.like(-np.inf))
        return score

    def _lane_numbers(self, first: Size) -> Val:
        """first, first + 1, ... as i32, a lane each."""
        number = ir.IntegerType.get_signless(32)
        type_ = self.isa.vector(number, self.total)
        if self.isa.is_scalable:
            steps = vector.step(self.isa.vector(ir.IndexType.get(), self.total))
            lane = arith.index_cast(type_, steps)
        else:
            attr = ir.DenseElementsAttr.get(np.arange(self.isa.lanes(self.total), dtype=np.int32), type=type_)
            lane = arith.constant(type_, attr)
        return Val(lane, "i32") + Val(arith.trunci(number, index.to_value(first)), "i32")

    def _apply_mask(self, mask: AttentionMask, block: Block, key: Size, column: Size, score: Val) -> Val:
        if self.copy is None:
            place = [*block.batch, block.head, 0, index.add(block.key, key)]
            value = Val(load_scalar(mask.buffer.at(place), mask.dtype), mask.dtype)
        else:
            at = index.add(index.mul(key, self.width), column)
            ptr = offset_ptr(self.copy, at, mask.stored_dtype)
            value = Val(load_vector(self.isa, ptr, mask.stored_dtype, like=self.total), mask.stored_dtype)
            value = value.ne(0) if mask.dtype == "bool" else value
        if mask.dtype == "bool":
            return value.select(score, score.like(-np.inf))
        added = value.cast(self.total).splat(score.value.type)
        # The lowest finite number, which many use for -inf, must not become it: a row of nothing else is an average.
        lowest = float(np.finfo(DTYPES[self.total].numpy).min)
        return added.eq(-np.inf).select(added, score.like(lowest).larger(added.fma(LOG2_E, score)))


def _both(left: ir.Value | bool, right: ir.Value | bool) -> ir.Value | bool:
    if isinstance(left, bool):
        return right if left else left
    if isinstance(right, bool):
        return left if right else right
    return arith.andi(left, right)
