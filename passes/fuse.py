"""Cuts `@forward` into kernels: a hero with what feeds it and what follows it, outlined as a private function.

Ops are visited from the results backwards. An op joins the kernel of its users when all of them are in that one kernel
and the kernel's emitter can take it; otherwise it ends a kernel of its own. Views and constants are copied into every
kernel that can read through them, so that they cost no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc.dialects.build import attrs_of, definition_of, loop_marker, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.dims import Size
from mlc.dialects.views import VIEW_OPS, places, strided_through, strides_before
from mlc.dialects.weights import store_of
from mlir import ir

from .base import Pass
from .decompose import is_row_composite
from .heroes import is_tiled
from .rewriting import body_of, functions, mlc_ops, users_of

# Data movement that costs a few instructions an element: may be computed where it is read, once.
_LIGHT_GATHERS = ("gather", "gather_elements", "flip", "pad")
# Read each element once, by asking for it at an index.
_EACH_ONCE = ("concat", "pad", "pad_rows", "flip")


# A first convolution reads images as they come; more channels are worth a transpose to bring them together.
_UNTURNED_CHANNELS_MAX = 4


# decisions on shapes and kinds ---------------------------------------------------------------------------------------
def has_emit(operation: ir.Operation) -> bool:
    return "emit" in definition_of(operation).rules


def is_expensive(operation: ir.Operation) -> bool:
    """Worth computing once: the transcendental family."""
    return definition_of(operation).family == "pointwise_math"


def is_view(operation: ir.Operation) -> bool:
    return definition_of(operation).name in VIEW_OPS


def is_trailing_reduction(operation: ir.Operation) -> bool:
    definition = definition_of(operation)
    if definition.kind != "reduce" or "combine" not in definition.rules:
        return False
    axes, rank = sorted(attrs_of(operation)["axes"]), type_of(operation.operands[0]).rank
    return bool(axes) and axes == list(range(rank - len(axes), rank))


def is_row_op(operation: ir.Operation) -> bool:
    return is_row_composite(operation) or is_trailing_reduction(operation)


def first_row_axis(operation: ir.Operation) -> int:
    attrs = attrs_of(operation)
    return min(attrs["axes"]) if "axes" in attrs else attrs["axis"]


def fits_rows(shape: tuple[Size, ...], source: tuple[Size, ...]) -> bool:
    """Whether a value of `shape` broadcasts to `source` without changing it."""
    if len(shape) > len(source):
        return False
    lead = len(source) - len(shape)
    return all(a in (1, b) for a, b in zip(shape, source[lead:], strict=True))


def ends_product(operation: ir.Operation) -> bool:
    """Whether elementwise ops alone, each read once and as large as the result, lie between this and a tiled op."""
    shape = type_of(operation.results[0]).shape
    for value in operation.operands:
        if isinstance(value.owner, ir.Block) or type_of(value).shape != shape or len(users_of(value)) != 1:
            continue
        owner = value.owner.operation
        if is_tiled(owner) or (has_emit(owner) and ends_product(owner)):
            return True
    return False


def follows_reduction(operation: ir.Operation) -> bool:
    """Whether the op computes one number a row, from a reduction over the rest of the row."""
    if is_trailing_reduction(operation):
        return True
    shape = type_of(operation.results[0]).shape
    if not shape or shape[-1] != 1 or not has_emit(operation):
        return False
    owners = [v.owner.operation for v in operation.operands if not isinstance(v.owner, ir.Block)]
    return any(len(users_of(o.results[0])) == 1 and follows_reduction(o) for o in owners)


@dataclass
class Group:
    """A kernel being collected; `members` from the last op to the first."""

    root: ir.Operation
    kind: str
    members: list[ir.Operation] = field(default_factory=list)
    hero: ir.Operation | None = None
    row_source: tuple[Size, ...] = ()
    row_axis: int = 0

    def __contains__(self, operation: ir.Operation) -> bool:
        return operation in self.members

    def add(self, operation: ir.Operation) -> None:
        self.members.append(operation)


def kind_alone(operation: ir.Operation) -> str:
    """The kind of a kernel that has only this op."""
    definition = definition_of(operation)
    if definition.name == "concat":
        return "concat"
    if is_tiled(operation):
        return "contract"
    if "kernel" in definition.rules or "kernel:cpu" in definition.rules:
        return "special"
    if is_row_op(operation):
        return "row"
    is_plain = has_emit(operation) or is_view(operation) or places(operation) or definition.kind == "source"
    return "pointwise" if is_plain else "window"


class Fuser:
    """Groups the ops of one block."""

    def __init__(self, block: ir.Block, max_ops: int) -> None:
        self.block, self.max_ops = block, max_ops
        self.groups: list[Group] = []
        self.groups_of: dict[ir.Operation, list[Group]] = {}

    def run(self) -> list[Group]:
        for operation in reversed(list(mlc_ops(self.block))):
            if operation.name == "mlc.weight":
                continue
            self._place(operation)
        return self.groups

    def _place(self, operation: ir.Operation) -> None:
        users = [u for r in operation.results for u in users_of(r)]
        groups = list(dict.fromkeys(id(g) for u in users for g in self.groups_of.get(u, [])))
        by_id = {id(g): g for g in self.groups}
        is_returned = any(u.name == "func.return" for u in users)
        candidates = [by_id[g] for g in groups]
        definition = definition_of(operation)
        if operation.name == "mlc.read_size" or loop_marker(operation) is not None:
            self._start(operation)
            return
        if not users:
            return
        if definition.kind == "source" or is_view(operation):
            joined = [g for g in candidates if self._can_join(g, operation)]
            for group in joined:
                self._join(group, operation)
            if len(joined) == len(candidates) and not is_returned:
                return
        elif len(candidates) == 1 and not is_returned and self._takes(candidates[0], operation):
            self._join(candidates[0], operation)
            return
        self._start(operation)

    def _takes(self, group: Group, operation: ir.Operation) -> bool:
        """Whether `operation` joins its only readers. What a product can do on its tiles is left to it where a row
        kernel follows: rows then read one tensor, and the product's arithmetic hides the reads of the others."""
        is_epilogue = group.kind == "row" and has_emit(operation) and ends_product(operation)
        return not is_epilogue and self._can_join(group, operation)

    def _start(self, operation: ir.Operation) -> None:
        group = Group(operation, kind_alone(operation))
        self.groups.append(group)
        self._join(group, operation)

    def _join(self, group: Group, operation: ir.Operation) -> None:
        group.add(operation)
        self.groups_of.setdefault(operation, []).append(group)
        kind = kind_alone(operation)
        if kind == "row":
            group.kind = "row"
            group.row_source, group.row_axis = type_of(operation.operands[0]).shape, first_row_axis(operation)
        elif kind not in ("pointwise",) and group.hero is None and not (kind == "window" and self._is_light(operation)):
            group.kind, group.hero = kind, operation

    def _is_light(self, operation: ir.Operation) -> bool:
        return definition_of(operation).name in _LIGHT_GATHERS

    # what each kind of kernel takes ----------------------------------------------------------------------------------
    def _can_join(self, group: Group, operation: ir.Operation) -> bool:
        if len(group.members) >= self.max_ops:
            return False
        definition = definition_of(operation)
        users = [u for r in operation.results for u in users_of(r) if u in group]
        if definition.kind == "source":
            return self._takes_source(group, operation, users)
        if self._feeds_hero(group, operation):
            return is_view(operation) and self._is_strided(operation, group)
        kind = kind_alone(operation)
        if kind in ("contract", "window") and not self._is_light(operation):
            return self._takes_hero(group, operation)
        if kind in ("special", "concat"):
            return False
        if kind == "row":
            return self._takes_row(group, operation)
        return all(self._reads_once(group, user, operation) for user in users)

    def _takes_source(self, group: Group, operation: ir.Operation, users: list[ir.Operation]) -> bool:
        """Constants are computed where they are read, unless an emitter wants memory."""
        return all(has_emit(u) or (is_view(u) and not self._feeds_hero(group, u)) for u in users)

    def _feeds_hero(self, group: Group, operation: ir.Operation) -> bool:
        """Whether `operation` lies on the way to an operand of a hero with an emitter of its own."""
        if group.kind not in ("contract", "special") or group.hero is None:
            return False
        return any(
            u == group.hero or (u in group and self._feeds_hero(group, u))
            for r in operation.results
            for u in users_of(r)
        )

    def _takes_hero(self, group: Group, operation: ir.Operation) -> bool:
        """An epilogue: everything after the hero is elementwise on the hero's own shape, then perhaps views."""
        if group.kind != "pointwise" or group.hero is not None or len(operation.results) != 1:
            return False
        shape = type_of(operation.results[0]).shape
        frontier, seen = [operation.results[0]], set()
        while frontier:
            value = frontier.pop()
            for user in users_of(value):
                if user in seen or user not in group:
                    continue
                seen.add(user)
                if is_view(user) or places(user):
                    found = strides_before(value, group.root.results[0])
                    # Lanes that lie apart in the result would be stored one by one: a transposing copy is faster.
                    if found is None or (found.strides and found.strides[-1] != 1 and shape[-1] != 1):
                        return False
                    continue
                if not has_emit(user) or type_of(user.results[0]).shape != shape:
                    return False
                frontier.append(user.results[0])
        return True

    def _takes_row(self, group: Group, operation: ir.Operation) -> bool:
        source, axis = type_of(operation.operands[0]).shape, first_row_axis(operation)
        if group.kind == "row":
            return (source, axis) == (group.row_source, group.row_axis)
        if group.kind != "pointwise" or group.hero is not None:
            return False
        for member in group.members:
            value = member.results[0]
            if places(member) and strides_before(member.operands[0], group.root.results[0]) is not None:
                continue
            if definition_of(member).kind == "source":
                continue
            if not has_emit(member) or not fits_rows(type_of(value).shape, source):
                return False
        return True

    def _reads_once(self, group: Group, user: ir.Operation, operation: ir.Operation) -> bool:
        """Whether `user`, in `group`, reads each element of `operation`'s result about once, by asking for it at an
        index."""
        if group.kind == "row" and not fits_rows(type_of(operation.results[0]).shape, group.row_source):
            return is_view(operation) and has_emit(user) is False
        if not has_emit(user) and not is_view(user) and not self._is_single_reader(user, operation):
            return False
        if is_view(operation) or not (is_expensive(operation) or self._is_light(operation)):
            return True
        shape, wanted = type_of(operation.results[0]), type_of(user.results[0])
        return shape.elements == wanted.elements or places(user) or is_row_op(user) or follows_reduction(operation)

    def _is_single_reader(self, user: ir.Operation, operation: ir.Operation) -> bool:
        definition = definition_of(user)
        if definition.kind == "reduce" or is_row_composite(user):
            return True
        if definition.name in _EACH_ONCE or definition.family == "loop":
            return True
        if definition.name in ("gather", "gather_elements"):  # indices are read at the result's own index
            return operation.results[0] != user.operands[0] and not is_expensive(operation)
        return False

    def _is_strided(self, operation: ir.Operation, group: Group) -> bool:
        def is_memory(value: ir.Value) -> bool:
            owner = value.owner
            return isinstance(owner, ir.Block) or not is_view(owner.operation)

        found = strided_through(operation.results[0], is_memory)
        if found is None or group.hero is None:
            return found is not None
        if "layouts" in definition_of(group.hero).rules:  # its emitter reads rows by whole registers
            return operation.results[0] not in list(group.hero.operands) or found[1].strides[-1] == 1
        if group.hero.name not in ("mlc.conv", "mlc.conv_winograd"):
            return True
        # The hero sees the last view; asking at each is the same, since only all of them together reach it.
        shape = type_of(group.hero.operands[0]).shape
        return (
            operation.results[0] != group.hero.operands[0]
            or found[1].strides[-1] == 1
            or shape[-1] <= _UNTURNED_CHANNELS_MAX
        )


