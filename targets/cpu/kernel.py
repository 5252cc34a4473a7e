"""`Kernel`: the context in which one kernel function is emitted; the `k` of the ops' `at` and `kernel` rules.

It evaluates values of an L1 kernel function at indices (`read`), each op by its `at` rule, sharing what is read twice,
and turns reads of buffers into scalar loads, vector loads, masked loads or gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlc.dialects import dims
from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.dims import Size
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val, compute_type, constant_of, memory_type
from mlc.dialects.views import Strided, contiguous, strided_through
from mlir import ir
from mlir.dialects import arith, llvm, scf, vector

from .index import Arithmetic, Ix, Number, i64
from .isa.facts import Isa
from .schedule import Numbers


class EmitError(ValueError):
    """An op that the CPU family cannot lower; the message names op and location."""


@dataclass(frozen=True)
class Buffer:
    """Memory of one tensor: element `i` at `offset + sum(i * strides)` elements from `pointer`."""

    pointer: ir.Value
    dtype: str
    view: Strided
    is_streamed: bool = False  # whole vectors are stored past the caches; see `streaming.py`


@dataclass(frozen=True)
class Lanes:
    """How many elements the lane dimension takes at once; 0: scalar code.

    `scalable_count`: the count a 128-bit granule where vector types are scalable (their length is known all the same),
    else 0.
    """

    count: int
    scalable_count: int = 0

    @staticmethod
    def of(isa: Isa, dtype: str) -> Lanes:
        """A register of `dtype`."""
        lanes = isa.lanes(dtype)
        return Lanes(lanes, lanes * 128 // isa.vector_bits if isa.is_scalable else 0)


SCALAR = Lanes(0)
LINE_BYTES = 64


def pointer_type() -> ir.Type:
    return ir.Type.parse("!llvm.ptr")


class Kernel:
    """State while one kernel is emitted: buffers, symbol values, lanes, masks, and what is already computed."""

    isa: Isa
    packed: dict[ir.Value, str]  # weights laid out for the kernel, and how
    schedule: Numbers  # tuned numbers in place of the emitter's own
    plan: Any = None  # what the emitter went by, where it has a plan

    def __init__(self, symbol_values: dict[str, ir.Value], lanes: Lanes) -> None:
        self.arith = Arithmetic()
        self.symbol_values = symbol_values
        self.lanes_info = lanes
        self.buffers: dict[ir.Value, Buffer] = {}
        self.bound: dict[ir.Value, Callable[[list[Ix]], Val]] = {}
        self.shape_of: dict[ir.Value, tuple[Size, ...]] = {}
        self.tail: Val | None = None
        self.mask: Val | None = None
        self.ahead_bytes: dict[ir.Value, int] = {}  # how far reads of whole vectors from a pointer prefetch

    # lanes and numbers ---------------------------------------------------------------------------------------------
    @property
    def lanes(self) -> int:
        return self.lanes_info.count

    def lane_type(self, element: ir.Type) -> ir.Type:
        if self.lanes_info.scalable_count:
            return ir.VectorType.get([self.lanes_info.scalable_count], element, scalable=[True])
        return ir.VectorType.get([self.lanes], element)

    def lane_numbers(self) -> ir.Value:
        """0, 1, 2, … as a vector of i64."""
        step_type = self.lane_type(ir.IndexType.get())
        return self.shared(("step",), lambda: arith.index_cast(self.lane_type(i64()), vector.step(step_type)))

    def number(self, number: Number) -> ir.Value:
        return self.arith.value(number)

    def shared(self, key: tuple, build: Callable[[], Any]) -> Any:
        return self.arith.shared((self.lanes, *key), build)

    @contextmanager
    def wider(self, vectors: int) -> Iterator[None]:
        """Code inside takes `vectors` registers at once wherever it took one.

        LLVM splits each operation, so that independent ones stand side by side and a constant is loaded once for all.
        """
        outer = self.lanes_info
        self.lanes_info = Lanes(outer.count * vectors, outer.scalable_count * vectors)
        try:
            yield
        finally:
            self.lanes_info = outer

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed inside is not visible after: for the body of a region."""
        self.arith.scopes.append({})
        try:
            yield
        finally:
            self.arith.scopes.pop()

    def size(self, size: Size) -> Number:
        """The number a size expression is in this run."""
        return self.arith.size(size, self.symbol_values)

    def ix(self, number: Any) -> Ix:
        """An index from an int, a size, an i64 value or an integer Val."""
        if isinstance(number, Ix):
            return number
        if isinstance(number, Val):
            wide = number.cast("i64").value
            return Ix(self, vec=wide) if isinstance(wide.type, ir.VectorType) else Ix(self, wide)
        return Ix(self, self.size(number) if isinstance(number, dims.Dim) else number)

    def constant(self, number: float | int | bool, dtype: str) -> Val:
        return Val(self.shared(("k", dtype, repr(number)), lambda: constant_of(compute_type(dtype), number)), dtype)

    def size_val(self, size: Size, dtype: str) -> Val:
        return Val(self.number(self.size(size)), "i64").cast(dtype)

    def splat(self, value: Val) -> Val:
        """`value` in every lane; unchanged in scalar code."""
        return value.splat(self.lane_type(i64())) if self.lanes else value

    # what rules ask about values -----------------------------------------------------------------------------------
    def shape(self, value: ir.Value) -> tuple[Size, ...]:
        found = self.shape_of.get(value)
        return type_of(value).shape if found is None else found

    def dtype(self, value: ir.Value) -> str:
        return type_of(value).dtype

    # reading -------------------------------------------------------------------------------------------------------
    def read(self, value: ir.Value, index: Sequence[Ix]) -> Val:
        """The element of `value` at `index` (one Ix a dimension), or a vector of them."""
        masks = tuple(m.value if m is not None else None for m in (self.mask, self.tail))
        return self.shared(("read", value, tuple(i.key for i in index), masks), lambda: self._read(value, list(index)))

    def read_broadcast(self, value: ir.Value, index: Sequence[Ix]) -> Val:
        """`read` with the index of a result that `value` broadcasts to."""
        shape = self.shape(value)
        lead = len(index) - len(shape)
        return self.read(value, [self.ix(0) if s == 1 else i for s, i in zip(shape, index[lead:], strict=True)])

    def _read(self, value: ir.Value, index: list[Ix]) -> Val:
        if value in self.bound:
            return self.bound[value](index)
        buffer = self.buffer_beneath(value)
        if buffer is not None:
            return self.load(buffer, index)
        operation = value.owner.operation
        definition = definition_of(operation)
        if definition is None:
            raise EmitError(f"{operation.name} inside a kernel ({operation.location})")
        attrs = attrs_of(operation)
        with operation.location:
            if definition.name in _SOURCES:
                return _SOURCES[definition.name](self, index, **attrs)
            operands = operands_of(operation)
            flat = [v for o in operands for v in (o if isinstance(o, list) else [o])]
            if "emit" in definition.rules:
                vals = [None if v is None else self.read_broadcast(v, index) for v in flat]
                like = next((v.value.type for v in vals if v is not None and v.is_vector), None)
                if like is not None:
                    vals = [None if v is None else v.splat(like) for v in vals]
                return definition.rules["emit"](*vals, **attrs)
            rule = definition.rules.get("at:cpu") or definition.rules.get("at")
            if rule is None:
                raise EmitError(f"{operation.name} has no way to be computed element by element ({operation.location})")
            self.current = value
            return rule(self, index, *flat, **attrs)

    def buffer_beneath(self, value: ir.Value) -> Buffer | None:
        """The memory that `value` is an affine view of, or None when it has to be computed."""
        if value not in self.buffers and value not in self.shape_of:
            found = strided_through(value, lambda v: v in self.buffers or v in self.bound)
            if found is None or found[0] not in self.buffers:
                return None
            base = self.buffers[found[0]]
            if base.view != contiguous(type_of(found[0]).shape):
                return None
            self.buffers[value] = Buffer(base.pointer, base.dtype, found[1])
        buffer = self.buffers.get(value)
        if buffer is not None and value in self.shape_of:  # merged dimensions: only whole, contiguous buffers have them
            return Buffer(buffer.pointer, buffer.dtype, contiguous(self.shape_of[value]))
        return buffer

    def offset(self, buffer: Buffer, index: Sequence[Ix]) -> Ix:
        total = self.ix(buffer.view.offset)
        for i, stride in zip(index, buffer.view.strides, strict=True):
            if isinstance(stride, int) and stride == 0:
                continue
            total = total + i * self.ix(stride)
        return total

    def _combined_mask(self) -> Val | None:
        if self.mask is None:
            return self.tail
        return self.mask if self.tail is None else self.splat(self.mask) & self.tail

    def load(self, buffer: Buffer, index: Sequence[Ix]) -> Val:
        where = self.offset(buffer, index)
        element = memory_type(buffer.dtype)
        if where.is_uniform and (self.mask is None or not self.mask.is_vector):
            base = where.base
            if self.mask is not None:
                base = arith.select(self.mask.value, self.number(base), self.number(0))
            return Val.from_memory(
                llvm.load(element, self.element_pointer(buffer, base), alignment=DTYPES[buffer.dtype].bytes),
                buffer.dtype,
            )
        type_ = self.lane_type(element)
        mask = self._combined_mask()
        bytes_ = DTYPES[buffer.dtype].bytes
        if where.vec is None and where.stride == 1:
            pointer = self.element_pointer(buffer, where.base)
            if mask is None:
                self._prefetch(buffer, pointer, self.lanes * bytes_)
                return Val.from_memory(llvm.load(type_, pointer, alignment=bytes_), buffer.dtype)
            return Val.from_memory(self._masked_load(type_, pointer, self.splat(mask).value, bytes_), buffer.dtype)
        return Val.from_memory(self._gather(buffer, where, type_, mask), buffer.dtype)

    def _prefetch(self, buffer: Buffer, pointer: ir.Value, read_bytes: int) -> None:
        """Asks for what lies as far past a read as `ahead_bytes` says."""
        distance = self.ahead_bytes.get(buffer.pointer, 0)
        for line in range(0, read_bytes if distance else 0, LINE_BYTES):
            llvm.intr_prefetch(self.pointer_at(pointer, distance + line, memory_type("i8")), 0, 3, 1)

    def _masked_load(self, type_: ir.Type, pointer: ir.Value, mask: ir.Value, bytes_: int) -> ir.Value:
        """Register by register: LLVM 22.1.8 loads a wider one unmasked where half of its mask is known to be false."""
        lanes, element = ir.VectorType(type_).shape[0], ir.VectorType(type_).element_type
        if self.lanes_info.scalable_count or lanes * bytes_ * 8 <= self.isa.vector_bits:
            return llvm.intr_masked_load(type_, pointer, mask, bytes_, pass_thru=constant_of(type_, 0))
        half, parts = lanes // 2, []
        for first in (0, half):
            part_mask = vector.shuffle(mask, mask, list(range(first, first + half)))
            at = self.pointer_at(pointer, first, element)
            parts.append(self._masked_load(ir.VectorType.get([half], element), at, part_mask, bytes_))
        return vector.shuffle(*parts, list(range(lanes)))

    def _gather(self, buffer: Buffer, where: Ix, type_: ir.Type, mask: Val | None) -> ir.Value:
        offsets = where.as_vector()
        pointers, lanes = self._lane_pointers(buffer, offsets), self._lane_mask(mask)
        return llvm.intr_masked_gather(type_, pointers, lanes, [constant_of(type_, 0)], DTYPES[buffer.dtype].bytes)

    def _lane_pointers(self, buffer: Buffer, offsets: ir.Value) -> ir.Value:
        type_ = self.lane_type(pointer_type())
        return llvm.getelementptr(type_, buffer.pointer, [offsets], [_DYNAMIC], memory_type(buffer.dtype), None)

    def _lane_mask(self, mask: Val | None) -> ir.Value:
        return constant_of(self.lane_type(compute_type("bool")), 1) if mask is None else self.splat(mask).value

    def element_pointer(self, buffer: Buffer, offset: Number) -> ir.Value:
        return self.pointer_at(buffer.pointer, offset, memory_type(buffer.dtype))

    def pointer_at(self, pointer: ir.Value, offset: Number, element: ir.Type) -> ir.Value:
        """`pointer + offset` elements."""
        if isinstance(offset, int):
            if offset == 0:
                return pointer
            if abs(offset) < _LARGEST_CONSTANT_INDEX:
                return llvm.getelementptr(pointer_type(), pointer, [], [offset], element, None)
        return llvm.getelementptr(pointer_type(), pointer, [self.number(offset)], [_DYNAMIC], element, None)

    def store(self, buffer: Buffer, index: Sequence[Ix], value: Val) -> None:
        """Writes a scalar, or a vector whose lanes are the ramp (or vector) in `index`; honours the tail and mask."""
        where = self.offset(buffer, index)
        bytes_ = DTYPES[buffer.dtype].bytes
        if where.is_uniform:
            llvm.store(value.to_memory(), self.element_pointer(buffer, where.base), alignment=bytes_)
            return
        memory = self.splat(value).to_memory()
        mask = self._combined_mask()
        if where.vec is None and where.stride == 1:
            pointer = self.element_pointer(buffer, where.base)
            if mask is None and buffer.is_streamed:
                llvm.StoreOp(memory, pointer, alignment=self.lanes * bytes_, nontemporal=True)
            elif mask is None:
                llvm.store(memory, pointer, alignment=bytes_)
            else:
                llvm.intr_masked_store(memory, pointer, self.splat(mask).value, bytes_)
            return
        pointers = self._lane_pointers(buffer, where.as_vector())
        llvm.intr_masked_scatter(memory, pointers, self._lane_mask(mask), bytes_)

    @contextmanager
    def masked(self, condition: Val) -> Iterator[None]:
        """Reads inside are not performed where `condition` is false."""
        outer = self.mask
        if outer is not None:
            condition = (self.splat(outer) if condition.is_vector else outer) & (
                self.splat(condition) if outer.is_vector else condition
            )
        self.mask = condition
        try:
            yield
        finally:
            self.mask = outer

    # index helpers -------------------------------------------------------------------------------------------------
    def delinearize(self, number: Any, sizes: Sequence[Size]) -> list[Ix]:
        """The index of element `number` of a tensor of `sizes`."""
        rest, out = self.ix(number), []
        for size in list(sizes)[:0:-1]:
            if size == 1:
                out.append(self.ix(0))
                continue
            extent = self.ix(size)
            out.append(rest % extent)
            rest = rest // extent
        if sizes:
            out.append(rest)
        return out[::-1]

    def linearize(self, index: Sequence[Ix], sizes: Sequence[Size]) -> Ix:
        total = self.ix(0)
        for i, size in zip(index, sizes, strict=True):
            total = total * self.ix(size) + i
        return total

    def reshape_index(self, index: Sequence[Ix], new: Sequence[Size], old: Sequence[Size]) -> list[Ix]:
        """Index in shape `old` of the element at `index` of shape `new`; trailing equal dimensions pass through."""
        index, new, old = list(index), list(new), list(old)
        tail: list[Ix] = []
        while new and old and new[-1] == old[-1]:
            tail.append(index.pop())
            new.pop()
            old.pop()
        while new and new[-1] == 1:
            new.pop()
            index.pop()
        units = 0
        while old and old[-1] == 1:
            old.pop()
            units += 1
        head = self._reshape_head(index, new, old)
        return head + [self.ix(0)] * units + tail[::-1]

    def _reshape_head(self, index: list[Ix], new: list[Size], old: list[Size]) -> list[Ix]:
        if new == old:
            return index
        if [s for s in new if s != 1] == [s for s in old if s != 1]:
            kept = iter([i for i, s in zip(index, new, strict=True) if s != 1])
            return [self.ix(0) if s == 1 else next(kept) for s in old]
        return self.delinearize(self.linearize(index, new), old)

    # regions -------------------------------------------------------------------------------------------------------
    def for_(self, start: Number, stop: Number, step: Number, init: Sequence[Val], body) -> list[Val]:
        """`body(i: scalar i64, acc: list[Val]) -> list[Val]` for i in range(start, stop, step)."""
        loop = scf.ForOp(self.number(start), self.number(stop), self.number(step), [v.value for v in init])
        with ir.InsertionPoint(loop.body), self.scope():
            carried = [Val(v, i.dtype) for v, i in zip(loop.inner_iter_args, init, strict=True)]
            results = body(loop.induction_variable, carried)
            scf.yield_([r.value for r in results or []])
        return [Val(v, i.dtype) for v, i in zip(loop.results, init, strict=True)]

    def loop(self, count: Any, init: Sequence[Val], body) -> list[Val]:
        """`body(i: Ix, acc) -> acc` for i in range(count)."""
        stop = self.ix(count)
        return self.for_(0, stop.base, 1, init, lambda i, acc: body(Ix(self, i), acc))

    def when(self, condition: Val, then, otherwise=None) -> None:
        """Runs `then()` where the scalar `condition` holds, else `otherwise()`."""
        branch = scf.IfOp(condition.value, has_else=otherwise is not None)
        with ir.InsertionPoint(branch.then_block), self.scope():
            then()
            scf.yield_([])
        if otherwise is not None:
            with ir.InsertionPoint(branch.else_block), self.scope():
                otherwise()
                scf.yield_([])

    def choose(self, condition: Val, then, otherwise) -> list[Val]:
        """Lists of Vals from whichever of `then()` and `otherwise()` the scalar `condition` picks; both give the same
        types."""
        probe = ir.Operation.create("builtin.unrealized_conversion_cast", results=[i64()], operands=[self.number(0)])
        with ir.InsertionPoint(probe), self.scope():
            types = [(v.value.type, v.dtype) for v in then()]
        branch = scf.IfOp(condition.value, [t for t, _ in types], has_else=True)
        for block, build in ((branch.then_block, then), (branch.else_block, otherwise)):
            with ir.InsertionPoint(block), self.scope():
                scf.yield_([v.value for v in build()])
        probe.erase()
        return [Val(r, d) for r, (_, d) in zip(branch.results, types, strict=True)]

    def while_loop(self, init: Sequence[Val], condition, body) -> list[Val]:
        """Repeats `vals = body(vals)` as long as `condition(vals)`."""
        types = [v.value.type for v in init]
        loop = scf.WhileOp(types, [v.value for v in init])
        before = loop.before.blocks.append(*types)
        after = loop.after.blocks.append(*types)
        with ir.InsertionPoint(before), self.scope():
            vals = [Val(a, i.dtype) for a, i in zip(before.arguments, init, strict=True)]
            scf.condition(condition(vals).value, [v.value for v in vals])
        with ir.InsertionPoint(after), self.scope():
            vals = [Val(a, i.dtype) for a, i in zip(after.arguments, init, strict=True)]
            scf.yield_([v.value for v in body(vals)])
        return [Val(r, i.dtype) for r, i in zip(loop.results, init, strict=True)]

    # for `kernel` rules: results are named by the Buffer they are written to -----------------------------------------
    def write(self, buffer: Buffer, index: Sequence[Any], value: Val) -> None:
        self.store(buffer, [self.ix(i) for i in index], value)

    def lies_elsewhere(self, value: ir.Value, buffer: Buffer) -> Val:
        """Whether `value` is in other memory than the result at `buffer`, which may take over its operand's."""
        found = self.buffer_beneath(value)
        if found is None:
            return self.constant(True, "bool")
        mine, theirs = (Val(llvm.ptrtoint(i64(), b.pointer), "i64") for b in (buffer, found))
        return mine.ne(theirs)

    def load_out(self, buffer: Buffer, index: Sequence[Any]) -> Val:
        return self.load(buffer, [self.ix(i) for i in index])


_DYNAMIC = -(2**31)
# getelementptr keeps constant indices in 29 signed bits.
_LARGEST_CONSTANT_INDEX = 2**28


def _full(k: Kernel, index: list[Ix], *, shape, value, dtype) -> Val:
    return k.constant(value if DTYPES[dtype].is_float else int(value), dtype)


def _iota(k: Kernel, index: list[Ix], *, size, start, step, dtype) -> Val:
    return (k.ix(start) + index[0] * step).val(dtype)


def _dim_value(k: Kernel, index: list[Ix], *, value, dtype) -> Val:
    return k.size_val(value, dtype)


def _constant(k: Kernel, index: list[Ix], *, value) -> Val:
    """A constant of one element, or of none; larger ones are buffers (the program puts them among the weights)."""
    from mlc.dialects.types import dtype_of_numpy

    return k.constant(value.reshape(-1)[0].item() if value.size else 0, dtype_of_numpy(value.dtype))


_SOURCES: dict[str, Callable[..., Val]] = {"full": _full, "iota": _iota, "dim_value": _dim_value, "constant": _constant}
