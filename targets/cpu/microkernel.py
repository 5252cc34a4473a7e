"""The register tile: rows of A against a packed panel of B, all sums in registers.

matmul, conv and attention are this loop with different row pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir
from mlir.dialects import llvm

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import (
    load_scalar,
    load_vector,
    multiply_add,
    offset_ptr,
    prefetch,
    splat,
    stack_array,
    sum_dtype,
    zero_vector,
)
from .microkernel_dot import dot_step

Sums = list[list[ir.Value]]  # [row][vector]

# Multiply-adds in flight that keep two units busy over a latency of four cycles.
_CHAINS = 8
# Products that one chain of additions takes at most (half as many again where that saves a second chain): its error
# grows with its length, so that long sums are chains of their own, begun at zero, whose results are added up. Totals
# are on the stack meanwhile, which costs 2% in full tiles at 128 and 6% at 64 (Zen 3, 2026-12). Lower tiles have fewer
# sums to put away, and wait for memory anyway.
_SLICE = 128
_SLICE_OF_LOW_TILE = 64
# Steps of k in a turn of the loop. A step of 6x2 is 20 operations; what else a turn takes shows wherever the core
# shares its front end: on a busy Zen 3 (2026-12) four steps run at 83 to 87% of the peak where one runs at 75%, and a
# prefetch in each step costs five points.
UNROLL = 4
LINE_BYTES = 64


@dataclass(frozen=True)
class Rows:
    """The rows of A under a tile: where each begins, and how far apart its elements are along k."""

    pointers: Sequence[ir.Value]
    dtype: str
    k_stride: Size = 1


@dataclass(frozen=True)
class Panel:
    """`vecs` registers wide slice of B: element (k, column) is at ptr + k * row_stride + column.

    `is_paired`: at ptr + k // 2 * 2 * row_stride + 2 * column + k % 2, see microkernel_dot.py; rows that meet it have
    k consecutive in memory. `is_even`: any count of k asked for is.
    """

    ptr: ir.Value
    dtype: str
    row_stride: Size
    vecs: int
    is_aligned: bool = False
    # Fetched towards the second-level cache meanwhile: `next_stride` elements a step of k, from here on.
    next_ptr: ir.Value | None = None
    next_stride: int = 0
    is_paired: bool = False
    is_even: bool = False
    # So many panels side by side, `group_stride` elements apart, of which each is `vecs` registers of every row's sums.
    group: int = 1
    group_stride: Size = 0

    # The two halves of k are read in turns: two streams where B comes from memory (see matmul._STREAMS).
    is_split: bool = False

    @property
    def width(self) -> int:
        """Registers of sums a row."""
        return self.vecs * self.group

    @property
    def step_stride(self) -> Size:
        """Elements of one step of the loop: a row, or a row of pairs."""
        return index.mul(2, self.row_stride) if self.is_paired else self.row_stride

    def steps(self, k_count: int) -> int:
        """Additions to one sum over so many k."""
        return -(-k_count // 2) if self.is_paired else k_count


def zero_sums(isa: Isa, row_count: int, vecs: int, dtype: str) -> Sums:
    return [[zero_vector(isa, dtype) for _ in range(vecs)] for _ in range(row_count)]


def accumulate(
    isa: Isa, rows: Rows, panel: Panel, k_count: Size, sums: Sums, k_most: int | None = None
) -> Sums:  # fmt: skip
    """`sums` plus the product of `rows` and `panel` over k in 0..k_count; `k_most` bounds a count that is not known.

    Summed in f32 where the elements are narrower, slice by slice of k where it is long (see _SLICE). A tile with few
    sums takes several steps of k at once, each into sums of its own, as one chain of additions would wait for itself.
    """
    if not panel.is_paired:
        return _accumulate(isa, rows, panel, k_count, sums, k_most)
    pairs, rest = index.floor_div(k_count, 2), 0 if panel.is_even else index.remainder(k_count, 2)
    sums = _accumulate(isa, rows, panel, pairs, sums, None if k_most is None else k_most // 2)
    if isinstance(rest, int) and rest == 0:
        return sums
    state = [value for row in sums for value in row]

    def last(_: Size, values: list[ir.Value]) -> list[ir.Value]:
        return _step(isa, rows, panel, pairs, values, is_single=True)

    return _fold(last(pairs, state) if isinstance(rest, int) else index.loop(0, rest, 1, state, last), panel.width)


def _accumulate(isa: Isa, rows: Rows, panel: Panel, k_count: Size, sums: Sums, k_most: int | None) -> Sums:
    """The same over whole steps, which are pairs of k where the panel is paired."""
    row_count = len(rows.pointers)
    steps = _steps_at_once(row_count, panel.width)
    state = [value for row in sums for value in row]
    known = k_count if isinstance(k_count, int) or k_most is None else k_most
    may_split = panel.is_split and steps == 1
    half = k_count // 2 if may_split and isinstance(k_count, int) and k_count % UNROLL == 0 else 0
    if is_one_slice(isa, row_count, panel.width, known):
        return _fold(_slice(isa, rows, panel, (0, k_count), steps, state, half), panel.width)
    part = _slice_length(k_count, slice_of(isa, row_count) * steps)
    is_whole = isinstance(k_count, int) and k_count % part == 0
    half = half if is_whole and part % UNROLL == 0 else 0

    def one(start: ir.Value, zeros: list[ir.Value]) -> list[ir.Value]:
        count = part if is_whole else index.minimum(part, index.sub(k_count, start))
        return _slice(isa, rows, panel, (start, count), steps, zeros, half)

    return _fold(sum_slices(isa, sum_dtype(rows.dtype), (0, k_count, part), state, one), panel.width)


def slice_of(isa: Isa, row_count: int) -> int:
    """Products in one chain of additions, in a register tile of so many rows."""
    return _SLICE if row_count >= isa.tile[0] else _SLICE_OF_LOW_TILE


def is_one_slice(isa: Isa, row_count: int, vecs: int, k_count: Size) -> bool:
    """Whether `accumulate` adds such a product to its sums directly."""
    longest = slice_of(isa, row_count) * _steps_at_once(row_count, vecs)
    return isinstance(k_count, int) and k_count <= longest + longest // 2


def _steps_at_once(row_count: int, vecs: int) -> int:
    return max(1, -(-_CHAINS // (row_count * vecs)))


def sum_slices(
    isa: Isa, dtype: str, steps: tuple[Size, Size, Size], state: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:  # fmt: skip
    """`state` plus `body(i, zeros)` for each i in range(*steps).

    Not to be nested: the totals of all such loops of a kernel are in one place.
    """
    totals = _Totals(isa, dtype, _totals_array(isa, dtype))
    zeros = [zero_vector(isa, dtype) for _ in state]
    start, stop, step = steps
    begins_at_zero = all(map(_is_zero, state))
    if not begins_at_zero:
        totals.store(state)

    def one(i: ir.Value) -> None:
        sums = body(i, zeros)
        if begins_at_zero:
            types = [value.type for value in sums]
            sums = index.choose_all(index.less(start, i), types, lambda: totals.plus(sums), lambda: sums)
        else:
            sums = totals.plus(sums)
        totals.store(sums)

    index.each(start, stop, step, one)
    return totals.load(len(state))


def _is_zero(value: ir.Value) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return False
    number = owner.operation.attributes["value"]
    is_splat = isinstance(number, ir.DenseElementsAttr) and number.is_splat
    return is_splat and ir.FloatAttr(number.get_splat_value()).value == 0


@dataclass(frozen=True)
class _Totals:
    """Registers' worth of sums on the stack.

    Volatile: as values they would be kept in registers wherever loops over slices are unrolled, and spill the sums of
    the innermost loop.
    """

    isa: Isa
    dtype: str
    ptr: ir.Value

    def _at(self, number: int) -> ir.Value:
        return offset_ptr(self.ptr, number * self.isa.lanes(self.dtype), self.dtype)

    @property
    def _alignment(self) -> int:
        return self.isa.lanes(self.dtype) * DTYPES[self.dtype].bytes

    def store(self, sums: Sequence[ir.Value]) -> None:
        for number, value in enumerate(sums):
            llvm.StoreOp(value, self._at(number), alignment=self._alignment, volatile_=True)

    def load(self, count: int) -> list[ir.Value]:
        type_ = self.isa.compute_vector(self.dtype)
        places = [self._at(number) for number in range(count)]
        return [llvm.LoadOp(type_, at, alignment=self._alignment, volatile_=True).result for at in places]

    def plus(self, sums: Sequence[ir.Value]) -> list[ir.Value]:
        pairs = zip(self.load(len(sums)), sums, strict=True)
        return [(Val(a, self.dtype) + Val(b, self.dtype)).value for a, b in pairs]


def _totals_array(isa: Isa, dtype: str) -> ir.Value:
    """Room for a register tile's totals: one array a function, found again by its mark."""
    owner = ir.InsertionPoint.current.block.owner.operation
    while owner.name not in ("func.func", "llvm.func"):
        owner = owner.parent.operation
    mark = f"mlc.totals.{dtype}"
    for operation in owner.regions[0].blocks[0]:
        if mark in operation.attributes:
            return operation.results[0]
    rows, vecs = isa.tile
    found = stack_array(dtype, rows * vecs * isa.lanes(dtype))
    found.owner.attributes[mark] = ir.UnitAttr.get()
    return found


