"""i64 arithmetic on sizes that may be known numbers, and the loops over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mlir import ir
from mlir.dialects import arith, scf

Size: TypeAlias = "ir.Value | int"


def i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def to_value(size: Size) -> ir.Value:
    """As an i64 value."""
    return arith.constant(i64(), size) if isinstance(size, int) else size


def add(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, int) and left == 0:
        return right
    if isinstance(right, int) and right == 0:
        return left
    return arith.addi(to_value(left), to_value(right))


def sub(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if isinstance(right, int) and right == 0 else arith.subi(to_value(left), to_value(right))


def mul(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    for one, other in ((left, right), (right, left)):
        if isinstance(one, int) and one in (0, 1):
            return other if one else 0
    return arith.muli(to_value(left), to_value(right))


def floor_div(left: Size, right: Size) -> Size:
    """Quotient of a left side that is not negative."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    return left if isinstance(right, int) and right == 1 else arith.divui(to_value(left), to_value(right))


def remainder(left: Size, right: Size) -> Size:
    """Remainder of a left side that is not negative."""
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    return 0 if isinstance(right, int) and right == 1 else arith.remui(to_value(left), to_value(right))


def ceil_div(left: Size, right: Size) -> Size:
    return floor_div(add(left, sub(right, 1)), right)


def minimum(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return arith.minsi(to_value(left), to_value(right))


def maximum(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return arith.maxsi(to_value(left), to_value(right))


def product(sizes: Sequence[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = mul(result, size)
    return result


def less(left: Size, right: Size) -> ir.Value | bool:
    """left < right, signed."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return arith.cmpi(arith.CmpIPredicate.slt, to_value(left), to_value(right))


def as_condition(condition: ir.Value | bool) -> ir.Value:
    """As an i1 value."""
    return arith.constant(ir.IntegerType.get_signless(1), int(condition)) if isinstance(condition, bool) else condition


def select(condition: ir.Value | bool, yes: Size, no: Size) -> Size:
    """One of two sizes, both computed."""
    if isinstance(condition, bool):
        return yes if condition else no
    return arith.select(condition, to_value(yes), to_value(no))


def choose(condition: ir.Value, type_: ir.Type, yes: Callable[[], ir.Value], no: Callable[[], ir.Value]) -> ir.Value:
    """The value that one of two bodies gives."""
    return choose_all(condition, [type_], lambda: [yes()], lambda: [no()])[0]


def choose_all(
    condition: ir.Value, types: Sequence[ir.Type], yes: Callable[[], Sequence[ir.Value]],
    no: Callable[[], Sequence[ir.Value]],
) -> list[ir.Value]:  # fmt: skip
    """The values that one of two bodies gives."""
    op = scf.IfOp(condition, list(types), has_else=True)
    for block, body in ((op.then_block, yes), (op.else_block, no)):
        with ir.InsertionPoint(block):
            scf.yield_(list(body()))
    return list(op.results)


def delinearize(number: Size, sizes: Sequence[Size]) -> list[Size]:
    """Coordinates of a flat number, the last one fastest."""
    coordinates: list[Size] = []
    for size in reversed(sizes[1:]):
        coordinates.insert(0, remainder(number, size))
        number = floor_div(number, size)
    return [number, *coordinates] if sizes else []


def loop(
    start: Size,
    stop: Size,
    step: Size,
    init: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """`body(i, state) -> state` for i in range(start, stop, step); gives the last state."""
    op = scf.ForOp(to_value(start), to_value(stop), to_value(step), list(init))
    with ir.InsertionPoint(op.body):
        scf.yield_(list(body(op.induction_variable, list(op.inner_iter_args))))
    return list(op.results)


def each(start: Size, stop: Size, step: Size, body: Callable[[ir.Value], None]) -> None:
    """`body(i)` for i in range(start, stop, step)."""

    def once(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(i)
        return []

    loop(start, stop, step, [], once)


def when(condition: ir.Value | bool, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """Runs one of two bodies; a condition known now emits that body alone."""
    if isinstance(condition, bool):
        chosen = then if condition else otherwise
        if chosen:
            chosen()
        return
    op = scf.IfOp(condition, has_else=otherwise is not None)
    with ir.InsertionPoint(op.then_block):
        then()
        scf.yield_([])
    if otherwise:
        with ir.InsertionPoint(op.else_block):
            otherwise()
            scf.yield_([])
