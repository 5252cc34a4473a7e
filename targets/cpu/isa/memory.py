"""Loads and stores through `!llvm.ptr`, tail masks, stack memory, and the description of a strided operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val, constant_of, memory_type
from mlir import ir
from mlir.dialects import arith, llvm, vector

from .facts import Isa
from .index import Size, add, i64, mul, to_value

_DYNAMIC = -(1 << 31)  # llvm.getelementptr's mark for "this index is an operand"
STACK_BYTES_MAX = (
    64 * 1024
)  # what the kernels' stack arrays may take together: threads of a phone or an RTOS have little more


def pointer_type() -> ir.Type:
    return ir.Type.parse("!llvm.ptr")


def offset_ptr(ptr: ir.Value, elements: Size, dtype: str) -> ir.Value:
    """`ptr` moved by a number of elements as they lie in memory."""
    if isinstance(elements, int) and elements == 0:
        return ptr
    element = memory_type(dtype)
    if isinstance(elements, int) and abs(elements) < 1 << 30:
        return llvm.getelementptr(pointer_type(), ptr, [], [elements], element, llvm.GEPNoWrapFlags.none)
    return llvm.getelementptr(pointer_type(), ptr, [to_value(elements)], [_DYNAMIC], element, llvm.GEPNoWrapFlags.none)


def load_scalar(ptr: ir.Value, dtype: str) -> ir.Value:
    """One element, in the type that it is computed in."""
    raw = llvm.LoadOp(memory_type(dtype), ptr, alignment=DTYPES[dtype].bytes).result
    return Val.from_memory(raw, dtype).value


def store_scalar(value: ir.Value, ptr: ir.Value, dtype: str) -> None:
    llvm.StoreOp(Val(value, dtype).to_memory(), ptr, alignment=DTYPES[dtype].bytes)


def load_vector(
    isa: Isa, ptr: ir.Value, dtype: str, mask: ir.Value | None = None, alignment: int = 0, like: str | None = None
) -> ir.Value:
    """A register of consecutive elements, zero where `mask` is false; `like` is the dtype that gives the lane count."""
    type_ = isa.vector(memory_type(dtype), like or dtype)
    alignment = alignment or DTYPES[dtype].bytes
    if mask is None:
        raw = llvm.LoadOp(type_, ptr, alignment=alignment).result
    else:
        raw = llvm.intr_masked_load(type_, ptr, mask, alignment, pass_thru=constant_of(type_, 0))
    return Val.from_memory(raw, dtype).value


def store_vector(value: ir.Value, ptr: ir.Value, dtype: str, mask: ir.Value | None = None, alignment: int = 0) -> None:
    """Stores a register, where `mask` is true."""
    raw = Val(value, dtype).to_memory()
    alignment = alignment or DTYPES[dtype].bytes
    if mask is None:
        llvm.StoreOp(raw, ptr, alignment=alignment)
    else:
        llvm.intr_masked_store(raw, ptr, mask, alignment)


def prefetch(ptr: ir.Value, locality: int = 2) -> None:
    """Asks for the line at `ptr` (which may be any address) in the second-level cache."""
    llvm.intr_prefetch(ptr, 0, locality, 1)


def lane_mask(isa: Isa, dtype: str, count: Size) -> ir.Value:
    """True in the first `count` lanes; a count outside 0..lanes is clamped."""
    type_ = isa.vector(ir.IntegerType.get_signless(1), dtype)
    return vector.create_mask(type_, [arith.index_cast(ir.IndexType.get(), to_value(count))])


def zero_vector(isa: Isa, dtype: str) -> ir.Value:
    return constant_of(isa.compute_vector(dtype), 0)


def splat(isa: Isa, scalar: ir.Value, dtype: str) -> ir.Value:
    """`scalar` in every lane."""
    return vector.broadcast(isa.vector(scalar.type, dtype), scalar)


def stack_array(dtype: str, count: int) -> ir.Value:
    """`count` elements on the stack, 64-byte aligned, made once a call whatever loop this is asked for in."""
    block = ir.InsertionPoint.current.block
    owner = block.owner.operation
    while owner.name not in ("func.func", "llvm.func"):
        owner = owner.parent.operation
    with ir.InsertionPoint.at_block_begin(owner.regions[0].blocks[0]):
        return llvm.AllocaOp(pointer_type(), arith.constant(i64(), count), memory_type(dtype), alignment=64).result


@dataclass(frozen=True)
class StridedBuffer:
    """A tensor in memory: element i... is at ptr + offset + sum(i * stride), counted in elements. Stride 0 repeats."""

    ptr: ir.Value
    dtype: str
    offset: Size
    strides: tuple[Size, ...]

    def at(self, index: Sequence[Size]) -> ir.Value:
        """The address of an element; an index shorter than the rank leaves the last dimensions at 0."""
        offset = self.offset
        for position, stride in zip(index, self.strides, strict=False):
            offset = add(offset, mul(position, stride))
        return offset_ptr(self.ptr, offset, self.dtype)


def multiply_add(left: ir.Value, right: ir.Value, addend: ir.Value, dtype: str) -> ir.Value:
    """left * right + addend on registers of `dtype`; one rounding for floats, wrapping for integers."""
    if DTYPES[dtype].is_float:
        return vector.fma(left, right, addend)
    return arith.addi(arith.muli(left, right), addend)


def sum_dtype(dtype: str) -> str:
    """The dtype that products of `dtype` are summed in."""
    return "f32" if DTYPES[dtype].is_narrow_float else dtype
