"""Symbolic sizes: integer expressions over named symbols, kept in a canonical form so that equal means identical.

A `Size` is an `int` or a `Dim`. A `Dim` is a sum of products of atoms; an atom is a symbol or one of the
opaque functions `a // b`, `a % b`, `max(a, b)`, `min(a, b)`. Arithmetic gives back an `int` whenever the result is
constant. Division follows Python (floor), which for the sizes used here (never negative) is also C's.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

Size: TypeAlias = "int | Dim"
Ranges = Mapping[str, tuple[int, int]]
INFINITY = 2**62
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class Atom:
    """`kind` is "sym", "//", "%", "max" or "min"; `args` are a name or sizes."""

    __slots__ = ("_hash", "_text", "args", "kind")

    def __init__(self, kind: str, args: tuple) -> None:
        self.kind, self.args = kind, args
        self._hash = hash((kind, args))
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.kind == other.kind and self.args == other.args

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._spell()
        return self._text

    def _spell(self) -> str:
        if self.kind == "sym":
            return self.args[0]
        if self.kind in ("//", "%"):
            return f"({_factor(self.args[0])}{self.kind}{_factor(self.args[1])})"
        return f"{self.kind}({', '.join(str(a) for a in self.args)})"


def _factor(size: Size) -> str:
    text = str(size)
    return text if re.fullmatch(r"\w+", text) else f"({text})"


class Dim:
    """A non-constant integer expression. Immutable; build with `symbol`, `parse` and arithmetic."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: Mapping[tuple[Atom, ...], int]) -> None:
        self.terms = tuple(sorted(terms.items(), key=_term_key) if len(terms) > 1 else terms.items())
        self._hash = hash(self.terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._spell()
        return self._text

    def _spell(self) -> str:
        parts = []
        for atoms, coefficient in self.terms:
            product = "*".join(str(a) for a in atoms)
            if not atoms:
                parts.append(str(coefficient))
            elif coefficient == 1:
                parts.append(product)
            elif coefficient == -1:
                parts.append("-" + product)
            else:
                parts.append(f"{coefficient}*{product}")
        return "+".join(parts).replace("+-", "-")

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for atoms, coefficient in _terms(other):
            terms[atoms] = terms.get(atoms, 0) + coefficient
        return _make(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return (self * -1) + other

    def __mul__(self, other: Size) -> Size:
        terms: dict[tuple[Atom, ...], int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                atoms = tuple(sorted(left + right, key=str))
                terms[atoms] = terms.get(atoms, 0) + a * b
        return _make(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, other)

    def __rmod__(self, other: Size) -> Size:
        return mod(other, self)

    def __pow__(self, exponent: int) -> Size:
        return product([self] * exponent)


def _term_key(item: tuple[tuple[Atom, ...], int]) -> tuple:
    atoms, _ = item
    return (-len(atoms), [str(a) for a in atoms])


def _terms(size: Size) -> Iterable[tuple[tuple[Atom, ...], int]]:
    if isinstance(size, Dim):
        return size.terms
    return (((), int(size)),)


def _make(terms: Mapping[tuple[Atom, ...], int]) -> Size:
    kept = {atoms: c for atoms, c in terms.items() if c != 0}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(kept)


def symbol(name: str) -> Dim:
    """The size named `name`. Raises ValueError when it is no identifier."""
    if not _NAME.match(name):
        raise ValueError(f"'{name}' is no symbol name: use letters, digits and _")
    return Dim({(Atom("sym", (name,)),): 1})


def _atom(kind: str, *args: Size) -> Dim:
    return Dim({(Atom(kind, args),): 1})


def _exact_quotient(a: Size, b: Dim) -> Size | None:
    """`a / b` where `b` is one product of atoms that divides every term of `a`."""
    if len(b.terms) != 1:
        return 1 if a == b else None
    (b_atoms, b_coefficient), terms = b.terms[0], {}
    for atoms, coefficient in _terms(a):
        rest = list(atoms)
        for atom in b_atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % b_coefficient:
            return None
        terms[tuple(rest)] = coefficient // b_coefficient
    return _make(terms)


def floordiv(a: Size, b: Size) -> Size:
    """Floor division; exact parts are taken out: (4*s + 6) // 4 is s + 1."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, Dim):
        exact = _exact_quotient(a, b)
        return exact if exact is not None else _atom("//", a, b)
    whole, rest = _split(a, b)
    if isinstance(rest, int):
        return whole + rest // b
    return whole + _atom("//", rest, b)


def _split(a: Size, b: int) -> tuple[Size, Size]:
    """`a` as `b * whole + rest`, each coefficient of rest in [0, b)."""
    whole, rest = {}, {}
    for atoms, coefficient in _terms(a):
        whole[atoms], rest[atoms] = coefficient // b, coefficient % b
    return _make(whole), _make(rest)


def mod(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, Dim):
        return 0 if _exact_quotient(a, b) is not None else _atom("%", a, b)
    _, rest = _split(a, b)
    return rest % b if isinstance(rest, int) else _atom("%", rest, b)


def ceildiv(a: Size, b: Size) -> Size:
    return floordiv(a + b - 1, b)


def _extreme(kind: str, sizes: tuple[Size, ...]) -> Size:
    pick: Callable[..., int] = max if kind == "max" else min
    constants = [s for s in sizes if isinstance(s, int)]
    others = sorted({s for s in sizes if isinstance(s, Dim)}, key=str)
    if not others:
        return pick(constants)
    args = ([pick(constants)] if constants else []) + others
    result = args[0]
    for arg in args[1:]:
        difference = result - arg
        if isinstance(difference, int):
            result = (
                pick(result, arg)
                if isinstance(result, int)
                else (result if (difference > 0) == (kind == "max") else arg)
            )
        else:
            result = _atom(kind, result, arg)
    return result


def maximum(*sizes: Size) -> Size:
    return _extreme("max", sizes)


def minimum(*sizes: Size) -> Size:
    return _extreme("min", sizes)


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def _fold(size: Size, leaf) -> Size:
    """Rebuilds `size` with each symbol replaced by `leaf(name)`."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for atoms, coefficient in size.terms:
        value: Size = coefficient
        for atom in atoms:
            if atom.kind == "sym":
                value = value * leaf(atom.args[0])
            else:
                args = [_fold(a, leaf) for a in atom.args]
                value = value * _APPLY[atom.kind](*args)
        total = total + value
    return total


_APPLY: dict[str, Callable[..., Size]] = {"//": floordiv, "%": mod, "max": maximum, "min": minimum}


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    return _fold(size, lambda name: values[name] if name in values else symbol(name))


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number `size` is under `values`. Raises KeyError naming an unknown symbol."""
    if isinstance(size, int):
        return size
    total = 0
    for atoms, coefficient in size.terms:
        for atom in atoms:
            if atom.kind == "sym":
                coefficient *= values[atom.args[0]]
            else:
                a, b = (evaluate(arg, values) for arg in atom.args)
                coefficient *= _NUMERIC[atom.kind](a, b)
        total += coefficient
    return total


_NUMERIC: dict[str, Callable[[int, int], int]] = {"//": operator.floordiv, "%": operator.mod, "max": max, "min": min}


def symbols(size: Size) -> list[str]:
    """Symbol names in order of first appearance."""
    found: dict[str, None] = {}

    def visit(part: Size) -> None:
        if isinstance(part, Dim):
            for atoms, _ in part.terms:
                for atom in atoms:
                    if atom.kind == "sym":
                        found[atom.args[0]] = None
                    else:
                        for arg in atom.args:
                            visit(arg)

    visit(size)
    return list(found)


def _atom_bounds(atom: Atom, ranges: Ranges) -> tuple[int, int]:
    if atom.kind == "sym":
        return ranges.get(atom.args[0], (0, INFINITY))
    (a_low, a_high), (b_low, b_high) = bounds(atom.args[0], ranges), bounds(atom.args[1], ranges)
    if atom.kind == "//":
        low_divisor = max(b_low, 1)
        return min(a_low // low_divisor, a_low // max(b_high, 1)), max(a_high // low_divisor, a_high // max(b_high, 1))
    if atom.kind == "%":
        return 0, b_high - 1
    pick = max if atom.kind == "max" else min
    return pick(a_low, b_low), pick(a_high, b_high)


def bounds(size: Size, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value by interval arithmetic (not tight where a symbol occurs twice)."""
    low = high = 0
    for atoms, coefficient in _terms(size):
        a, b = coefficient, coefficient
        for atom in atoms:
            c, d = _atom_bounds(atom, ranges)
            corners = (a * c, a * d, b * c, b * d)
            a, b = min(corners), max(corners)
        low, high = low + a, high + b
    return max(low, -INFINITY), min(high, INFINITY)


def most(size: Size, highest: Mapping[str, Size]) -> Size:
    """An expression that `size` never exceeds, free of the symbols of `highest`, each of which is at most its entry."""
    if not any(name in highest for name in symbols(size)):
        return size
    total: Size = 0
    for atoms, coefficient in _terms(size):
        value: Size = coefficient
        for atom in atoms:
            # What is taken away may be nothing: sizes and their parts are never negative.
            value = value * _most_atom(atom, highest) if coefficient > 0 else value * _kept_atom(atom, highest)
        total = total + value
    return total


def _most_atom(atom: Atom, highest: Mapping[str, Size]) -> Size:
    if atom.kind == "sym":
        return highest.get(atom.args[0], symbol(atom.args[0]))
    a, b = atom.args
    if atom.kind in ("max", "min"):
        return _APPLY[atom.kind](most(a, highest), most(b, highest))
    divides = any(name in highest for name in symbols(b))
    if atom.kind == "//":
        return most(a, highest) if divides else floordiv(most(a, highest), b)
    return most(b - 1, highest) if divides or a != most(a, highest) else Dim({(atom,): 1})


def _kept_atom(atom: Atom, highest: Mapping[str, Size]) -> Size:
    size = Dim({(atom,): 1})
    return 0 if any(name in highest for name in symbols(size)) else size


def is_positive(size: Size, ranges: Ranges) -> bool:
    return bounds(size, ranges)[0] > 0


@lru_cache(maxsize=65536)
def parse(text: str) -> Size:
    """Reads what `str` writes, and the forms sympy prints (`Mod`, `FloorDiv`, `Max`, `Min`, `**`). Raises
    ValueError."""
    try:
        return _parse_node(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"'{text}' is no size expression") from error


_BINARY: dict[type, Callable[..., Size]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floordiv, ast.Mod: mod, ast.Pow: lambda a, b: a**b,
}
_CALLS: dict[str, Callable[..., Size]] = {
    "max": maximum, "Max": maximum, "min": minimum, "Min": minimum, "Mod": mod, "PythonMod": mod,
    "FloorDiv": floordiv, "CleanDiv": floordiv, "CeilDiv": ceildiv,
}


def _parse_node(node: ast.expr) -> Size:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _parse_node(node.operand) * -1
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_parse_node(node.left), _parse_node(node.right))
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _CALLS:
            return _CALLS[name](*(_parse_node(a) for a in node.args))
        if name in ("ceiling", "CeilToInt", "floor", "FloorToInt") and isinstance(node.args[0], ast.BinOp):
            inner = node.args[0]
            divide = ceildiv if name.startswith("Ceil") or name == "ceiling" else floordiv
            if isinstance(inner.op, ast.Div):
                return divide(_parse_node(inner.left), _parse_node(inner.right))
    raise ValueError(f"'{ast.unparse(node)}' is no size expression")
