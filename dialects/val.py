"""`Val`: a scalar or vector in registers, with the arithmetic that `emit` rules are written in.

A `Val` holds an MLIR value and its mlc element type. f16, bf16 and smaller floats are held as f32 (rounded when stored
or cast), bool as i1, unsigned integers as signless with the type's name deciding division, comparison and conversion.
Every operation builds `arith`/`math` ops at the insertion point, for scalars, fixed and scalable vectors alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from mlir import ir
from mlir.dialects import arith, math, vector

from . import narrow
from .types import DTYPES

Scalar: TypeAlias = "Val | int | float | bool"


def compute_type(dtype: str) -> ir.Type:
    """The scalar MLIR type that `dtype` is computed in."""
    info = DTYPES[dtype]
    if info.is_float:
        return ir.F64Type.get() if info.bits == 64 else ir.F32Type.get()
    return ir.IntegerType.get_signless(1 if info.kind == "b" else max(info.bits, 8))


def memory_type(dtype: str) -> ir.Type:
    """The scalar MLIR type that `dtype` has in memory: bool and what is smaller than a byte is i8, bf16 is i16."""
    if dtype == "bf16":
        return ir.IntegerType.get_signless(16)
    if dtype == "f16":
        return ir.F16Type.get()
    info = DTYPES[dtype]
    if info.is_float and info.bits > 8:
        return compute_type(dtype)
    return ir.IntegerType.get_signless(info.bytes * 8)


def with_element(shape_like: ir.Type, element: ir.Type) -> ir.Type:
    """`element`, or the vector of it that has as many lanes as `shape_like`."""
    if isinstance(shape_like, ir.VectorType):
        return ir.VectorType.get(list(shape_like.shape), element, scalable=list(shape_like.scalable_dims))
    return element


def constant_of(type_: ir.Type, number: int | float | bool) -> ir.Value:
    """A constant of a scalar or vector type, splat."""
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    if isinstance(element, (ir.F64Type, ir.F32Type, ir.F16Type)):
        attr: ir.Attribute = ir.FloatAttr.get(element, float(number))
    else:
        width = 64 if isinstance(element, ir.IndexType) else ir.IntegerType(element).width
        signed = int(number) & ((1 << width) - 1)
        attr = ir.IntegerAttr.get(element, signed - (1 << width) if width > 1 and signed >> (width - 1) else signed)
    if isinstance(type_, ir.VectorType):
        attr = ir.DenseElementsAttr.get_splat(type_, attr)
    return arith.ConstantOp(type_, attr).result


_FLOAT_COMPARE = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}
_SIGNED_COMPARE = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
_UNSIGNED_COMPARE = {"eq": 0, "ne": 1, "lt": 6, "le": 7, "gt": 8, "ge": 9}


@dataclass(frozen=True)
class Val:
    value: ir.Value
    dtype: str

    # construction ------------------------------------------------------------------------------------------------
    def like(self, number: int | float | bool) -> Val:
        """The constant `number` with this type and as many lanes."""
        return Val(constant_of(self.value.type, number), self.dtype)

    def _coerce(self, other: Scalar) -> Val:
        return other if isinstance(other, Val) else self.like(other)

    def _new(self, value: ir.Value) -> Val:
        return Val(value, self.dtype)

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].is_float

    @property
    def is_signed(self) -> bool:
        return DTYPES[self.dtype].kind == "i"

    @property
    def is_bool(self) -> bool:
        return self.dtype == "bool"

    @property
    def is_vector(self) -> bool:
        return isinstance(self.value.type, ir.VectorType)

    def splat(self, shape_like: ir.Type) -> Val:
        """This scalar in every lane of a vector with `shape_like`'s lanes; unchanged where nothing is to do."""
        if self.is_vector or not isinstance(shape_like, ir.VectorType):
            return self
        return self._new(vector.broadcast(with_element(shape_like, self.value.type), self.value))

    # arithmetic --------------------------------------------------------------------------------------------------
    def _arith(self, other: Scalar, float_op, int_op) -> Val:
        other = self._coerce(other)
        left, right = self.splat(other.value.type), other.splat(self.value.type)
        return self._new((float_op if self.is_float else int_op)(left.value, right.value))

    def __add__(self, other: Scalar) -> Val:
        return self._arith(other, arith.addf, arith.ori if self.is_bool else arith.addi)

    def __sub__(self, other: Scalar) -> Val:
        return self._arith(other, arith.subf, arith.subi)

    def __mul__(self, other: Scalar) -> Val:
        return self._arith(other, arith.mulf, arith.andi if self.is_bool else arith.muli)

    def __truediv__(self, other: Scalar) -> Val:
        """IEEE division; integers truncate. Division of an integer by zero gives 0, as it must not trap."""
        if self.is_float:
            return self._arith(other, arith.divf, None)
        return self._safe_divide(other, arith.divsi if self.is_signed else arith.divui)

    def trunc_remainder(self, other: Scalar) -> Val:
        """Integer remainder with the sign of the dividend; 0 for a zero divisor."""
        return self._safe_divide(other, arith.remsi if self.is_signed else arith.remui)

    def _safe_divide(self, other: Scalar, divide) -> Val:
        other = self._coerce(other).splat(self.value.type)
        left = self.splat(other.value.type)
        bad = other.eq(0)
        if self.is_signed:  # the other trap of the machine's division: lowest / -1
            lowest = -(1 << (DTYPES[self.dtype].bits - 1))
            overflow = left.eq(lowest) & other.eq(-1)
            quotient = left._new(divide(left.value, (bad | overflow).select(left.like(1), other).value))
            wrapped = left if divide is arith.divsi else left.like(0)
            return bad.select(left.like(0), overflow.select(wrapped, quotient))
        return bad.select(left.like(0), left._new(divide(left.value, bad.select(left.like(1), other).value)))

    def __radd__(self, other: Scalar) -> Val:
        return self + other

    def __rmul__(self, other: Scalar) -> Val:
        return self * other

    def __rsub__(self, other: Scalar) -> Val:
        return self._coerce(other) - self

    def __rtruediv__(self, other: Scalar) -> Val:
        return self._coerce(other) / self

    def __neg__(self) -> Val:
        return self._new(arith.negf(self.value)) if self.is_float else self.like(0) - self

    def fma(self, factor: Scalar, addend: Scalar) -> Val:
        """self * factor + addend, one rounding (floats)."""
        factor, addend = self._coerce(factor), self._coerce(addend)
        like = next((v.value.type for v in (self, factor, addend) if v.is_vector), self.value.type)
        return self._new(math.fma(self.splat(like).value, factor.splat(like).value, addend.splat(like).value))

    def maximum(self, other: Scalar, *, orders_zeros: bool = True) -> Val:
        """The larger one; NaN if either is. Not ordering 0 above -0 saves two of five instructions on x86."""
        on_float = arith.maximumf if orders_zeros else _unordered_zeros(arith.maximumf)
        return self._arith(other, on_float, arith.maxsi if self.is_signed else arith.maxui)

    def minimum(self, other: Scalar, *, orders_zeros: bool = True) -> Val:
        """The smaller one; NaN if either is. `orders_zeros` as in `maximum`."""
        on_float = arith.minimumf if orders_zeros else _unordered_zeros(arith.minimumf)
        return self._arith(other, on_float, arith.minsi if self.is_signed else arith.minui)

    def larger(self, other: Scalar) -> Val:
        """self > other ? self : other: one instruction; when either is NaN the result is `other`."""
        other = self._coerce(other).splat(self.value.type)
        return self.gt(other).select(self.splat(other.value.type), other)

    def smaller(self, other: Scalar) -> Val:
        """self < other ? self : other; when either is NaN the result is `other`."""
        other = self._coerce(other).splat(self.value.type)
        return self.lt(other).select(self.splat(other.value.type), other)

    def abs(self) -> Val:
        if self.is_float:
            return self._new(math.absf(self.value))
        return self.maximum(-self) if self.is_signed else self

    def _math(self, function) -> Val:
        return self._new(function(self.value))

    def sqrt(self) -> Val:
        return self._math(math.sqrt)

    def floor(self) -> Val:
        return self._math(math.floor)

    def ceil(self) -> Val:
        return self._math(math.ceil)

    def trunc(self) -> Val:
        return self._math(math.trunc)

    def round_even(self) -> Val:
        return self._math(math.roundeven)

    def copysign(self, sign: Val) -> Val:
        return self._new(math.copysign(self.value, sign.value))

    # comparison, bits, choice ------------------------------------------------------------------------------------
    def _compare(self, name: str, other: Scalar) -> Val:
        other = self._coerce(other)
        left, right = self.splat(other.value.type).value, other.splat(self.value.type).value
        if self.is_float:
            return Val(arith.cmpf(_FLOAT_COMPARE[name], left, right), "bool")
        table = _SIGNED_COMPARE if self.is_signed else _UNSIGNED_COMPARE
        return Val(arith.cmpi(table[name], left, right), "bool")

    def eq(self, other: Scalar) -> Val:
        return self._compare("eq", other)

    def ne(self, other: Scalar) -> Val:
        """True where they differ, NaN included."""
        return self._compare("ne", other)

    def lt(self, other: Scalar) -> Val:
        return self._compare("lt", other)

    def le(self, other: Scalar) -> Val:
        return self._compare("le", other)

    def gt(self, other: Scalar) -> Val:
        return self._compare("gt", other)

    def ge(self, other: Scalar) -> Val:
        return self._compare("ge", other)

    def is_nan(self) -> Val:
        return self.ne(self)

    def __and__(self, other: Scalar) -> Val:
        return self._arith(other, None, arith.andi)

    def __or__(self, other: Scalar) -> Val:
        return self._arith(other, None, arith.ori)

    def __xor__(self, other: Scalar) -> Val:
        return self._arith(other, None, arith.xori)

    def invert(self) -> Val:
        """Bitwise (integers) or logical (bool) not."""
        return self ^ (1 if self.is_bool else -1)

    def shift_left(self, count: Scalar) -> Val:
        return self._arith(count, None, arith.shli)

    def shift_right(self, count: Scalar) -> Val:
        return self._arith(count, None, arith.shrsi if self.is_signed else arith.shrui)

    def select(self, yes: Val, no: Val) -> Val:
        """`yes` where this bool is true, else `no`."""
        like = next((v.value.type for v in (self, yes, no) if v.is_vector), self.value.type)
        yes, no = yes.splat(like), no.splat(like)
        return Val(arith.select(self.splat(like).value, yes.value, no.value), yes.dtype)

    # conversion --------------------------------------------------------------------------------------------------
    def cast(self, dtype: str) -> Val:
        """Converted to `dtype`: floats to integers truncate, anything to bool is `!= 0`, to f16 and bf16 rounds."""
        source, target = DTYPES[self.dtype], DTYPES[dtype]
        if dtype == self.dtype:
            return self
        if target.kind == "b":
            return self.ne(0)
        type_ = with_element(self.value.type, compute_type(dtype))
        if source.is_float and target.is_float:
            resized = Val(_resize_float(self.value, type_), dtype)
            return resized.rounded() if target.is_narrow_float and target != source else resized
        if target.is_float:
            convert = arith.sitofp if source.kind == "i" else arith.uitofp
            return Val(convert(type_, self.value), dtype).rounded()
        if source.is_float:
            return Val(_float_to_int(self.value, type_, target.bits, target.kind == "u"), dtype).rounded()
        return Val(_resize_int(self.value, type_, is_signed=source.kind == "i"), dtype).rounded()

    def rounded(self) -> Val:
        """The value a store and a load would give: rounds f16, bf16 and types of a byte or less, leaves others."""
        if not (DTYPES[self.dtype].is_narrow_float or DTYPES[self.dtype].is_stored_only):
            return self
        return Val.from_memory(self.to_memory(), self.dtype)

    def to_memory(self) -> ir.Value:
        """As the memory type of `dtype`."""
        type_ = with_element(self.value.type, memory_type(self.dtype))
        if self.dtype == "bf16":
            return _to_bf16(self.value, type_)
        if self.dtype == "f16":
            return arith.truncf(type_, self.value)
        if DTYPES[self.dtype].is_stored_only:
            if self.is_float:
                return narrow.code_of(Val(self.value, "f32"), self.dtype).value
            return narrow.nibble_of(Val(self.value, "u8"), DTYPES[self.dtype].bits).value
        return arith.extui(type_, self.value) if self.is_bool else self.value

    @staticmethod
    def from_memory(value: ir.Value, dtype: str) -> Val:
        type_ = with_element(value.type, compute_type(dtype))
        if dtype == "bf16":
            wide = arith.extui(with_element(value.type, ir.IntegerType.get_signless(32)), value)
            return Val(arith.bitcast(type_, arith.shli(wide, constant_of(wide.type, 16))), dtype)
        if dtype == "f16":
            return Val(arith.extf(type_, value), dtype)
        if DTYPES[dtype].is_stored_only:
            if DTYPES[dtype].is_float:
                return Val(narrow.number_of(Val(value, "u8"), dtype).value, dtype)
            byte = Val(value, "i8" if DTYPES[dtype].kind == "i" else "u8")
            return Val(narrow.integer_of(byte, DTYPES[dtype].bits).value, dtype)
        if dtype == "bool":
            return Val(arith.cmpi(1, value, constant_of(value.type, 0)), dtype)
        return Val(value, dtype)

    def bitcast(self, dtype: str) -> Val:
        """The same bits as another type of the same width."""
        value = self.to_memory()
        type_ = with_element(value.type, memory_type(dtype))
        return Val.from_memory(value if value.type == type_ else arith.bitcast(type_, value), dtype)