# outlining -----------------------------------------------------------------------------------------------------------
def _prepare_constants(module: ir.Module, block: ir.Block) -> None:
    """Constants of more than one element become weights; kernels hold only scalars."""
    store = store_of(module)
    for operation in mlc_ops(block):
        if operation.name != "mlc.constant":
            continue
        value = attrs_of(operation)["value"]
        needs_memory = any(not has_emit(u) for u in users_of(operation.results[0]) if u.name.startswith("mlc."))
        if value.size > 1 or needs_memory:
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            name = store.add("constant", value)
            weight = builder.weight(name=name, shape=list(value.shape), dtype=type_of(operation.results[0]).dtype)
            operation.results[0].replace_all_uses_with(weight.ir)
            operation.erase()


def _prepare_returns(block: ir.Block) -> None:
    """Each returned value is the result of an op of its own."""
    last = block.operations[len(block.operations) - 1].operation
    seen: set[ir.Value] = set()
    for position, value in enumerate(list(last.operands)):
        owner = value.owner
        is_computed = not isinstance(owner, ir.Block) and definition_of(owner.operation).kind != "source"
        # What a loop gives lies where its state does.
        is_computed = is_computed and loop_marker(owner.operation) is None
        if is_computed and value not in seen:
            seen.add(value)
            continue
        builder = OpBuilder(ir.InsertionPoint(last), last.location)
        last.operands[position] = builder.copy(Value(value)).ir


