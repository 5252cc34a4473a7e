"""Keeps rows that a product reads at once out of one set of the first-level cache."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.machine import Machine
from mlc.dialects.types import DTYPES
from mlc.dialects.views import VIEW_OPS, before_placing, strided_through
from mlir import ir

from .base import Pass
from .decompose import is_row_composite
from .heroes import is_tiled
from .rewriting import body_of, functions, mlc_ops, users_of

_LINE_BYTES = 64
_ROWS_MIN = 32
# A row is read once for each panel of columns. With fewer columns that costs less than a pass over memory that moves
# the rows apart, where no kernel writes them so in the first place.
_COLUMNS_MIN_OF_COPY = 256


@dataclass(frozen=True)
class _Rows:
    """Rows that a product reads: the value whose memory they lie in, and how many elements a register tile's rows are
    apart."""

    base: ir.Value
    stride: int
    columns: int


def _is_view(value: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    definition = definition_of(value.owner.operation)
    return definition is not None and definition.name in VIEW_OPS


def _base_of(value: ir.Value) -> ir.Value:
    """The value whose memory a kernel reads `value` from: views are seen through as far as they are strides."""
    base = value
    while _is_view(base):
        before = base.owner.operation.operands[0]
        if strided_through(value, lambda v, stop=before: v == stop) is None:
            break
        base = before
    return base


def _rows_of(operation: ir.Operation) -> _Rows | None:
    """What the op's register tiles read rows of, or None where rows are not the base's own."""
    step = _row_step(operation)
    if step is None:
        return None
    value = operation.operands[0]
    base = _base_of(value)
    found = strided_through(value, lambda v: v == base)
    shape, result = type_of(base).shape, type_of(operation.results[0]).shape
    columns, rows = result[-1], dims.product(result[:-1])
    if found is None or len(shape) < 2 or not isinstance(shape[-1], int) or not isinstance(columns, int):
        return None
    if found[1].strides[-2:] != (shape[-1], 1) or (isinstance(rows, int) and rows < _ROWS_MIN):
        return None
    return _Rows(base, shape[-1] * step, columns)


def _row_step(operation: ir.Operation) -> int | None:
    """Rows from one that a register tile reads to the next; None for ops that read no rows."""
    if operation.name in ("mlc.matmul", "mlc.packed_matmul"):
        return None if attrs_of(operation)["transpose_a"] else 1
    if operation.name == "mlc.conv" and is_tiled(operation) and attrs_of(operation)["groups"] == 1:
        return attrs_of(operation)["strides"][-1]
    return None


def _is_written_in_place(base: ir.Value) -> bool:
    """Whether the kernel that computes `base` can write its rows anywhere."""
    source = before_placing(base)
    if isinstance(source.owner, ir.Block):
        return False
    operation = source.owner.operation
    if source != base:  # others take a last transpose as a copy of blocks
        return is_tiled(operation)
    return is_tiled(operation) or is_row_composite(operation) or "emit" in definition_of(operation).rules


def _pays(rows: _Rows) -> bool:
    owner = rows.base.owner
    if not isinstance(owner, ir.Block) and definition_of(owner.operation).kind == "source":
        return False
    if any(user.name == "func.return" for user in users_of(rows.base)):
        return False
    return _is_written_in_place(rows.base) or rows.columns >= _COLUMNS_MIN_OF_COPY


@dataclass(frozen=True)
class PadRows(Pass):
    """Rewrites x, rows of which products read, as slice(pad_rows(x)) where they would fall into one set of the cache.

    Before: L0, all rewrites of products done. After: rows are a line further apart. The kernel that computes x writes
    them so; an input is copied.
    """

    def run(self, module: ir.Module) -> None:
        machine = Machine.of(module)
        for operation in list(mlc_ops(body_of(functions(module)["forward"]))):
            rows = _rows_of(operation)  # of a base moved apart before, they are apart
            if rows is None:
                continue
            element_bytes = DTYPES[type_of(rows.base).dtype].bytes
            if machine.rows_collide(rows.stride * element_bytes) and _pays(rows):
                _move_apart(rows.base, _LINE_BYTES // element_bytes)


def _move_apart(base: ir.Value, elements: int) -> None:
    """Users of `base` read it from rows that are `elements` longer."""
    users = users_of(base)
    owner = base.owner
    point = ir.InsertionPoint.at_block_begin(owner) if isinstance(owner, ir.Block) else _after(owner.operation)
    builder = OpBuilder(point, users[0].location if isinstance(owner, ir.Block) else owner.operation.location)
    shape = type_of(base).shape
    padded = builder.pad_rows(Value(base), columns=shape[-1] + elements)
    rank = len(shape)
    view = builder.slice(padded, starts=[0] * rank, limits=list(shape), steps=[1] * rank)
    for user in users:
        for position, operand in enumerate(user.operands):
            if operand == base:
                user.operands[position] = view.ir


def _after(operation: ir.Operation) -> ir.InsertionPoint:
    """Just behind the op: a block's last op returns, so that another follows."""
    block = operation.block
    following = next(i for i, op in enumerate(block.operations) if op.operation == operation) + 1
    return ir.InsertionPoint(block.operations[following])