def _slice_length(k_count: Size, longest: int) -> int:
    """Near `longest`, and a divisor of a known count where one is near."""
    if not isinstance(k_count, int):
        return longest
    exact = [part for part in range(longest * 2 // 3, longest * 4 // 3 + 1) if k_count % part == 0]
    if exact:
        return min(exact, key=lambda part: abs(part - longest))
    return index.ceil_div(k_count, index.ceil_div(k_count, longest))


def _slice(
    isa: Isa, rows: Rows, panel: Panel, span: tuple[Size, Size], steps: int, state: list[ir.Value], half: int = 0
) -> list[ir.Value]:  # fmt: skip
    """`state` plus the product over `count` steps of k from `first`; with a `half`, step 2i is at i and the next one
    that far behind it."""
    first, count = span
    if isinstance(count, int) and count < 2 * steps:
        steps = 1
    stop, width = index.add(first, count), len(state)
    start = first
    if steps > 1:
        extra = [zero_vector(isa, sum_dtype(rows.dtype)) for _ in range(width * (steps - 1))]
        rest = index.remainder(count, steps)
        start = index.sub(stop, rest)

        def several(k: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            _fetch(panel, k, steps)
            parts = [state[s * width : (s + 1) * width] for s in range(steps)]
            return [v for s in range(steps) for v in _step(isa, rows, panel, index.add(k, s), parts[s])]

        parts = index.loop(first, start, steps, state + extra, several)
        state = _add_parts(parts, width, rows.dtype)
        if isinstance(rest, int) and rest == 0:
            return state
    if steps == 1:
        rest = index.remainder(index.sub(stop, start), UNROLL)
        whole = index.sub(stop, rest)

        def turn(k: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            _fetch(panel, k, UNROLL)
            start_of_turn = index.floor_div(k, 2) if half else k
            for step in range(UNROLL):
                ahead = step // 2 + step % 2 * half if half else step
                values = _step(isa, rows, panel, index.add(start_of_turn, ahead), values)
            return values

        state, start = index.loop(start, whole, UNROLL, state, turn), whole
        if isinstance(rest, int) and rest == 0:
            return state
    return index.loop(start, stop, 1, state, lambda k, values: _step(isa, rows, panel, k, values))


def _fetch(panel: Panel, k: Size, steps: int) -> None:
    """Asks for what is to be fetched in `steps` steps from `k`; at least a line, as lines are asked for whole."""
    if panel.next_ptr is None:
        return
    line = LINE_BYTES // DTYPES[panel.dtype].bytes
    for ahead in range(0, steps * panel.next_stride, line):
        prefetch(offset_ptr(panel.next_ptr, index.add(index.mul(k, panel.next_stride), ahead), panel.dtype))


def _fold(state: list[ir.Value], vecs: int) -> Sums:
    return [state[i : i + vecs] for i in range(0, len(state), vecs)]


def _add_parts(values: list[ir.Value], width: int, dtype: str) -> list[ir.Value]:
    """Sums the parts pairwise."""
    parts = [[Val(v, sum_dtype(dtype)) for v in values[i : i + width]] for i in range(0, len(values), width)]
    while len(parts) > 1:
        pairs = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return [v.value for v in parts[0]]


def _step(
    isa: Isa, rows: Rows, panel: Panel, k: Size, state: Sequence[ir.Value], is_single: bool = False
) -> list[ir.Value]:  # fmt: skip
    """One k: the panel's vectors against each row's element. Or one pair of k, of which the row `is_single` has one."""
    if panel.group > 1:
        return _group_step(isa, rows, panel, k, state, is_single)
    total = sum_dtype(rows.dtype)
    lanes = isa.lanes(total)
    base = offset_ptr(panel.ptr, index.mul(k, panel.step_stride), panel.dtype)
    if panel.is_paired:
        pointers = [offset_ptr(pointer, index.mul(k, 2), rows.dtype) for pointer in rows.pointers]
        return dot_step(isa, pointers, base, panel.vecs, state, is_single)
    alignment = lanes * DTYPES[panel.dtype].bytes if panel.is_aligned else 0
    vectors = [
        load_vector(isa, offset_ptr(base, v * lanes, panel.dtype), panel.dtype, alignment=alignment, like=total)
        for v in range(panel.vecs)
    ]
    result = []
    for r, pointer in enumerate(rows.pointers):
        element = load_scalar(offset_ptr(pointer, index.mul(k, rows.k_stride), rows.dtype), rows.dtype)
        factor = splat(isa, element, total)
        for v, vector in enumerate(vectors):
            result.append(multiply_add(factor, vector, state[r * panel.vecs + v], total))
    return result


def _group_step(
    isa: Isa, rows: Rows, panel: Panel, k: Size, state: Sequence[ir.Value], is_single: bool
) -> list[ir.Value]:  # fmt: skip
    """One k of panels side by side."""
    parts = []
    for member in range(panel.group):
        ptr = offset_ptr(panel.ptr, index.mul(member, panel.group_stride), panel.dtype)
        first = member * panel.vecs
        mine = [v for row in _fold(list(state), panel.width) for v in row[first : first + panel.vecs]]
        parts.append(_fold(_step(isa, rows, replace(panel, ptr=ptr, group=1), k, mine, is_single), panel.vecs))
    return [v for r in range(len(rows.pointers)) for part in parts for v in part[r]]