@dataclass(frozen=True)
class Fuse(Pass):
    """Groups ops into kernels and outlines each as `func.func private @k<n>`.

    Before: `@forward` of mlc ops; composites as decompose leaves them. After: `@forward` holds weights and
    `func.call`s; every kernel has `mlc.hero`; equal kernels are one function.
    """

    max_ops: int = 64

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        _prepare_constants(module, block)
        _prepare_returns(block)
        groups = Fuser(block, self.max_ops).run()
        order = {op.operation: i for i, op in enumerate(block.operations)}
        known: dict[str, str] = {}
        calls: dict[ir.Value, ir.Value] = {}
        for group in sorted(groups, key=lambda g: order[g.root]):
            _outline(module, group, known, calls)
        returned = block.operations[len(block.operations) - 1].operation
        for position, value in enumerate(list(returned.operands)):
            returned.operands[position] = calls[value]
        for operation in reversed(list(mlc_ops(block))):
            if operation.name != "mlc.weight" or not any(True for _ in operation.results[0].uses):
                operation.erase()


def _outline(module: ir.Module, group: Group, known: dict[str, str], calls: dict) -> None:
    members = _operands_first(group)
    inside = {r for op in members for r in op.results}
    inputs = list(dict.fromkeys(v for op in members for v in op.operands if v not in inside))
    results = list(group.root.results)
    locations = list(dict.fromkeys(op.location for op in members))
    loc = locations[0] if len(locations) == 1 else ir.Location.fused(locations)
    hero = _hero_name(group)
    name = f"k{len(known)}_{hero}"
    function = _build_function(module, name, members, inputs, results, group.kind, hero, loc)
    text = function.get_asm(use_local_scope=True).replace(f"@{name}(", "@(")
    if text in known:
        function.erase()
        name = known[text]
    else:
        known[text] = name
    call = ir.Operation.create(
        "func.call", results=[r.type for r in results], operands=[calls.get(v, v) for v in inputs],
        attributes={"callee": ir.FlatSymbolRefAttr.get(name)}, loc=loc, ip=ir.InsertionPoint(group.root),
    )
    calls.update(zip(results, call.results, strict=True))


