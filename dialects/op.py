"""`@op`: an op is declared once, as a function; IRDL, builder, shapes, verifier, docs and importer rows come from it.

    @op(torch="aten.relu.default", onnx="Relu")
    def relu(x: T[*S]) -> T[*S]:
        \"\"\"max(x, 0), elementwise. Source: ONNX Relu-14.\"\"\"
        return np.maximum(x, 0)

Positional parameters are operands: `T[*B, M, K]` is an element-type variable and dimension names; `*B` is any number of
leading dimensions, broadcast where it occurs twice. A type variable is `T` (any type), `C` (any that is computed with:
not those of dialects/narrow.py), `F`, `G`, `H` (float), `I` (integer), `N`, `M` (integer or float), `B` (integer or
bool) or a dtype name. A default of `None` makes an operand optional, `*xs` variadic. Keyword-only parameters are
attributes of type int, float, bool, str, list[int], list[float], Size, Dims (a list of sizes), DType, Array or Mark (a
bool that is written only where it is true).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import dims, types
from .types import DTYPES, TensorType

RULES = (
    "infer", "emit", "at", "combine", "tiles", "kernel", "layouts", "lower", "fold", "strides", "neutral", "in_place",
)  # fmt: skip
KINDS = ("pointwise", "view", "gather", "reduce", "composite", "contract", "special", "source")


class OpError(ValueError):
    """An op whose operands or attributes do not fit its declaration; the message names op, argument, found and
    wanted."""


@dataclass(frozen=True)
class Pattern:
    """Element type and dimension names of one operand or result, as the annotation says."""

    dtype: str
    dims: tuple[str, ...] | None  # None: any shape


@dataclass(frozen=True)
class Operand:
    name: str
    pattern: Pattern
    is_optional: bool = False
    is_variadic: bool = False


@dataclass(frozen=True)
class Attribute:
    name: str
    kind: str
    default: Any = inspect.Parameter.empty

    @property
    def is_mark(self) -> bool:
        return self.kind == "Mark"


@dataclass(eq=False)
class OpDef:
    """Everything known about one op. `reference` takes numpy arrays and attributes (sizes already numbers)."""

    name: str
    kind: str
    reference: Callable[..., Any]
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    results: tuple[Pattern, ...]
    doc: str
    family: str
    torch: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    is_internal: bool = False  # passes make it of other ops, whose test rows are its own
    rules: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def rule(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a rule (see RULES; "lower:cpu" and the like for one family)."""
        if name.split(":")[0] not in RULES:
            raise OpError(f"mlc.{self.name}: no rule is called '{name}'")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.rules[name] = function
            return function

        return register

    def attribute_values(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given` completed by defaults, in declaration order. Raises OpError for a missing or unknown attribute."""
        known = {a.name for a in self.attributes}
        for name in given:
            if name not in known:
                raise OpError(f"mlc.{self.name} has no attribute '{name}'; it has: {', '.join(known) or 'none'}")
        values = {}
        for attribute in self.attributes:
            value = given.get(attribute.name, attribute.default)
            if value is inspect.Parameter.empty:
                raise OpError(f"mlc.{self.name} needs attribute '{attribute.name}'")
            values[attribute.name] = value
        return values

    def infer(
        self, operands: Sequence[TensorType | list[TensorType] | None], attrs: dict[str, Any]
    ) -> list[TensorType]:
        """Result types. `operands` has one entry a declared operand: a type, None if absent, a list if variadic."""
        bindings = _Bindings(self.name)
        for declared, actual in zip(self.operands, operands, strict=True):
            if actual is None:
                if not declared.is_optional:
                    raise OpError(f"mlc.{self.name}: operand '{declared.name}' is missing")
                continue
            for one in actual if isinstance(actual, list) else [actual]:
                bindings.bind(declared.name, declared.pattern, one)
        custom = self.rules.get("infer")
        if custom is not None:
            try:
                result = custom(*_spread(self.operands, operands), **attrs)
            except OpError:
                raise
            except ValueError as error:
                raise OpError(f"mlc.{self.name}: {error}") from error
            return list(result) if isinstance(result, (list, tuple)) else [result]
        return [bindings.build(p) for p in self.results]


def _spread(declared: Sequence[Operand], actual: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for operand, value in zip(declared, actual, strict=True):
        out.extend(value) if operand.is_variadic else out.append(value)
    return out


_CLASSES = {
    "T": "fiub", "C": "fiub", "F": "f", "G": "f", "H": "f", "I": "iu", "N": "fiu", "M": "fiu", "B": "iub", "U": "fiub",
    "V": "fiub",
}
_ANY = "TUV"  # these take types that are only stored as well


class _Bindings:
    """Type variables and dimension names bound so far, for one op."""

    def __init__(self, op_name: str) -> None:
        self.op_name = op_name
        self.dtypes: dict[str, tuple[str, str]] = {}
        self.sizes: dict[str, dims.Size] = {}
        self.groups: dict[str, tuple[dims.Size, ...]] = {}

    def bind(self, name: str, pattern: Pattern, actual: TensorType) -> None:
        self._bind_dtype(name, pattern.dtype, actual.dtype)
        if pattern.dims is None:
            return
        starred = [d for d in pattern.dims if d.startswith("*")]
        fixed = [d for d in pattern.dims if not d.startswith("*")]
        if len(actual.shape) < len(fixed) or (not starred and len(actual.shape) != len(fixed)):
            raise OpError(f"mlc.{self.op_name}: {name} has rank {actual.rank}, expected [{', '.join(pattern.dims)}]")
        if starred:
            at = pattern.dims.index(starred[0])
            end = len(actual.shape) - (len(pattern.dims) - at - 1)
            self._bind_group(starred[0], actual.shape[at:end])
            sizes = actual.shape[:at] + actual.shape[end:]
        else:
            sizes = actual.shape
        for dim_name, size in zip(fixed, sizes, strict=True):
            self._bind_dim(name, dim_name, size)

    def _bind_dtype(self, name: str, variable: str, dtype: str) -> None:
        if variable not in _CLASSES:
            if dtype != variable:
                raise OpError(f"mlc.{self.op_name}: {name} is {dtype}, expected {variable}")
            return
        if DTYPES[dtype].kind not in _CLASSES[variable] or (variable not in _ANY and DTYPES[dtype].is_stored_only):
            raise OpError(f"mlc.{self.op_name}: {name} is {dtype}, which the op does not take")
        first, bound = self.dtypes.setdefault(variable, (name, dtype))
        if bound != dtype:
            raise OpError(f"mlc.{self.op_name}: {name} is {dtype}, but {first} is {bound}")

    def _bind_group(self, group: str, shape: tuple[dims.Size, ...]) -> None:
        try:
            self.groups[group] = types.broadcast_shapes([self.groups.get(group, ()), shape])
        except ValueError as error:
            raise OpError(f"mlc.{self.op_name}: {error}") from error

    def _bind_dim(self, name: str, dim_name: str, size: dims.Size) -> None:
        if dim_name.isdigit():
            if size != int(dim_name):
                raise OpError(f"mlc.{self.op_name}: {name} has size {size}, expected {dim_name}")
        elif self.sizes.setdefault(dim_name, size) != size:
            raise OpError(
                f"mlc.{self.op_name}: {name} has {dim_name}={size}, expected {dim_name}={self.sizes[dim_name]}"
            )

    def build(self, pattern: Pattern) -> TensorType:
        dtype = self.dtypes[pattern.dtype][1] if pattern.dtype in self.dtypes else pattern.dtype
        shape: list[dims.Size] = []
        for dim in pattern.dims or ():
            shape.extend(self.groups[dim]) if dim.startswith("*") else shape.append(
                int(dim) if dim.isdigit() else self.sizes[dim]
            )
        return TensorType(dtype, tuple(shape))


OPS: dict[str, OpDef] = {}


def _pattern(annotation: str) -> Pattern:
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Name):
        return Pattern(node.id, None)
    assert isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name), annotation
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return Pattern(node.value.id, tuple(ast.unparse(e) for e in elements))


def _results(annotation: str) -> tuple[Pattern, ...]:
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple":
        elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return tuple(_pattern(ast.unparse(e)) for e in elements)
    return (_pattern(annotation),)


def op(
    kind: str = "pointwise", *, torch: str | tuple[str, ...] = (), onnx: str | tuple[str, ...] = (),
    is_internal: bool = False,
) -> Callable[[Callable[..., Any]], OpDef]:  # fmt: skip
    """Declares the decorated function as the op of its name; `torch` and `onnx` name the ops it equals one to one."""
    assert kind in KINDS, kind

    def declare(function: Callable[..., Any]) -> OpDef:
        operands, attributes = [], []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                attributes.append(Attribute(parameter.name, str(parameter.annotation), parameter.default))
            else:
                operands.append(
                    Operand(
                        parameter.name, _pattern(parameter.annotation), parameter.default is None,
                        parameter.kind is inspect.Parameter.VAR_POSITIONAL,
                    )
                )
        name = function.__name__.rstrip("_")
        definition = OpDef(
            name, kind, function, tuple(operands), tuple(attributes),
            _results(function.__annotations__["return"]), inspect.getdoc(function) or "",
            function.__module__.rsplit(".", 1)[-1],
            (torch,) if isinstance(torch, str) else torch, (onnx,) if isinstance(onnx, str) else onnx, is_internal,
        )
        assert name not in OPS, f"op {name} is declared twice"
        OPS[name] = definition
        return definition

    return declare
