"""Tensors whose elements are known while a model is imported: numbers, or expressions in the named dimensions.

Exporters spell sizes as tensors (Shape -> Gather -> Mul -> Concat -> Reshape). Evaluated here, such chains leave
nothing in the graph but dimension expressions. A symbolic array is a numpy object array of `int | Dim` (integers) or
`float | Ratio`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from mlc.dialects import dims
from mlc.dialects.dims import Dim

TO_THE_END = 10**9  # exporters write 1e9, 2**31 - 1 or 2**63 - 1 for "to the end"
SMALL_ELEMS = 4096  # what is evaluated at import; larger arithmetic on constants is the fold pass's work


class UndecidedError(ValueError):
    """A question about sizes has no single answer over the symbols' ranges."""


@dataclass(frozen=True)
class Known:
    """A tensor known at import. `array` has `dtype`, or is an object array if any element is symbolic."""

    array: np.ndarray
    dtype: np.dtype

    @staticmethod
    def of(array: Any, dtype: Any = None) -> Known:
        """The Known of a numpy array, a list with dimension expressions in it, or a number."""
        if not isinstance(array, np.ndarray):
            array = _object_array(array)
        if dtype is None:
            dtype = np.int64 if array.dtype == object else array.dtype
        dtype = np.dtype(dtype)
        if array.dtype == object and not any(is_symbolic(item) for item in array.flat):
            array = array.astype(dtype)
        return Known(array, dtype)

    @property
    def is_symbolic(self) -> bool:
        return self.array.dtype == object

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def items(self) -> list[Any]:
        """The elements in order, integers as Python ints."""
        return [plain(item) for item in self.array.reshape(-1)]

    def item(self) -> Any:
        """The only element."""
        return self.items()[0]


@dataclass(frozen=True)
class Ratio:
    """An exact quotient num / den of sizes: what a float computed from sizes is, as in the scales of a resize."""

    num: Any
    den: Any

    @staticmethod
    def of(value: Any) -> Ratio:
        if isinstance(value, Ratio):
            return value
        if isinstance(value, Dim | int | np.integer):
            return Ratio(plain(value), 1)
        exact = Fraction(float(value))
        # Scales such as 1/3 reach us rounded to f32; the fraction that was meant is the short one.
        short = exact.limit_denominator(1 << 12)
        if abs(short - exact) > abs(exact) * Fraction(1, 1 << 23):
            short = exact
        return Ratio(short.numerator, short.denominator)

    def __add__(self, other: Any) -> Any:
        other = Ratio.of(other)
        if other.den == self.den:
            return _reduced(self.num + other.num, self.den)
        return _reduced(self.num * other.den + other.num * self.den, self.den * other.den)

    def __neg__(self) -> Ratio:
        return Ratio(-self.num, self.den)

    def __sub__(self, other: Any) -> Any:
        return self + (-Ratio.of(other))

    def __rsub__(self, other: Any) -> Any:
        return Ratio.of(other) - self

    def __mul__(self, other: Any) -> Any:
        other = Ratio.of(other)
        left, right = _reduced_pair(self.num, other.den), _reduced_pair(other.num, self.den)
        return _reduced(left[0] * right[0], left[1] * right[1])

    def __truediv__(self, other: Any) -> Any:
        other = Ratio.of(other)
        return self * Ratio(other.den, other.num)

    def __rtruediv__(self, other: Any) -> Any:
        return Ratio.of(other) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def floor(self) -> Any:
        return self.num if _is_one(self.den) else self.num // self.den

    def ceil(self) -> Any:
        return self.num if _is_one(self.den) else (self.num + self.den - 1) // self.den


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def _reduced_pair(num: Any, den: Any) -> tuple[Any, Any]:
    if isinstance(num, int) and isinstance(den, int):
        fraction = Fraction(num, den)
        return fraction.numerator, fraction.denominator
    if not _is_zero(den) and _is_zero(num % den):
        return num // den, 1
    return num, den


