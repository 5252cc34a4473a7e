"""L1 kernels to L2: opens each kernel's native function, brings arguments in, and hands over to the emitter of its
kind.

A kernel is `llvm.func @name(%args: !llvm.ptr, %begin: i64, %end: i64)`. `args` points to 8-byte slots: the pointers of
its arguments, those of its results, then the values of the symbols that its types name, in order of first appearance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.machine import Machine
from mlc.dialects.views import contiguous, register_index_rules
from mlir import ir
from mlir.dialects import llvm

from . import panels, recurrent  # noqa: F401  register their rules
from .contract import emit_contract
from .index import i64
from .isa.facts import Isa
from .kernel import SCALAR, Buffer, Kernel, Lanes, pointer_type
from .loops import KernelBody, emit_concat
from .rows import emit_rows
from .schedule import Numbers, attached, numbers_of
from .special import emit_special
from .transposed import emit_elements


@dataclass(frozen=True)
class LoweredKernel:
    """What the program needs to launch a kernel.

    Its tile count, the symbols its code reads in slot order, and how each argument that is a weight must be packed.
    """

    name: str
    tiles: Size
    symbols: tuple[str, ...]
    layouts: tuple[str, ...]
    schedule: Numbers = field(default_factory=dict)  # that tuning may vary


Emitter = Callable[[Kernel, KernelBody, ir.Value, ir.Value], Size]
EMIT: dict[str, Emitter] = {
    "pointwise": emit_elements, "window": emit_elements, "row": emit_rows, "concat": emit_concat,
    "contract": emit_contract, "special": emit_special,
}


def isa_of(machine: Machine) -> Isa:
    return Isa(
        machine.vector_bits,
        machine.registers,
        machine.is_scalable,
        machine.l1_bytes,
        machine.l2_bytes,
        machine.llc_bytes,
        machine.dot,
    )


def lower_kernel(function: ir.Operation, machine: Machine, target: ir.Module) -> LoweredKernel:
    """Emits `function` (L1) into `target` (L2). Raises EmitError for an op without a lowering."""
    register_index_rules()
    name = ir.StringAttr(function.attributes["sym_name"]).value
    block = function.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    body_ops, last = operations[:-1], operations[-1]
    results = list(last.operands)
    symbols = kernel_symbols(function)
    with function.location:
        native = open_function(target, name, [pointer_type(), i64(), i64()])
    entry = native.regions[0].blocks[0]
    args, begin, end = entry.arguments
    emitter = ir.StringAttr(function.attributes["mlc.emitter"]).value
    with ir.InsertionPoint(entry), function.location:
        isa = isa_of(machine)
        values = [*block.arguments, *results]
        pointers = [_load_slot(args, i, pointer_type()) for i in range(len(values))]
        symbol_values = {s: _load_slot(args, len(values) + i, i64()) for i, s in enumerate(symbols)}
        k = Kernel(symbol_values, _lanes(isa, body_ops, results, emitter))
        k.isa = isa
        k.packed = argument_layouts(function)
        k.schedule = attached(function)
        buffers = [_buffer(v, p) for v, p in zip(values, pointers, strict=True)]
        k.buffers.update(zip(values, buffers, strict=True))
        body = KernelBody(body_ops, results, buffers[len(block.arguments):])
        tiles = EMIT[emitter](k, body, begin, end)
        llvm.return_()
    layouts = tuple(k.packed.get(a, "") for a in block.arguments)
    return LoweredKernel(name, tiles, symbols, layouts, {} if k.plan is None else numbers_of(k.plan))


def stack_bytes(module: ir.Module) -> int:
    """What the stack arrays of a kernel's native function take, the largest of a module of several."""
    return max((_array_bytes(op.operation) for op in module.body.operations), default=0)


def _array_bytes(function: ir.Operation) -> int:
    if not function.regions or not function.regions[0].blocks:
        return 0
    total = 0
    for op in function.regions[0].blocks[0]:
        if op.operation.name == "llvm.alloca":
            element = ir.TypeAttr(op.operation.attributes["elem_type"]).value
            count = ir.IntegerAttr(op.operation.operands[0].owner.operation.attributes["value"]).value
            total += count * max(1, element.width // 8)
    return total


def argument_layouts(function: ir.Operation) -> dict[ir.Value, str]:
    """Arguments that are weights packed as `mlc.layouts` says."""
    if "mlc.layouts" not in function.attributes:
        return {}
    texts = [ir.StringAttr(a).value for a in ir.ArrayAttr(function.attributes["mlc.layouts"])]
    block = function.regions[0].blocks[0]
    return {a: t for a, t in zip(block.arguments, texts, strict=True) if t}


def kernel_symbols(function: ir.Operation) -> tuple[str, ...]:
    """Symbols in types and attributes of a kernel, in order of first appearance."""
    found: dict[str, None] = {}

    def note(value: object) -> None:
        if isinstance(value, dims.Dim):
            found.update(dict.fromkeys(dims.symbols(value)))
        elif isinstance(value, (list, tuple)):
            for item in value:
                note(item)

    block = function.regions[0].blocks[0]
    for argument in block.arguments:
        note(type_of(argument).shape)
    for op in block.operations:
        if definition_of(op) is not None:
            note(list(attrs_of(op).values()))
            for result in op.operation.results:
                note(type_of(result).shape)
    return tuple(found)


def declare_function(module: ir.Module, name: str, arguments: list[ir.Type], result: str = "void") -> ir.Operation:
    """A hidden `llvm.func` without a body."""
    texts = ", ".join(str(a) for a in arguments)
    signature = ir.Type.parse(f"!llvm.func<{result} ({texts})>")
    return ir.Operation.create(
        "llvm.func", regions=1, ip=ir.InsertionPoint(module.body),
        attributes={
            "sym_name": ir.StringAttr.get(name), "function_type": ir.TypeAttr.get(signature),
            "linkage": ir.Attribute.parse("#llvm.linkage<external>"), "visibility_": ir.Attribute.parse("1 : i64"),
            "CConv": ir.Attribute.parse("#llvm.cconv<ccc>"),
        },
    )


def open_function(module: ir.Module, name: str, arguments: list[ir.Type], result: str = "void") -> ir.Operation:
    """The same with an entry block."""
    function = declare_function(module, name, arguments, result)
    ir.Block.create_at_start(function.regions[0], arguments)
    return function


def _load_slot(args: ir.Value, index: int, type_: ir.Type) -> ir.Value:
    pointer = llvm.getelementptr(pointer_type(), args, [], [index], i64(), None)
    return llvm.load(type_, pointer, alignment=8)


def _buffer(value: ir.Value, pointer: ir.Value) -> Buffer:
    type_ = type_of(value)
    return Buffer(pointer, type_.dtype, contiguous(type_.shape))


def _lanes(isa: Isa, operations: list[ir.Operation], results: list[ir.Value], emitter: str) -> Lanes:
    """Lanes of the widest float in the kernel; scalar where the last dimension has one element, or code is
    sequential."""
    if emitter == "special":
        return SCALAR
    dtypes = {type_of(v).dtype for op in operations for v in (*op.operands, *op.results)}
    widest = "f64" if "f64" in dtypes else "f32"
    if emitter == "contract":
        hero = next(op for op in operations if definition_of(op).kind == "contract")
        widest = "f64" if type_of(hero.results[0]).dtype == "f64" else "f32"
    if emitter in ("pointwise", "window") and all(s == 1 for s in type_of(results[0]).shape):
        return SCALAR
    return Lanes.of(isa, widest)
