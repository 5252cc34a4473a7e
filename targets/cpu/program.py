"""The native `plan` and `forward` of a model: sizes from input shapes, and the launches one after another.

`plan` reads the input sizes, solves the symbols, refuses sizes that do not fit, and gives output sizes and arena bytes.
`forward` fills each kernel's argument slots and launches it. Where a kernel made a size, `forward` reads it for those
that follow and in the end says how large the outputs came out; `plan` takes the largest that it can be. Both follow
code ABI 1 (runtime/include/mlc_code.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, sizes_from_data, type_of
from mlc.dialects.dims import Size
from mlc.dialects.state import state_count
from mlir import ir
from mlir.dialects import arith, cf, llvm

from .index import Arithmetic, Number, i64
from .kernel import pointer_type
from .lower import LoweredKernel, declare_function, open_function

_FAIL_INPUT_DIM, _FAIL_SYMBOL_RANGE, _FAIL_SYMBOL_CLASH, _FAIL_SIZE, _FAIL_DATA_SIZE = 1, 2, 3, 6, 7
_DYNAMIC = -(2**31)
# getelementptr keeps constant indices in 29 signed bits.
_LARGEST_CONSTANT_INDEX = 2**28


class LayoutError(ValueError):
    """Input sizes from which some symbol cannot be told."""


def _struct_offsets() -> dict[str, int]:
    """Byte offsets in mlc_call_v1; every field after the first two is 8 bytes."""
    fields = (
        "env",
        "inputs",
        "outputs",
        "weights",
        "arena",
        "input_dims",
        "output_dims",
        "symbols",
        "arena_bytes",
        "state",
    )
    return {name: 8 + 8 * i for i, name in enumerate(fields)}


_CALL = _struct_offsets()
_ENV_LAUNCH, _ENV_FAIL = 16, 24


@dataclass(frozen=True)
class Launch:
    """One kernel call of `forward`: where each argument lies. A place is ("input", i), ("output", i), ("weight", bytes)
    ("arena", size) or ("state", bytes)."""

    kernel: LoweredKernel
    index: int
    places: tuple[tuple[str, Size], ...]
    loop: tuple[str, int] | None = None  # which marker of which loop: see dialects/loop.py
    reads: tuple[Size, Size] | None = None  # the kernel's result is this size, and at most that


@dataclass(frozen=True)
class ProgramShape:
    """What `plan` is made from."""

    inputs: tuple[tuple[Size, ...], ...]
    outputs: tuple[tuple[Size, ...], ...]
    symbols: Mapping[str, tuple[int, int]]
    arena_bytes: Size
    inner: tuple[Size, ...] = ()  # sizes of results that some symbols in range may make negative
    computed: Mapping[str, Size] = field(default_factory=dict)  # symbols that data decide: the greatest value

    def depends(self, size: Size) -> bool:
        """Whether data decide the size."""
        return any(name in self.computed for name in dims.symbols(size))


class _Emitter:
    """Shared parts of plan and forward: field access, sizes, and early return."""

    def __init__(self, module: ir.Module, name: str) -> None:
        self.function = open_function(module, name, [pointer_type()], "i32")
        self.region = self.function.regions[0]
        self.entry = self.region.blocks[0]
        self.call = self.entry.arguments[0]
        self.arith = Arithmetic()
        self.symbols: dict[str, Number] = {}
        self.exit = self.entry.create_after(ir.IntegerType.get_signless(32))
        with ir.InsertionPoint(self.exit):
            ir.Operation.create("llvm.return", operands=[self.exit.arguments[0]])
        self.point = ir.InsertionPoint(self.entry)

    def field(self, name: str, type_: ir.Type | None = None) -> ir.Value:
        return llvm.load(type_ or pointer_type(), self.byte_pointer(self.call, _CALL[name]), alignment=8)

    def byte_pointer(self, base: ir.Value, offset: Number) -> ir.Value:
        return self.element(base, offset, ir.IntegerType.get_signless(8))

    def element(self, base: ir.Value, index: Number, type_: ir.Type) -> ir.Value:
        if isinstance(index, int) and abs(index) < _LARGEST_CONSTANT_INDEX:
            return base if index == 0 else llvm.getelementptr(pointer_type(), base, [], [index], type_, None)
        return llvm.getelementptr(pointer_type(), base, [self.arith.value(index)], [_DYNAMIC], type_, None)

    def size(self, size: Size) -> Number:
        return self.arith.size(size, self.symbols)

    def return_unless(self, ok: ir.Value, status) -> None:
        """Leaves with `status()` where `ok` is false, and goes on in a new block."""
        failed, following = self.exit.create_before(), None
        following = self.exit.create_before()
        cf.cond_br(ok, [], [], following, failed)
        with ir.InsertionPoint(failed):
            self.arith.scopes.append({})
            cf.br([status()], self.exit)
            self.arith.scopes.pop()
        self.continue_in(following)

    def continue_in(self, block: ir.Block) -> None:
        """What follows is written into `block`."""
        self.point.__exit__(None, None, None)
        self.point = ir.InsertionPoint(block)
        self.point.__enter__()

    def finish(self) -> None:
        cf.br([arith.constant(ir.IntegerType.get_signless(32), 0)], self.exit)

    def __enter__(self) -> Self:
        self.point.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.point.__exit__(None, None, None)


def _call_pointer(function: ir.Value, operands: Sequence[ir.Value]) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    return ir.Operation.create(
        "llvm.call", results=[i32], operands=[function, *operands],
        attributes={
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1 + len(operands), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    ).results[0]


class _Checking(_Emitter):
    """One that may fail with a sentence."""

    def fail(self, what: int, index: int, got: Number, want: Number) -> ir.Value:
        env = self.field("env")
        function = llvm.load(pointer_type(), self.byte_pointer(env, _ENV_FAIL), alignment=8)
        i32 = ir.IntegerType.get_signless(32)
        operands = [env, arith.constant(i32, 0), arith.constant(i32, what)]
        return _call_pointer(function, [*operands, *(self.arith.value(n) for n in (index, got, want))])

    def compare(self, predicate: int, a: Number, b: Number) -> ir.Value:
        return arith.cmpi(predicate, self.arith.value(a), self.arith.value(b))


class _Plan(_Checking):
    """Solves symbols."""


def emit_plan(module: ir.Module, shape: ProgramShape) -> None:
    """`@mlc_plan`. Raises LayoutError when a symbol occurs in no input size that it can be solved from."""
    with _Plan(module, "mlc_plan") as plan:
        names = list(shape.symbols)
        given = plan.field("input_dims")
        sizes = [s for dims_ in shape.inputs for s in dims_]
        actual = [llvm.load(i64(), plan.element(given, i, i64()), alignment=8) for i in range(len(sizes))]
        for name, position, solve in _solving_order(sizes, [n for n in names if n not in shape.computed]):
            _solve_symbol(plan, names.index(name), name, shape.symbols[name], actual[position], solve)
        for name, most in shape.computed.items():
            plan.symbols[name] = plan.size(most)
        for position, size in enumerate(sizes):
            wanted = plan.size(size)
            plan.return_unless(
                plan.compare(0, actual[position], wanted),
                lambda p=position, w=wanted: plan.fail(_FAIL_INPUT_DIM, p, actual[p], w),
            )
        _refuse_negative(plan, [size for size in shape.inner if not shape.depends(size)])
        store_to = plan.field("symbols")
        for position, name in enumerate(names):
            llvm.store(plan.arith.value(plan.symbols[name]), plan.element(store_to, position, i64()), alignment=8)
        store_to = plan.field("output_dims")
        for position, size in enumerate(s for dims_ in shape.outputs for s in dims_):
            most = plan.arith.value(plan.size(dims.most(size, shape.computed)))
            llvm.store(most, plan.element(store_to, position, i64()), alignment=8)
        arena = plan.arith.value(plan.size(shape.arena_bytes))
        llvm.store(arena, plan.byte_pointer(plan.call, _CALL["arena_bytes"]), alignment=8)
        plan.finish()


def _refuse_negative(emitter: _Checking, sizes: Sequence[Size]) -> None:
    for size in sizes:
        got = emitter.size(size)
        emitter.return_unless(emitter.compare(5, got, 0), lambda g=got: emitter.fail(_FAIL_SIZE, -1, g, 0))


def _solving_order(sizes: Sequence[Size], names: Sequence[str]) -> list[tuple[str, int, tuple[int, Size]]]:
    """For each symbol: the input size it is read from, as slope and offset (which may use symbols solved before)."""
    order: list[tuple[str, int, tuple[int, Size]]] = []
    solved: set[str] = set()
    while len(solved) < len(names):
        best = None
        for position, size in enumerate(sizes):
            unknown = [s for s in dims.symbols(size) if s not in solved]
            if len(unknown) != 1:
                continue
            offset = dims.substitute(size, {unknown[0]: 0})
            slope = dims.substitute(size, {unknown[0]: 1}) - offset
            is_linear = isinstance(slope, int) and slope > 0 and size == dims.symbol(unknown[0]) * slope + offset
            if is_linear and (best is None or slope < best[2][0]):
                best = (unknown[0], position, (slope, offset))
        if best is None:
            missing = [n for n in names if n not in solved]
            raise LayoutError(f"the size '{missing[0]}' cannot be told from the input shapes")
        order.append(best)
        solved.add(best[0])
    return order


def _solve_symbol(
    plan: _Plan, index: int, name: str, limits: tuple[int, int], actual: ir.Value, solve: tuple[int, Size]
) -> None:
    slope, offset = solve
    rest = plan.arith.sub(actual, plan.size(offset))
    value = plan.arith.div(rest, slope)
    plan.symbols[name] = value
    low, high = limits
    inside = arith.andi(plan.compare(5, value, low), plan.compare(3, value, high))
    plan.return_unless(inside, lambda: plan.fail(_FAIL_SYMBOL_RANGE, index, value, 0))


class _Forward(_Checking):
    """Keeps base pointers at hand."""

    bases: dict[str, ir.Value]
    pending: set[str]  # sizes that no kernel made yet; the symbol is its greatest value until then

    def pointer(self, place: tuple[str, Size]) -> ir.Value:
        kind, where = place
        if kind in ("input", "output"):
            slot = self.element(self.bases[kind + "s"], where, pointer_type())
            return llvm.load(pointer_type(), slot, alignment=8)
        return self.byte_pointer(self.bases["weights" if kind == "weight" else kind], self.size(where))


def emit_forward(module: ir.Module, shape: ProgramShape, launches: Sequence[Launch]) -> None:
    """`@mlc_forward`: launches in order; the first status other than 0 is returned."""
    for name in dict.fromkeys(one.kernel.name for one in launches):
        declare_function(module, name, [pointer_type(), i64(), i64()])
    with _Forward(module, "mlc_forward") as forward:
        slots = max((len(x.places) + len(x.kernel.symbols) for x in launches), default=1)
        args = llvm.alloca(pointer_type(), arith.constant(i64(), max(slots, 1)), i64(), alignment=16)
        forward.pending = set(shape.computed)
        forward.bases = {n: forward.field(n) for n in ("inputs", "outputs", "weights", "arena", "state")}
        table = forward.field("symbols")
        for position, name in enumerate(shape.symbols):
            forward.symbols[name] = llvm.load(i64(), forward.element(table, position, i64()), alignment=8)
        forward.symbols |= {name: forward.arith.value(forward.size(most)) for name, most in shape.computed.items()}
        env = forward.field("env")
        launch = llvm.load(pointer_type(), forward.byte_pointer(env, _ENV_LAUNCH), alignment=8)
        loops = Loops(forward, launches)
        for step, one in enumerate(launches):
            _emit_launch(forward, env, launch, args, one)
            loops.after(step)
            if one.reads is not None:
                _read_size(forward, shape, one)
        _store_output_dims(forward, shape)
        forward.finish()


def _read_size(forward: _Forward, shape: ProgramShape, one: Launch) -> None:
    """The size that a kernel made, for those after it, once it is in its range."""
    assert one.reads is not None
    size, most = one.reads
    got = llvm.load(i64(), forward.pointer(one.places[-1]), alignment=8)
    if size == most:
        wanted = forward.size(size)
        forward.return_unless(forward.compare(0, got, wanted), lambda: forward.fail(_FAIL_DATA_SIZE, -1, got, wanted))
        return
    name, table = str(size), forward.field("symbols")
    position = list(shape.symbols).index(name)
    inside = arith.andi(
        forward.compare(5, got, shape.symbols[name][0]), forward.compare(3, got, forward.symbols[name])
    )
    forward.return_unless(inside, lambda: forward.fail(_FAIL_SYMBOL_RANGE, position, got, 0))
    llvm.store(got, forward.element(table, position, i64()), alignment=8)
    forward.symbols[name] = got
    forward.pending.discard(name)
    _refuse_negative(
        forward,
        [s for s in shape.inner if name in dims.symbols(s) and not forward.pending.intersection(dims.symbols(s))],
    )


def _store_output_dims(forward: _Forward, shape: ProgramShape) -> None:
    """How large the outputs came out whose sizes data decide."""
    flat = [size for dims_ in shape.outputs for size in dims_]
    if not any(map(shape.depends, flat)):
        return
    store_to = forward.field("output_dims")
    for position, size in enumerate(flat):
        if shape.depends(size):
            value = forward.arith.value(forward.size(size))
            llvm.store(value, forward.element(store_to, position, i64()), alignment=8)


class Loops:
    """The branches of loops among launches that are written one after another."""

    def __init__(self, forward: _Forward, launches: Sequence[Launch]) -> None:
        self.forward, self.launches = forward, launches
        self.last = {one.loop: step for step, one in enumerate(launches)}
        whole = {loop for kind, loop in filter(None, self.last) if kind == "loop_begin"}
        self.last = {marker: step for marker, step in self.last.items() if marker is not None and marker[1] in whole}
        self.heads: dict[int, ir.Block] = {}
        self.exits: dict[int, ir.Block] = {}

    def after(self, step: int) -> None:
        """Branches as the marker that was launched at `step` asks for."""
        marker, forward = self.launches[step].loop, self.forward
        if marker is None or self.last.get(marker) != step or ("loop_end", marker[1]) not in self.last:
            return
        kind, loop = marker
        if kind == "loop_begin":
            self.heads[loop] = forward.exit.create_before()
            cf.br([], self.heads[loop])
            forward.continue_in(self.heads[loop])
        elif kind == "loop_test":
            byte = ir.IntegerType.get_signless(8)
            flag = llvm.load(byte, forward.pointer(self.launches[step].places[-1]), alignment=1)
            go = arith.cmpi(1, flag, arith.constant(byte, 0))
            body, self.exits[loop] = forward.exit.create_before(), forward.exit.create_before()
            cf.cond_br(go, [], [], body, self.exits[loop])
            forward.continue_in(body)
        elif kind == "loop_end":
            cf.br([], self.heads[loop])
            forward.continue_in(self.exits[loop])


def _emit_launch(forward: _Forward, env: ir.Value, launch: ir.Value, args: ir.Value, one: Launch) -> None:
    forward.arith.scopes.append({})
    slot = 0
    for place in one.places:
        llvm.store(forward.pointer(place), forward.element(args, slot, i64()), alignment=8)
        slot += 1
    for name in one.kernel.symbols:
        llvm.store(forward.symbols[name], forward.element(args, slot, i64()), alignment=8)
        slot += 1
    i32 = ir.IntegerType.get_signless(32)
    kernel = llvm.mlir_addressof(pointer_type(), one.kernel.name)
    tiles = forward.arith.value(forward.size(one.kernel.tiles))
    status = _call_pointer(launch, [env, arith.constant(i32, one.index), kernel, args, tiles])
    ok = arith.cmpi(0, status, arith.constant(i32, 0))
    forward.return_unless(ok, lambda: status)
    forward.arith.scopes.pop()


def program_shape(module: ir.Module, forward: ir.Operation, symbols: Mapping[str, tuple[int, int]]) -> ProgramShape:
    """Input and output sizes and the arena from `@forward`, whose last arguments and results are states."""
    states = state_count(forward)
    block = forward.regions[0].blocks[0]
    returned = block.operations[len(block.operations) - 1].operation.operands
    made = [size for op in block.operations for r in op.operation.results for size in type_of(r).shape]
    return ProgramShape(
        tuple(type_of(a).shape for a in list(block.arguments)[: len(block.arguments) - states]),
        tuple(type_of(v).shape for v in list(returned)[: len(returned) - states]), symbols,
        dims.parse(ir.StringAttr(forward.attributes["mlc.arena_bytes"]).value),
        tuple(dict.fromkeys(size for size in made if dims.bounds(size, symbols)[0] < 0)),
        sizes_from_data(module),
    )


def size_read(kernel: ir.Operation) -> tuple[Size, Size] | None:
    """The size that a kernel's result is, and the greatest it may be; None for kernels that compute tensors."""
    for operation in kernel.regions[0].blocks[0].operations:
        if operation.operation.name == "mlc.read_size":
            attrs = attrs_of(operation)
            return attrs["size"], attrs["bound"]
    return None
