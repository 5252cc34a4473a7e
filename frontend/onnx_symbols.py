"""The named sizes of an ONNX model: of inputs' dimensions, and those that data decide; which turn out to be equal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mlc.dialects import dims as size_dims
from mlc.dialects.dims import Dim, Size
from mlc.frontend.onnx_proto import OnnxError, ValueInfo

LARGEST_SIZE = 2**31 - 1
DimsOption = Mapping[str, int | tuple[int, int]]


def _constants(size: Size) -> list[int]:
    """The numbers in an expression."""
    return [int(text) for text in re.findall(r"(?<![\w])-?\d+", str(size))]


class SymbolNames:
    """Symbols of the inputs' dimensions: identifier-safe names, ranges, and which of them turned out to be others."""

    def __init__(self, inputs: Sequence[ValueInfo], given: DimsOption) -> None:
        self.ranges: dict[str, tuple[int, int]] = {}
        self.replaced: dict[str, Size] = {}
        self._names: dict[str, str] = {}
        self._shapes: dict[str, list[Size]] = {}
        self.offers: dict[str, tuple[int, int]] = {}  # ranges for sizes that data may turn out to decide
        self.of_data: dict[str, str] = {}  # symbols of such sizes by the tensor's name
        bare = {d for i in inputs for d in i.shape or () if isinstance(d, str)}
        for info in inputs:
            sizes = []
            for axis, dim in enumerate(info.shape or ()):
                sizes.append(dim if isinstance(dim, int) else self._size(dim or f"{info.name}_{axis}", bare))
            self._shapes[info.name] = sizes
        for name, wanted in given.items():
            self._apply(name, wanted)

    def shape(self, info: ValueInfo) -> list[Size]:
        """The sizes of an input, after what unification found."""
        return [size_dims.substitute(size, self.replaced) for size in self._shapes[info.name]]

    def _size(self, text: str, bare: set[str]) -> Size:
        """A named dimension; `2*s + 1` over other named dimensions is an expression, any other text one name."""
        if not re.fullmatch(r"\w+", text):
            try:
                size = size_dims.parse(text)
            except ValueError:
                size = None
            if isinstance(size, Dim) and all(name in bare for name in size_dims.symbols(size)):
                for name in size_dims.symbols(size):
                    self._symbol(name)
                return size
        return size_dims.symbol(self._symbol(text))

    def _symbol(self, text: str) -> str:
        if text not in self._names:
            self._names[text] = self._unused(text)
            self.ranges[self._names[text]] = (1, LARGEST_SIZE)
        return self._names[text]

    def _unused(self, text: str) -> str:
        name = re.sub(r"\W", "_", text)
        name = name if re.match(r"[A-Za-z_]", name) else f"d{name}"
        unique, number = name, 1
        while unique in self.ranges:
            unique, number = f"{name}_{number}", number + 1
        return unique

    def _apply(self, text: str, wanted: int | tuple[int, int]) -> None:
        name = self._names.get(text, text)
        low, high = (wanted, wanted) if isinstance(wanted, int) else wanted
        if not 0 <= low <= high <= LARGEST_SIZE:
            wanted_words = "give a size, or a range low..high within 0..2^31-1"
            raise OnnxError(f"dimension '{text}' cannot be {low}..{high}: {wanted_words}")
        if name not in self.ranges:
            self.offers[text] = (low, high)
        elif isinstance(wanted, int):
            self.replaced[name] = wanted
        else:
            self.ranges[name] = (low, high)

    def check_offers(self) -> None:
        """Raises OnnxError where `dims` names what is neither a dimension nor a size read from data."""
        for text in self.offers:
            if text not in self.of_data:
                there = ", ".join([*self._names, *self.of_data]) or "none that vary"
                raise OnnxError(f"the model has no dimension '{text}'; it has: {there}")

    def data_size(self, text: str, most: int) -> Size:
        """The symbol of the size that tensor `text` gives, or what it must equal; the same in each attempt."""
        if text not in self.of_data:
            self.of_data[text] = self._unused(text)
            low, high = self.offers.get(text, (0, LARGEST_SIZE))
            self.ranges[self.of_data[text]] = (low, min(high, most))
        return size_dims.substitute(size_dims.symbol(self.of_data[text]), self.replaced)

    def unify(self, a: Size, b: Size) -> None:
        """Makes two sizes one.

        A symbol that occurs once, and alone in its term, is solved for. A chain of halvings that meets its doublings
        again only for multiples of a power of two makes the dimension such a multiple. A size that must equal itself
        clamped, as where a table of positions ends, narrows the range.

        Raises: OnnxError where neither does it.
        """
        difference = a - b
        order = list(self.ranges)
        for name in sorted(size_dims.symbols(difference), key=order.index, reverse=True):
            zero = size_dims.substitute(difference, {name: 0})
            slope = size_dims.substitute(difference, {name: 1}) - zero
            rest_is_free = name not in size_dims.symbols(zero) and difference == zero + slope * size_dims.symbol(name)
            if isinstance(slope, int) and abs(slope) == 1 and rest_is_free:
                self._replace(name, zero * -slope)
                return
        if self._narrow(a, b) or self._narrow(b, a):
            return
        for name in size_dims.symbols(difference):
            for factor in (2, 4, 8, 16, 32, 64, 128, 256):
                if size_dims.substitute(difference, {name: size_dims.symbol(name) * factor}) == 0:
                    self._make_multiple(name, factor)
                    return
        raise OnnxError(f"the model needs sizes {a} and {b} to be equal; fix their dimensions with dims=")

    def _narrow(self, clamped: Size, size: Size) -> bool:
        """Where `clamped` is min(c, size) or max(c, size): narrows the symbol's range to where that is `size`."""
        for name in size_dims.symbols(size):
            offset = size - size_dims.symbol(name)
            low, high = self.ranges[name]
            for bound in _constants(clamped) if isinstance(offset, int) else ():
                if size_dims.minimum(bound, size) == clamped and bound - offset >= low:
                    self.ranges[name] = (low, min(high, bound - offset))
                    return True
                if size_dims.maximum(bound, size) == clamped and bound - offset <= high:
                    self.ranges[name] = (max(low, bound - offset), high)
                    return True
        return False

    def _make_multiple(self, name: str, factor: int) -> None:
        """Restricts a dimension to multiples: it becomes factor * a new symbol, `<name>_div<factor>`."""
        earlier = re.fullmatch(r"(\w+)_div(\d+)", name)
        base, total = (earlier[1], int(earlier[2]) * factor) if earlier else (name, factor)
        quotient = f"{base}_div{total}"
        low, high = self.ranges.pop(name)
        if high < factor:
            raise OnnxError(f"the model needs dimension '{base}' to be a multiple of {total}, and none is in its range")
        self.ranges[quotient] = (-(-low // factor), high // factor)
        self._substitute(name, size_dims.symbol(quotient) * factor)

    def _replace(self, name: str, size: Size) -> None:
        low, high = self.ranges[name]
        if isinstance(size, int) and not low <= size <= high:
            raise OnnxError(f"the model needs dimension '{name}' to be {size}, which is not in {low}..{high}")
        if isinstance(size, Dim) and size == size_dims.symbol(size_dims.symbols(size)[0]):
            other = size_dims.symbols(size)[0]
            both = self.ranges[other]
            self.ranges[other] = (max(low, both[0]), min(high, both[1]))
        self._substitute(name, size)

    def _substitute(self, name: str, size: Size) -> None:
        self.replaced = {k: size_dims.substitute(v, {name: size}) for k, v in self.replaced.items()} | {name: size}
