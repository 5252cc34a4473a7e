"""Matrix products: blocks of rows and columns as tiles, panels of B inside them, register tiles inside those.

Two forms of a panel's inner loops. `direct`: the sums go from registers to the epilogue. `staged`: they go to a block
on the stack first, which lets k be cut so that slices of A and B stay in the caches, and lets one copy of a long
epilogue serve every row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mlc.dialects.types import DTYPES
from mlir import ir

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    StridedBuffer,
    lane_mask,
    load_vector,
    offset_ptr,
    stack_array,
    store_vector,
    sum_dtype,
    zero_vector,
)
from .microkernel import Panel, Rows, Sums, accumulate, zero_sums
from .microkernel_dot import pair_count
from .packing import PanelCopy

# epilogue(index, sums, mask): stores the register whose first lane is the element at `index`, where mask is true.
Epilogue = Callable[[list[Size], ir.Value, ir.Value | None], None]


@dataclass(frozen=True)
class MatmulSizes:
    """[*batch, m, k] x [*batch, k, n]; each known or an i64 value."""

    batch: tuple[Size, ...]
    m: Size
    n: Size
    k: Size


@dataclass(frozen=True)
class PackedPanels:
    """B as `packing.pack_b` lays it out: [*batch, panels, k, columns]; batch strides in elements, 0 broadcasts.

    `is_paired`: [*batch, panels, k / 2, columns, 2], see microkernel_dot.py.
    """

    ptr: ir.Value
    dtype: str
    batch_strides: tuple[Size, ...] = ()
    is_paired: bool = False

    def depth(self, k: Size) -> Size:
        """Rows of a panel that holds so many steps of k."""
        return index.mul(pair_count(k), 2) if self.is_paired else k


@dataclass(frozen=True)
class MatmulPlan:
    """Numbers of the schedule, in elements. `depth` None: k is not cut.

    Tiles that follow one another share their rows of A, or where `shares_columns` their columns of B. Panels are read
    `panels_at_once` where the rows are so few that their sums fit.
    """

    tile_rows: int
    tile_columns: int
    depth: int | None
    is_staged: bool
    shares_columns: bool = False
    panels_at_once: int = 1


@dataclass(frozen=True)
class Block:
    """Where in the product a register tile is: what `finish` and the row pointers are asked for."""

    batch: list[Size]
    row: Size
    column: Size
    columns_left: Size
    epilogue: Epilogue = field(repr=False)
    # [column, k] of the panel that is read after the one here.
    following: tuple[Size, Size] | None = None


# So that a late thread costs an eighth of its share: two threads of Zen 4 run at 93 to 95% of the peak, with 4 tiles
# each at 76 to 95%.
_TILES_PER_THREAD = 8
# Bytes of the second-level cache a step of k. Measured on Zen 3 with 512 KiB, 2026-11: packed panels run at 92 to 97%
# of the peak uncut up to k = 1536; at 3072 A's rows no longer stay in the cache (70 to 79% uncut), while slices of 512
# over a block of sums keep them there (84%). On Zen 4 with 1 MiB, 2026-12, 3072 is 3% faster uncut.
_L2_BYTES_A_K = 341
_DEPTH = 512
_TILE_ROWS_MAX = 102
# A product of few rows waits for B from memory. Zen 3 reads two streams a tenth faster than one, and four a fifth; any
# prefetch by instructions makes one slower (2026-12).
_STREAMS = 4
_STAGE_BYTES_MAX = 44 * 1024  # leaves room on the stack for a panel of B


def plan_matmul(
    isa: Isa, sizes: MatmulSizes, dtype: str, threads: int, b_is_packed: bool, has_long_epilogue: bool
) -> MatmulPlan:
    """Chooses blocks: a tile's rows of A take half of the second-level cache, sums of a cut k stay on the stack."""
    total = sum_dtype(dtype)
    element_bytes = DTYPES[total].bytes
    rows, _ = isa.tile
    columns = isa.panel_columns(total)
    known_k = sizes.k if isinstance(sizes.k, int) else 1 << 30
    few_rows = isinstance(sizes.m, int) and sizes.m <= 2 * rows
    uncut_max = (known_k if few_rows else isa.l2_bytes // _L2_BYTES_A_K) if b_is_packed else stack_depth(isa, total)
    depth = None if known_k <= uncut_max else min(_DEPTH, uncut_max)
    kept_rows = isa.l2_bytes // 2 // (max(1, min(known_k, depth or known_k)) * element_bytes)
    tile_rows = max(4 * rows, min(_TILE_ROWS_MAX, kept_rows) // rows * rows)
    if isinstance(sizes.m, int):
        blocks = max(1, index.ceil_div(sizes.m, tile_rows))
        tile_rows = max(1, index.ceil_div(index.ceil_div(sizes.m, blocks), rows)) * rows
    panels = max(1, index.ceil_div(sizes.n, columns)) if isinstance(sizes.n, int) else 16
    others = max(1, index.product([s for s in sizes.batch if isinstance(s, int)]))
    others = others * (max(1, index.ceil_div(sizes.m, tile_rows)) if isinstance(sizes.m, int) else 1)
    wanted = -(-_TILES_PER_THREAD * threads // others) if threads > 1 else 1
    most = 16 if depth is None else _STAGE_BYTES_MAX // (tile_rows * columns * element_bytes)
    at_once = min(_STREAMS, rows // max(1, sizes.m)) if b_is_packed and isinstance(sizes.m, int) else 1
    at_once = max(1, min(at_once, panels // wanted))
    # Equal shares of the panels, so that the last tile is not a sliver.
    shares = -(-panels // max(1, min(most, panels // wanted)))
    tile_columns = index.ceil_div(index.ceil_div(panels, shares), at_once) * at_once * columns
    shares_columns = b_is_packed and _reads_less_by_columns(sizes, tile_rows, tile_columns)
    return MatmulPlan(tile_rows, tile_columns, depth, depth is not None or has_long_epilogue, shares_columns, at_once)


def _reads_less_by_columns(sizes: MatmulSizes, tile_rows: int, tile_columns: int) -> bool:
    """Whether reading A once a block of columns moves less than reading B once a block of rows."""
    if not (isinstance(sizes.m, int) and isinstance(sizes.n, int)):
        return False
    row_blocks, column_blocks = index.ceil_div(sizes.m, tile_rows), index.ceil_div(sizes.n, tile_columns)
    return sizes.n * (row_blocks - 1) > sizes.m * (column_blocks - 1)


def stack_depth(isa: Isa, total: str) -> int:
    """Rows of a panel that half of the first-level cache holds."""
    return max(64, isa.l1_bytes // 2 // (isa.panel_columns(total) * DTYPES[total].bytes))


def matmul_grid(sizes: MatmulSizes, plan: MatmulPlan) -> list[Size]:
    """Tiles a dimension, the last fastest: [*batch, row blocks, column blocks] or, where the plan says so, the last two
    the other way; their product is the kernel's tile count."""
    blocks = [index.ceil_div(sizes.m, plan.tile_rows), index.ceil_div(sizes.n, plan.tile_columns)]
    return [*sizes.batch, *(blocks[::-1] if plan.shares_columns else blocks)]


def emit_matmul(
    isa: Isa, plan: MatmulPlan, sizes: MatmulSizes, a: StridedBuffer, b: StridedBuffer | PackedPanels,
    epilogue: Epilogue, begin: Size, end: Size,
) -> None:  # fmt: skip
    """The loop over tiles begin..end of `matmul_grid`.

    `a` and a strided `b` have strides [*batch, row, column], any of them; batch strides of 0 broadcast. The
    epilogue's index is [*batch, row, column].

    Raises: ValueError for a plan (a tuned one) whose blocks are no whole register tiles.
    """
    rows, columns = isa.tile[0], isa.panel_columns(sum_dtype(a.dtype))
    if plan.tile_rows % rows or plan.tile_columns % columns:
        raise ValueError(f"blocks of {plan.tile_rows} x {plan.tile_columns} are not in tiles of {rows} x {columns}")
    grid = matmul_grid(sizes, plan)
    product = _Product(isa, plan, sizes, a, b, epilogue)
    index.each(begin, end, 1, lambda tile: product.emit_tile(index.delinearize(tile, grid)))


def row_pieces(row_count: int, rows: int) -> list[int]:
    """Register tiles' heights that cover a number of rows known now."""
    return [rows] * (row_count // rows) + ([row_count % rows] if row_count % rows else [])


def each_row_tile(row_count: Size, rows: int, body: Callable[[Size, int], None], known_tail: int | None = None) -> None:
    """`body(first_row, height)` over all rows: whole register tiles, then what is left.

    `known_tail` is the remainder where it can only be that or zero: one body of just that height. Else heights that are
    powers of two follow one another.
    """
    whole = index.mul(index.floor_div(row_count, rows), rows)
    if not (isinstance(whole, int) and whole == 0):
        index.each(0, whole, rows, lambda first: body(first, rows))
    if known_tail == 0:
        return
    if known_tail is not None:
        index.when(index.less(whole, row_count), lambda: body(whole, known_tail))
        return
    height = 1 << ((rows - 1).bit_length() - 1)
    first: Size = whole
    while height:
        fits = index.less(index.add(first, height - 1), row_count)
        index.when(fits, partial(body, first, height))
        # The heights are disjoint powers of two: which rows are done follows from the bits of what was left.
        left = index.sub(row_count, whole)
        first = index.add(whole, index.mul(index.floor_div(left, height), height))
        height //= 2


@dataclass(frozen=True)
class _Product:
    isa: Isa
    plan: MatmulPlan
    sizes: MatmulSizes
    a: StridedBuffer
    b: StridedBuffer | PackedPanels
    epilogue: Epilogue

    @property
    def total(self) -> str:
        return sum_dtype(self.a.dtype)

    @property
    def columns(self) -> int:
        return self.isa.panel_columns(self.total)

    def emit_tile(self, place: Sequence[Size]) -> None:
        """One block of rows and columns, panel by panel."""
        *batch, row_block, column_block = place
        if self.plan.shares_columns:
            row_block, column_block = column_block, row_block
        first_row = index.mul(row_block, self.plan.tile_rows)
        row_count = index.minimum(self.plan.tile_rows, index.sub(self.sizes.m, first_row))
        if isinstance(self.sizes.m, int) and self.sizes.m % self.plan.tile_rows == 0:
            row_count = self.plan.tile_rows
        first = index.mul(column_block, self.plan.tile_columns)
        stop = index.minimum(self.sizes.n, index.add(first, self.plan.tile_columns))

        if self.plan.depth is not None:
            self._cut_tile(batch, first_row, row_count, first, stop)
            return
        run = self._staged_panel if self.plan.is_staged else self._direct_panel

        def panel(column: Size) -> None:
            following = index.add(column, self.columns)
            if self.plan.shares_columns:
                following = index.select(index.less(following, stop), following, first)
            run(self._block(batch, first_row, column, (following, 0)), row_count, 1)

        group = self.plan.panels_at_once
        if group > 1:
            span = group * self.columns
            panels = index.ceil_div(index.sub(stop, first), self.columns)
            whole = index.add(first, index.mul(index.floor_div(panels, group), span))

            def together(column: Size) -> None:
                run(self._block(batch, first_row, column, group=group), row_count, group)

            index.each(first, whole, span, together)
            first = whole
        index.each(first, stop, self.columns, panel)

    def _block(
        self, batch: Sequence[Size], row: Size, column: Size, following: tuple[Size, Size] | None = None, group: int = 1
    ) -> Block:  # fmt: skip
        # Known to be whole where n is a multiple: no masked code is emitted then.
        is_whole = isinstance(self.sizes.n, int) and self.sizes.n % self.columns == 0
        left = group * self.columns if is_whole else index.sub(self.sizes.n, column)
        return Block(list(batch), row, column, left, self.epilogue, following)

    def _panel(self, block: Block, k: Size, k_count: Size) -> Panel:
        """Rows k.. of the panel at `block`, packed now if B is not."""
        vecs = self.isa.tile[1]
        if isinstance(self.b, PackedPanels):
            ptr = self._packed(self.b, block.batch, block.column, k)
            following = None if block.following is None else self._packed(self.b, block.batch, *block.following)
            depth = self.b.depth(self.sizes.k)
            is_even = isinstance(depth, int) and depth == self.sizes.k
            return Panel(
                ptr, self.b.dtype, self.columns, vecs, is_aligned=True, next_ptr=following,
                is_paired=self.b.is_paired, is_even=is_even,
            )  # fmt: skip
        depth = self.plan.depth or self.sizes.k
        assert isinstance(depth, int), "a k that is not known is cut"
        target = stack_array(self.total, depth * self.columns)
        source = self.b.at([*block.batch, k, block.column])
        *_, k_stride, column_stride = self.b.strides
        copy = PanelCopy(
            self.isa, source, self.b.dtype, k_stride, column_stride, k_count, block.columns_left, target, self.columns
        )
        copy.emit()
        return Panel(target, self.total, self.columns, vecs, is_aligned=True)

    def _packed(self, b: PackedPanels, batch: Sequence[Size], column: Size, k: Size) -> ir.Value:
        offset = index.add(index.mul(column, b.depth(self.sizes.k)), index.mul(k, self.columns))
        for position, stride in zip(batch, b.batch_strides, strict=True):
            offset = index.add(offset, index.mul(position, stride))
        return offset_ptr(b.ptr, offset, b.dtype)

    def _fetching(self, panel: Panel, first: Size, k_count: Size) -> Panel:
        """The panel with the share of the next one that is this row tile's to fetch: even shares, as a burst of
        requests would delay the rows of A."""
        rows = self.isa.tile[0]
        if isinstance(self.sizes.m, int) and self.sizes.m <= rows:
            return replace(panel, next_ptr=None, is_split=panel.group == 1)
        if panel.next_ptr is None:
            return panel
        each = 2 if panel.is_paired else 1  # of k, in a step
        stride = index.ceil_div(each * self.columns, index.ceil_div(self.plan.tile_rows, rows))
        offset = index.mul(index.floor_div(first, rows), index.mul(index.floor_div(k_count, each), stride))
        return replace(panel, next_ptr=offset_ptr(panel.next_ptr, offset, panel.dtype), next_stride=stride)

    def _rows(self, block: Block, first: Size, height: int, k: Size) -> Rows:
        start = self.a.at([*block.batch, index.add(block.row, first), k])
        *_, row_stride, k_stride = self.a.strides
        pointers = [offset_ptr(start, index.mul(r, row_stride), self.a.dtype) for r in range(height)]
        return Rows(pointers, self.a.dtype, k_stride)

    def _known_tail(self) -> int | None:
        return self.sizes.m % self.isa.tile[0] if isinstance(self.sizes.m, int) else None

    def _grouped(self, block: Block, group: int) -> Panel:
        """The panel at `block` and those after it, `group` in all."""
        panel = self._panel(block, 0, self.sizes.k)
        if group == 1 or not isinstance(self.b, PackedPanels):
            return panel
        return replace(panel, group=group, group_stride=index.mul(self.b.depth(self.sizes.k), self.columns))

    def _sums(self, block: Block, panel: Panel, first: Size, height: int) -> Sums:
        """Of all k, for a register tile of rows."""
        sums = zero_sums(self.isa, height, panel.width, self.total)
        rows = self._rows(block, first, height, 0)
        return accumulate(self.isa, rows, self._fetching(panel, first, self.sizes.k), self.sizes.k, sums)

    def _direct_panel(self, block: Block, row_count: Size, group: int) -> None:
        panel = self._grouped(block, group)

        def body(first: Size, height: int) -> None:
            finish(self.isa, block, first, self._sums(block, panel, first, height), self.total)

        each_row_tile(row_count, self.isa.tile[0], body, self._known_tail())

    def _staged_panel(self, block: Block, row_count: Size, group: int) -> None:
        """One copy of the epilogue for all rows."""
        size = self.plan.tile_rows * self.columns
        stage = Stage.make(self.isa, self.total, self.plan.tile_rows, group * self.columns)
        panel = self._grouped(block, group)

        def body(first: Size, height: int) -> None:
            sums = self._sums(block, panel, first, height)
            for member in range(group):
                start = member * panel.vecs
                part = [row[start : start + panel.vecs] for row in sums]
                stage.moved(member * size).store(first, part)

        each_row_tile(row_count, self.isa.tile[0], body, self._known_tail())
        if group == 1:
            stage.finish(block, row_count)
            return

        def member_of(member: Size) -> None:
            columns = index.mul(member, self.columns)
            here = replace(
                block, column=index.add(block.column, columns), columns_left=index.sub(block.columns_left, columns)
            )
            stage.moved(index.mul(member, size)).finish(here, row_count)

        index.each(0, group, 1, member_of)

    def _cut_tile(self, batch: Sequence[Size], first_row: Size, row_count: Size, start: Size, stop: Size) -> None:
        """Slices of k outside, panels inside: the rows' slice of A stays in the second-level cache for every panel."""
        whole = Stage.make(self.isa, self.total, self.plan.tile_rows, self.plan.tile_columns)

        def stage_of(column: Size) -> Stage:
            return whole.moved(index.mul(index.sub(column, start), self.plan.tile_rows))

        def slice_of_panel(k: Size, column: Size) -> None:
            after = index.add(column, self.columns)
            has_more = index.less(after, stop)
            next_k = index.select(has_more, k, index.add(k, self.plan.depth))
            block = self._block(batch, first_row, column, (index.select(has_more, after, start), next_k))
            k_count = index.minimum(self.plan.depth, index.sub(self.sizes.k, k))
            panel = self._panel(block, k, k_count)
            stage = stage_of(column)

            def body(first: Size, height: int) -> None:
                rows = self._rows(block, first, height, k)
                fetching = self._fetching(panel, first, k_count)
                stage.store(first, accumulate(self.isa, rows, fetching, k_count, stage.load(first, height)))

            each_row_tile(row_count, self.isa.tile[0], body, self._known_tail())

        def each_panel(body: Callable[[Size], None]) -> None:
            index.each(start, stop, self.columns, body)

        each_panel(lambda column: stage_of(column).clear(row_count))
        index.each(0, self.sizes.k, self.plan.depth, lambda k: each_panel(lambda column: slice_of_panel(k, column)))
        each_panel(lambda column: stage_of(column).finish(self._block(batch, first_row, column), row_count))


@dataclass(frozen=True)
class Stage:
    """Sums of one panel's rows on the stack: [rows][columns of a panel]."""

    isa: Isa
    dtype: str
    ptr: ir.Value

    @staticmethod
    def make(isa: Isa, dtype: str, rows: int, columns: int) -> Stage:
        return Stage(isa, dtype, stack_array(dtype, rows * columns))

    def moved(self, elements: Size) -> Stage:
        """The stage of another panel of the same tile."""
        return Stage(self.isa, self.dtype, offset_ptr(self.ptr, elements, self.dtype))

    def _at(self, row: Size, vec: int) -> ir.Value:
        lanes = self.isa.lanes(self.dtype)
        place = index.add(index.mul(row, lanes * self.isa.tile[1]), vec * lanes)
        return offset_ptr(self.ptr, place, self.dtype)

    def _load(self, row: Size, vec: int) -> ir.Value:
        return load_vector(self.isa, self._at(row, vec), self.dtype, alignment=self._alignment)

    def _store(self, value: ir.Value, row: Size, vec: int) -> None:
        store_vector(value, self._at(row, vec), self.dtype, alignment=self._alignment)

    @property
    def _alignment(self) -> int:
        return self.isa.lanes(self.dtype) * DTYPES[self.dtype].bytes

    def load(self, first: Size, height: int) -> Sums:
        return [[self._load(index.add(first, r), v) for v in range(self.isa.tile[1])] for r in range(height)]

    def store(self, first: Size, sums: Sums) -> None:
        for r, row in enumerate(sums):
            for v, value in enumerate(row):
                self._store(value, index.add(first, r), v)

    def clear(self, row_count: Size) -> None:
        zero = zero_vector(self.isa, self.dtype)

        def row_of_zeros(row: ir.Value) -> None:
            for v in range(self.isa.tile[1]):
                self._store(zero, row, v)

        index.each(0, row_count, 1, row_of_zeros)

    def finish(self, block: Block, row_count: Size) -> None:
        """The epilogue over all rows, in a loop."""

        def row(first: ir.Value) -> None:
            finish(self.isa, block, first, self.load(first, 1), self.dtype)

        index.each(0, row_count, 1, row)


def finish(isa: Isa, block: Block, first: Size, sums: Sums, dtype: str) -> None:
    """Calls the epilogue for each register of a tile; masked only in a panel that the last column cuts."""
    lanes = isa.lanes(dtype)

    def run(masks: list[ir.Value | None]) -> None:
        for r, row in enumerate(sums):
            for v, value in enumerate(row):
                place = [*block.batch, index.add(index.add(block.row, first), r), index.add(block.column, v * lanes)]
                block.epilogue(place, value, masks[v])

    vecs = len(sums[0])

    def whole() -> None:
        run([None] * vecs)

    def cut() -> None:
        run([lane_mask(isa, dtype, index.sub(block.columns_left, v * lanes)) for v in range(vecs)])

    index.when(index.less(block.columns_left, vecs * lanes), cut, whole)
