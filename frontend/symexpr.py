"""Reads torch.export's symbolic sizes, in sympy's `srepr` or plain text, into the record's own expression text."""

from __future__ import annotations

import ast
from fractions import Fraction
from typing import TypeAlias

from mlc.frontend.record import ReadError, Size


def read_expr(text: str) -> Size:
    """`Add(Mul(Integer(2), Symbol('s0', ...)), Integer(1))` or `2*s0 + 1` as "2*s0 + 1"; an int where it is constant.

    Raises: ReadError for an operation that integer sizes cannot have (a float result, an unknown function).
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ReadError(f"cannot read the symbolic size {text!r}") from None
    value = _walk(tree, text)
    if isinstance(value, Fraction):
        raise ReadError(f"the symbolic size {text!r} is not an integer")
    return value


_Part: TypeAlias = Size | Fraction


def _walk(node: ast.expr, text: str) -> _Part:
    """One expression; a Fraction only while a product that holds it is being read."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _product([-1, _walk(operand, text)], text)
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(type(op).__name__, _walk(left, text), _walk(right, text), text)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=name), *_]):
            return str(name)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
            return _call(name, [_walk(arg, text) for arg in args], text)
    raise ReadError(f"cannot read the symbolic size {text!r}")


def _binary(op: str, left: _Part, right: _Part, text: str) -> _Part:
    match op:
        case "Add":
            return _sum([left, right])
        case "Sub":
            return _sum([left, _product([-1, right], text)])
        case "Mult":
            return _product([left, right], text)
        case "Div" if isinstance(right, int):
            return _product([left, Fraction(1, right)], text)
        case "Pow" if isinstance(right, int) and right >= 0:
            return _product([left] * right, text)
        case "FloorDiv" | "Mod":
            return _divide("//" if op == "FloorDiv" else "%", left, right)
    raise ReadError(f"cannot read the symbolic size {text!r}")


def _call(name: str, args: list[_Part], text: str) -> _Part:
    """Sympy's classes and torch's own functions over integers."""
    match name:
        case "Integer" | "Identity" | "floor" | "FloorToInt" | "TruncToInt" | "ToFloat" | "RoundToInt":
            return args[0]
        case "NegativeOne":
            return -1
        case "Rational":
            return Fraction(int(args[0]), int(args[1]))
        case "Add":
            return _sum(args)
        case "Mul":
            return _product(args, text)
        case "Pow" | "PowByNatural":
            return _binary("Pow", args[0], args[1], text)
        case "FloorDiv" | "CleanDiv" | "IntTrueDiv":
            return _divide("//", args[0], args[1])
        case "Mod" | "PythonMod":
            return _divide("%", args[0], args[1])
        case "CeilDiv":
            return _divide("//", _sum([args[0], args[1], -1]), args[1])
        case "ModularIndexing":
            return _divide("%", _divide("//", args[0], args[1]), args[2])
        case "Max" | "Min":
            return f"{name.lower()}({', '.join(str(arg) for arg in args)})"
    raise ReadError(f"the symbolic size {text!r} uses {name}, which mlc does not know")


def _divide(op: str, left: _Part, right: _Part) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return left // right if op == "//" else left % right
    return f"{_atom(left)} {op} {_atom(right)}"


def _sum(parts: list[_Part]) -> Size:
    constant = sum(part for part in parts if isinstance(part, int))
    terms = [str(part) for part in parts if not isinstance(part, int)]
    if not terms:
        return constant
    return " + ".join(terms + ([str(constant)] if constant else []))


def _product(parts: list[_Part], text: str) -> _Part:
    """A product; a fraction in it divides the whole, which sympy only writes where that is exact or floored."""
    factor = Fraction(1)
    for part in parts:
        factor *= part if isinstance(part, (int, Fraction)) else 1
    terms = [_atom(part) for part in parts if isinstance(part, str)]
    if not terms:
        return int(factor) if factor.denominator == 1 else factor
    if factor == 0:
        return 0
    body = "*".join(([str(factor.numerator)] if factor.numerator != 1 else []) + terms)
    return body if factor.denominator == 1 else f"({body}) // {factor.denominator}"


def _atom(part: _Part) -> str:
    """The part as an operand: in brackets unless it is a name, a number or a call."""
    body = str(part)
    if body.isidentifier() or body.isdigit() or (body.startswith(("max(", "min(")) and _is_one_call(body)):
        return body
    return f"({body})"


def _is_one_call(body: str) -> bool:
    depth = 0
    for position, char in enumerate(body):
        depth += (char == "(") - (char == ")")
        if char == ")" and depth == 0:
            return position == len(body) - 1
    return False
