"""`Ix`: an index that is uniform over the lanes, a ramp along them, or a vector of its own.

Index arithmetic is i64. Everything known at compile time stays a Python int; what is built twice in one scope is
shared, so that equal indices are equal values and reads of the same element are recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from mlc.dialects.dims import Atom, Size
from mlc.dialects.val import Val, constant_of
from mlir import ir
from mlir.dialects import arith, vector

if TYPE_CHECKING:
    from .kernel import Kernel

Number: TypeAlias = "int | ir.Value"  # a compile-time int, or a scalar i64 value


def i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


class Arithmetic:
    """Scalar i64 arithmetic on Numbers with folding and sharing; `scopes` nest like the regions being built."""

    def __init__(self) -> None:
        self.scopes: list[dict] = [{}]

    def shared(self, key: tuple, build):
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        value = self.scopes[-1][key] = build()
        return value

    def value(self, number: Number) -> ir.Value:
        if isinstance(number, ir.Value):
            return number
        return self.shared(("c", number), lambda: constant_of(i64(), number))

    def _binary(self, name: str, build, a: Number, b: Number) -> ir.Value:
        if name in ("add", "mul") and isinstance(a, int):
            a, b = b, a
        return self.shared((name, a, b), lambda: build(self.value(a), self.value(b)))

    def add(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(b, int) and b == 0:
            return a
        if isinstance(a, int) and a == 0:
            return b
        return self._binary("add", arith.addi, a, b)

    def sub(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if isinstance(b, int):
            return self.add(a, -b)
        if a == b:
            return 0
        return self._binary("sub", arith.subi, a, b)

    def mul(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int):
                if x == 0:
                    return 0
                if x == 1:
                    return y
        return self._binary("mul", arith.muli, a, b)

    def div(self, a: Number, b: Number) -> Number:
        """Floor division for a divisor > 0; the dividend is never negative where sizes and indices are meant."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if isinstance(b, int) and b == 1:
            return a
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self._binary("shr", arith.shrsi, a, b.bit_length() - 1)
        return self._binary("div", arith.divsi, a, b)

    def mod(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if isinstance(b, int) and b == 1:
            return 0
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self._binary("and", arith.andi, a, b - 1)
        return self._binary("rem", arith.remsi, a, b)

    def size(self, size: Size, symbols: Mapping[str, Number]) -> Number:
        """The number a size expression is where its symbols have these values."""
        if isinstance(size, int):
            return size
        total: Number = 0
        for atoms, coefficient in size.terms:
            value: Number = coefficient
            for atom in atoms:
                value = self.mul(self._atom(atom, symbols), value)
            total = self.add(total, value)
        return total

    def _atom(self, atom: Atom, symbols: Mapping[str, Number]) -> Number:
        if atom.kind == "sym":
            return symbols[atom.args[0]]
        apply = {"//": self.div, "%": self.mod, "max": self.max, "min": self.min}[atom.kind]
        return apply(self.size(atom.args[0], symbols), self.size(atom.args[1], symbols))

    def max(self, a: Number, b: Number) -> Number:
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else self._binary("max", arith.maxsi, a, b)

    def min(self, a: Number, b: Number) -> Number:
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else self._binary("min", arith.minsi, a, b)


class Ix:
    """`base + stride * lane`, or `vec` when that is set. Immutable."""

    __slots__ = ("base", "k", "stride", "vec")

    def __init__(self, k: Kernel, base: Number = 0, stride: Number = 0, vec: ir.Value | None = None) -> None:
        self.k, self.base, self.stride, self.vec = k, base, stride, vec

    @property
    def key(self) -> tuple:
        return (self.base, self.stride) if self.vec is None else (self.vec,)

    @property
    def is_uniform(self) -> bool:
        return self.vec is None and isinstance(self.stride, int) and self.stride == 0

    def as_vector(self) -> ir.Value:
        """All lanes as a vector of i64."""
        if self.vec is not None:
            return self.vec
        k = self.k
        type_ = k.lane_type(i64())
        base = k.shared(("splat", self.base), lambda: vector.broadcast(type_, k.number(self.base)))
        if self.is_uniform:
            return base

        def ramp() -> ir.Value:
            scaled = k.lane_numbers()
            if self.stride != 1:
                scaled = arith.muli(scaled, vector.broadcast(type_, k.number(self.stride)))
            return arith.addi(base, scaled)

        return k.shared(("ramp", self.base, self.stride), ramp)

    def val(self, dtype: str = "i64") -> Val:
        raw = Val(self.k.number(self.base) if self.is_uniform else self.as_vector(), "i64")
        return raw.cast(dtype)

    def _other(self, other) -> Ix:
        return other if isinstance(other, Ix) else self.k.ix(other)

    def _vector_op(self, name: str, build, other: Ix) -> Ix:
        a, b = self.as_vector(), other.as_vector()
        return Ix(self.k, vec=self.k.shared((name, a, b), lambda: build(a, b)))

    def __add__(self, other) -> Ix:
        other, k = self._other(other), self.k
        if self.vec is None and other.vec is None:
            return Ix(k, k.arith.add(self.base, other.base), k.arith.add(self.stride, other.stride))
        return self._vector_op("vadd", arith.addi, other)

    __radd__ = __add__

    def __sub__(self, other) -> Ix:
        other, k = self._other(other), self.k
        if self.vec is None and other.vec is None:
            return Ix(k, k.arith.sub(self.base, other.base), k.arith.sub(self.stride, other.stride))
        return self._vector_op("vsub", arith.subi, other)

    def __rsub__(self, other) -> Ix:
        return self._other(other) - self

    def __mul__(self, other) -> Ix:
        other, k = self._other(other), self.k
        for a, b in ((self, other), (other, self)):
            if b.is_uniform and a.vec is None:
                return Ix(k, k.arith.mul(a.base, b.base), k.arith.mul(a.stride, b.base))
        return self._vector_op("vmul", arith.muli, other)

    __rmul__ = __mul__

    def __floordiv__(self, other) -> Ix:
        """Of a value that is not negative, by one greater than 0."""
        other = self._other(other)
        if self.is_uniform and other.is_uniform:
            return Ix(self.k, self.k.arith.div(self.base, other.base))
        return self._vector_op("vdiv", arith.divsi, other)

    def __mod__(self, other) -> Ix:
        other = self._other(other)
        if self.is_uniform and other.is_uniform:
            return Ix(self.k, self.k.arith.mod(self.base, other.base))
        return self._vector_op("vrem", arith.remsi, other)

    def minimum(self, other) -> Ix:
        other = self._other(other)
        if self.is_uniform and other.is_uniform:
            return Ix(self.k, self.k.arith.min(self.base, other.base))
        return self._vector_op("vmin", arith.minsi, other)

    def maximum(self, other) -> Ix:
        other = self._other(other)
        if self.is_uniform and other.is_uniform:
            return Ix(self.k, self.k.arith.max(self.base, other.base))
        return self._vector_op("vmax", arith.maxsi, other)

    def _compare(self, name: str, other) -> Val:
        other = self._other(other)
        return getattr(self.val(), name)(other.val())

    def lt(self, other) -> Val:
        return self._compare("lt", other)

    def le(self, other) -> Val:
        return self._compare("le", other)

    def gt(self, other) -> Val:
        return self._compare("gt", other)

    def ge(self, other) -> Val:
        return self._compare("ge", other)

    def eq(self, other) -> Val:
        return self._compare("eq", other)

    def ne(self, other) -> Val:
        return self._compare("ne", other)