def _reduced(num: Any, den: Any) -> Any:
    """num / den in lowest terms; a plain float where no symbol is left."""
    num, den = _reduced_pair(plain(num), plain(den))
    if isinstance(num, int) and isinstance(den, int):
        return num / den
    return Ratio(num, den)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and value == 0


def _object_array(items: Any) -> np.ndarray:
    if not isinstance(items, list | tuple):
        return np.asarray(items, object)
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


def plain(value: Any) -> Any:
    """A numpy number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def is_symbolic(value: Any) -> bool:
    """Whether the value depends on a symbol."""
    return isinstance(plain(value), Dim | Ratio)


def is_linear(size: Any) -> bool:
    """Whether a size is a sum of multiples of symbols, so that an equation with it can be solved."""
    terms = size.terms if isinstance(size, Dim) else ()
    return all(len(atoms) <= 1 and all(atom.kind == "sym" for atom in atoms) for atoms, _ in terms)


# --- arithmetic and questions over ranges ---


@dataclass(frozen=True)
class Sizes:
    """Arithmetic on known tensors, with the symbols' ranges to decide comparisons by."""

    ranges: Mapping[str, tuple[int, int]]

    def bounds(self, value: Any) -> tuple[float, float]:
        """Smallest and largest value over the ranges."""
        if isinstance(value, int | float):
            return value, value
        if isinstance(value, Ratio):
            if not isinstance(value.den, int):
                raise UndecidedError(f"{value.num} / {value.den}")
            low, high = self.bounds(value.num)
            ends = (low / value.den, high / value.den)
            return min(ends), max(ends)
        return dims.bounds(value, self.ranges)

    def equal(self, a: Any, b: Any) -> bool:
        """Whether a == b for every value of the symbols. Raises UndecidedError where it depends on them."""
        difference = plain(a - b)
        low, high = self.bounds(difference)
        if low == high:
            return low == 0
        if low > 0 or high < 0:
            return False
        raise UndecidedError(f"whether {a} equals {b}")

    def less(self, a: Any, b: Any) -> bool:
        """Whether a < b for every value of the symbols. Raises UndecidedError where it depends on them."""
        low, high = self.bounds(plain(a - b))
        if high < 0:
            return True
        if low >= 0:
            return False
        raise UndecidedError(f"whether {a} is less than {b}")

    def larger_of(self, a: Any, b: Any) -> Any:
        low, high = self.bounds(plain(a - b))
        return a if low >= 0 else b if high <= 0 else dims.maximum(a, b)

    def smaller_of(self, a: Any, b: Any) -> Any:
        low, high = self.bounds(plain(a - b))
        return a if high <= 0 else b if low >= 0 else dims.minimum(a, b)

    def quotient(self, a: Any, b: Any) -> Any:
        """Integer a / b toward zero, as ONNX Div and torch's trunc mode have it."""
        if isinstance(a, int) and isinstance(b, int):
            if b == 0:
                raise UndecidedError(f"{a} / 0")
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if self.less(a, 0) or not self.less(0, b):
            raise UndecidedError(f"{a} / {b}")
        return a // b

    def divide(self, a: Known, b: Known) -> Known:
        """a / b: toward zero for integers, an exact Ratio for floats computed from sizes."""
        if a.dtype.kind in "iu":
            return elementwise(self.quotient, a, b)
        return elementwise(lambda x, y: Ratio.of(x) / Ratio.of(y), a, b)

    def slice_bounds(self, size: Any, start: Any, end: Any, step: int) -> tuple[Any, Any, Any]:
        """(start, limit, length) of numpy's size[start:end:step]; limit is -1 where a negative step reaches index 0."""
        if step == 0:
            raise ValueError("slice step is 0")
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start, end = self._clamped(start, size, low, high), self._clamped(end, size, low, high)
        distance = end - start if step > 0 else start - end
        length = dims.ceildiv(distance, abs(step))
        # A symbolic length is never clamped: where it would be negative the model is run outside its range.
        length = max(length, 0) if isinstance(length, int) else length
        if isinstance(length, int) and length == 0:
            end = start
        return start, end, length

    def _clamped(self, index: Any, size: Any, low: Any, high: Any) -> Any:
        """One end of a slice: negative counts from the end, then clamped to [low, high].

        A symbolic size is taken to be at least 1: a model that makes an empty tensor of it fails elsewhere too, and
        S - 1 must not become max(S - 1, 0) wherever a last element is dropped.
        """
        if not isinstance(index, int):
            # An end computed from sizes, such as S - 3, may be either; it is taken as the position it stands for.
            with contextlib.suppress(UndecidedError):
                index = index + size if self.less(index, 0) else index
            return self.smaller_of(self.larger_of(index, low), high)
        if isinstance(size, int):
            return min(max(index + size if index < 0 else index, low), high)
        if index >= TO_THE_END:
            return high
        if index <= -TO_THE_END:
            return low
        least, most = self.bounds(size)
        last = max(least, 1) + (high - size)  # the smallest that `high` can be
        if index >= 0:
            return index if index <= last else high if index >= most else dims.minimum(index, high)
        return size + index if -index <= max(least, 1) else low if -index > most else dims.maximum(size + index, low)