def _unordered_zeros(function):
    return lambda left, right: function(left, right, fastmath=arith.FastMathFlags.nsz)


def _resize_float(value: ir.Value, type_: ir.Type) -> ir.Value:
    if value.type == type_:
        return value
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return (arith.extf if isinstance(element, ir.F64Type) else arith.truncf)(type_, value)


def _resize_int(value: ir.Value, type_: ir.Type, is_signed: bool) -> ir.Value:
    def width(t: ir.Type) -> int:
        return ir.IntegerType(t.element_type if isinstance(t, ir.VectorType) else t).width

    if width(value.type) == width(type_):
        return value
    if width(type_) < width(value.type):
        return arith.trunci(type_, value)
    return (arith.extsi if is_signed else arith.extui)(type_, value)


def _float_to_int(value: ir.Value, type_: ir.Type, bits: int, is_unsigned: bool) -> ir.Value:
    """Through a signed integer wide enough that values in range of the target are exact, then cut."""
    if bits == 64:
        return (arith.fptoui if is_unsigned else arith.fptosi)(type_, value)
    via = with_element(type_, ir.IntegerType.get_signless(64 if is_unsigned and bits == 32 else 32))
    return _resize_int(arith.fptosi(via, value), type_, is_signed=True)


def _to_bf16(value: ir.Value, type_: ir.Type) -> ir.Value:
    """Round to nearest even in integer arithmetic: LLVM's own conversion is a library call before AVX512-BF16."""
    known = _widened_bf16(value)
    if known is not None:
        return known
    bits = arith.bitcast(with_element(value.type, ir.IntegerType.get_signless(32)), value)
    odd = arith.andi(arith.shrui(bits, constant_of(bits.type, 16)), constant_of(bits.type, 1))
    rounded = arith.addi(arith.addi(bits, constant_of(bits.type, 0x7FFF)), odd)
    quiet = arith.ori(bits, constant_of(bits.type, 0x400000))
    is_nan = arith.cmpf(14, value, value)
    kept = arith.select(is_nan, quiet, rounded)
    return arith.trunci(type_, arith.shrui(kept, constant_of(bits.type, 16)))


def _widened_bf16(value: ir.Value) -> ir.Value | None:
    """The bits that `Val.from_memory` widened to `value`, if it did: they need no rounding."""
    for name in ("arith.bitcast", "arith.shli", "arith.extui"):
        if isinstance(value.owner, ir.Block) or value.owner.operation.name != name:
            return None
        value = value.owner.operation.operands[0]
    return value if _element_width(value.type) == 16 else None


def _element_width(type_: ir.Type) -> int:
    return ir.IntegerType(type_.element_type if isinstance(type_, ir.VectorType) else type_).width


def lowest(dtype: str) -> float | int:
    """The identity of `max`: -inf, the lowest integer, or False."""
    info = DTYPES[dtype]
    if info.is_float:
        return -np.inf
    return 0 if info.kind in "ub" else -(1 << (info.bits - 1))


def highest(dtype: str) -> float | int:
    """The identity of `min`: inf, the highest integer, or True."""
    info = DTYPES[dtype]
    if info.is_float:
        return np.inf
    return 1 if info.kind == "b" else (1 << (info.bits - (info.kind == "i"))) - 1
