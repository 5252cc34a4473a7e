"""Views: ops that only rename elements, as strides over the buffer beneath, or as index maps.

`strided_through` follows a chain of views down to the value it starts from; kernels then read that value in place, so
that no transpose or reshape is materialised. `strides_before` runs the other way: a kernel whose result passes through
reshapes and transposes writes the final buffer directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from . import dims
from .build import attrs_of, definition_of, load_ops, type_of
from .dims import Size

VIEW_OPS = ("reshape", "transpose", "broadcast_to", "slice", "copy")
# What keeps each element of its operand, perhaps at another place: a kernel writes the last result's memory directly.
PLACING_OPS = ("reshape", "transpose", "copy", "pad_rows")


@dataclass(frozen=True)
class Strided:
    """Element `i` of a value lies at `offset + sum(i[d] * strides[d])` elements of a buffer."""

    offset: Size
    strides: tuple[Size, ...]


def contiguous(shape: Sequence[Size]) -> Strided:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return Strided(0, tuple(reversed(strides)))


def reshape_strided(view: Strided, old: Sequence[Size], new: Sequence[Size]) -> Strided | None:
    """Strides of the same elements under shape `new`, or None when they are not affine in it."""
    old_dims = [(s, st) for s, st in zip(old, view.strides, strict=True) if s != 1]
    strides: list[Size] = []
    at = 0
    for group in _match_groups([s for s, _ in old_dims], [s for s in new if s != 1]):
        if group is None:
            return None
        old_count, new_sizes = group
        part, at = old_dims[at : at + old_count], at + old_count
        if not _is_mergeable(part):
            return None
        step = part[-1][1] if part else 1
        inner: list[Size] = []
        for size in reversed(new_sizes):
            inner.append(step)
            step = step * size
        strides.extend(reversed(inner))
    spread, kept = [], iter(strides)
    for size in new:
        spread.append(0 if size == 1 else next(kept))
    return Strided(view.offset, tuple(spread))


def _is_mergeable(part: list[tuple[Size, Size]]) -> bool:
    return all(part[i][1] == part[i + 1][1] * part[i + 1][0] for i in range(len(part) - 1))


def _match_groups(old: list[Size], new: list[Size]) -> list[tuple[int, list[Size]] | None]:
    """Smallest runs of old and new dimensions whose products agree; a None entry: they do not line up."""
    groups: list[tuple[int, list[Size]] | None] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i >= len(old) or j >= len(new):
            return [None]
        a, b, i0, j0 = old[i], new[j], i, j
        i, j = i + 1, j + 1
        while a != b:
            if _is_smaller(a, b) and i < len(old):
                a, i = a * old[i], i + 1
            elif j < len(new):
                b, j = b * new[j], j + 1
            elif i < len(old):
                a, i = a * old[i], i + 1
            else:
                return [None]
        groups.append((i - i0, new[j0:j]))
    return groups


def _is_smaller(a: Size, b: Size) -> bool:
    """Whether to extend `a` rather than `b`: by number, or when `a` divides `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    quotient = dims.floordiv(b, a) if a != 0 else 0
    return quotient * a == b


def view_strided(operation: ir.Operation, view: Strided) -> Strided | None:
    """`view` of the op's operand seen through the op, or None when it is no affine view."""
    definition = definition_of(operation)
    if definition is None or definition.name not in VIEW_OPS:
        return None
    attrs, old = attrs_of(operation), type_of(operation.operands[0]).shape
    new = type_of(operation.results[0]).shape
    if definition.name == "copy":
        return view
    if definition.name == "reshape":
        return reshape_strided(view, old, new)
    if definition.name == "transpose":
        return Strided(view.offset, tuple(view.strides[p] for p in attrs["perm"]))
    if definition.name == "broadcast_to":
        lead = len(new) - len(old)
        kept = [0 if a == 1 and b != 1 else s for a, b, s in zip(old, new[lead:], view.strides, strict=True)]
        return Strided(view.offset, (0,) * lead + tuple(kept))
    offset = view.offset
    strides: list[Size] = []
    for start, step, stride in zip(attrs["starts"], attrs["steps"], view.strides, strict=True):
        offset, strides = offset + start * stride, [*strides, stride * step]
    return Strided(offset, tuple(strides))


def strided_through(value: ir.Value, is_buffer) -> tuple[ir.Value, Strided] | None:
    """The buffer beneath `value` and its strides there; None if something on the way is no affine view.

    `is_buffer(value)` says where to stop.
    """
    chain: list[ir.Operation] = []
    while not is_buffer(value):
        owner = value.owner
        if not isinstance(owner, (ir.Operation, ir.OpView)) or _view_name(owner.operation) is None:
            return None
        chain.append(owner.operation)
        value = owner.operation.operands[0]
    view = contiguous(type_of(value).shape)
    for operation in reversed(chain):
        seen = view_strided(operation, view)
        if seen is None:
            return None
        view = seen
    return value, view


def _view_name(operation: ir.Operation) -> str | None:
    definition = definition_of(operation)
    return definition.name if definition is not None and definition.name in VIEW_OPS else None


def places(operation: ir.Operation) -> bool:
    definition = definition_of(operation)
    return definition is not None and definition.name in PLACING_OPS


def before_placing(value: ir.Value) -> ir.Value:
    """The value whose elements those are that PLACING_OPS bring to where `value` has them."""
    while not isinstance(value.owner, ir.Block) and places(value.owner.operation):
        value = value.owner.operation.operands[0]
    return value


def strides_before(value: ir.Value, last: ir.Value) -> Strided | None:
    """Where `value`'s elements lie in the contiguous buffer of `last`, reached from it by PLACING_OPS only.

    No stride is 0: a dimension of one element may be the one that lanes, masked, are written along.
    """
    if value == last:
        return contiguous(type_of(last).shape)
    uses = [u.owner.operation for u in value.uses]
    if len(uses) != 1 or not places(uses[0]):
        return None
    operation = uses[0]
    after = strides_before(operation.results[0], last)
    if after is None:
        return None
    if operation.name in ("mlc.copy", "mlc.pad_rows"):
        return after
    if operation.name == "mlc.transpose":
        perm = attrs_of(operation)["perm"]
        strides: list[Size] = [0] * len(perm)
        for position, source in enumerate(perm):
            strides[source] = after.strides[position]
        return Strided(after.offset, tuple(strides))
    before = reshape_strided(after, type_of(operation.results[0]).shape, type_of(value).shape)
    return before and Strided(before.offset, tuple(1 if stride == 0 else stride for stride in before.strides))


def register_index_rules() -> None:
    """Gives the view ops their `at` rules: result index to operand index."""
    ops = load_ops()
    ops["reshape"].rules["at"] = _reshape_at
    ops["transpose"].rules["at"] = _transpose_at
    ops["broadcast_to"].rules["at"] = _broadcast_at
    ops["slice"].rules["at"] = _slice_at
    ops["copy"].rules["at"] = lambda k, index, x: k.read(x, index)


def _transpose_at(k, index, x, *, perm):
    source = [None] * len(perm)
    for position, axis in enumerate(perm):
        source[axis] = index[position]
    return k.read(x, source)


def _broadcast_at(k, index, x, *, shape):
    old = k.shape(x)
    lead = len(shape) - len(old)
    return k.read(x, [k.ix(0) if size == 1 else i for size, i in zip(old, index[lead:], strict=True)])


def _slice_at(k, index, x, *, starts, limits, steps):
    return k.read(x, [k.ix(start) + i * step for start, step, i in zip(starts, steps, index, strict=True)])


def _reshape_at(k, index, x, *, shape):
    return k.read(x, k.reshape_index(index, shape, k.shape(x)))