def elementwise(function: Callable[..., Any], *operands: Known, dtype: Any = None) -> Known:
    """Applies a scalar function over broadcast operands; elements reach it as Python numbers, Dims or Ratios."""
    arrays = np.broadcast_arrays(*[operand.array for operand in operands])
    out = np.empty(arrays[0].shape, object)
    for index in np.ndindex(out.shape):
        out[index] = plain(function(*(plain(array[index]) for array in arrays)))
    return Known.of(out, dtype or operands[0].dtype)


def power(base: Any, exponent: Any) -> Any:
    """base ** exponent for a small whole exponent. Raises UndecidedError for others."""
    if isinstance(exponent, Dim | Ratio) or exponent != int(exponent) or not 0 <= exponent <= 8:
        raise UndecidedError(f"{base} ** {exponent}")
    out: Any = 1
    for _ in range(int(exponent)):
        out = out * base
    return out


def to_integer(item: Any) -> Any:
    """A number as an integer, truncated toward zero; sizes over sizes are never negative."""
    if isinstance(item, Ratio):
        return item.floor()
    return int(item) if isinstance(item, float | bool) else item


def product(sizes: Any) -> Any:
    """The number of elements of a shape."""
    return dims.product(plain(size) for size in sizes)


# --- shapes ---


def resolve_reshape(shape: tuple[Any, ...], target: list[Any], *, zero_copies: bool) -> list[Any]:
    """The target of a reshape with its 0 (copy) and -1 (the rest) replaced."""
    out = [shape[i] if zero_copies and isinstance(size, int) and size == 0 else size for i, size in enumerate(target)]
    holes = [i for i, size in enumerate(out) if isinstance(size, int) and size == -1]
    if len(holes) > 1:
        raise ValueError(f"more than one -1 in {target}")
    if holes:
        out[holes[0]] = exact_quotient(shape, [size for i, size in enumerate(out) if i != holes[0]])
    return out


def exact_quotient(numerator: Any, denominator: Any) -> Any:
    """product(numerator) / product(denominator), known to be whole; equal factors cancel before any is multiplied."""
    rest, below = list(numerator), []
    for size in denominator:
        match = next((i for i, other in enumerate(rest) if type(other) is type(size) and other == size), None)
        if match is None:
            below.append(size)
        else:
            del rest[match]
    above, under = product(rest), product(below)
    if _is_one(under):
        return above
    if isinstance(under, int) and under == 0:
        return 0
    return plain(above // under)