def _operands_first(group: Group) -> list[ir.Operation]:
    """The members in an order that follows from their structure alone, so that equal kernels read alike."""
    members = set(group.members)
    found: dict[ir.Operation, None] = {}

    def visit(operation: ir.Operation) -> None:
        if operation in members and operation not in found:
            for value in operation.operands:
                if not isinstance(value.owner, ir.Block):
                    visit(value.owner.operation)
            found[operation] = None

    visit(group.root)
    return list(found)


def _hero_name(group: Group) -> str:
    if group.hero is not None:
        return definition_of(group.hero).name
    rows = [definition_of(op).name for op in group.members if is_row_op(op)]
    named = [n for n in rows if n not in ("sum", "max", "min", "mean")] or rows
    return named[-1] if named else "pointwise"


def _build_function(module, name, members, inputs, results, kind, hero, loc) -> ir.Operation:
    signature = ir.FunctionType.get([v.type for v in inputs], [r.type for r in results])
    function = ir.Operation.create(
        "func.func", regions=1, loc=loc, ip=ir.InsertionPoint(module.body),
        attributes={
            "sym_name": ir.StringAttr.get(name), "function_type": ir.TypeAttr.get(signature),
            "sym_visibility": ir.StringAttr.get("private"), "mlc.hero": ir.StringAttr.get(hero),
            "mlc.emitter": ir.StringAttr.get(kind),
        },
    )
    block = ir.Block.create_at_start(function.regions[0], [v.type for v in inputs])
    mapping: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
    point = ir.InsertionPoint(block)
    for operation in members:
        clone = operation.clone(ip=point)
        for position, value in enumerate(operation.operands):
            clone.operation.operands[position] = mapping[value]
        mapping.update(zip(operation.results, clone.operation.results, strict=True))
    ir.Operation.create("func.return", operands=[mapping[r] for r in results], loc=loc, ip=point)
    return function
