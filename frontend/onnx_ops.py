"""The registry of ONNX rows: how each ONNX op becomes mlc ops.

Ops that equal an mlc op one to one come from the declarations (`@op(onnx="Relu")`). Every other op is a function in one
of the `onnx_ops_<family>.py` files:

    @row("HardSwish")
    def _hard_swish(c: Call, x: Value) -> Value:
        return c.mul(x, c.hard_sigmoid(x, 1 / 6, 0.5))

A parameter annotated `Known` must have a value at import (a shape, axes, a scale); `Value` arrives as a graph value
whether or not it is known; a default of None makes an input optional. `since` is the operator-set version from which
the row holds.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from mlc.dialects import build, types
from mlc.dialects.op import OpDef
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_proto import Node
from mlc.frontend.shape_values import Sizes

if TYPE_CHECKING:
    from mlc.frontend.graph import Value
    from mlc.frontend.onnx import Importer


class UnsupportedNodeError(ValueError):
    """A node, or this use of it, that cannot be imported; the message says which part."""


class MisfitError(UnsupportedNodeError):
    """Operands whose sizes or ranks no run of the node can take."""


class NeedsKnownError(UnsupportedNodeError):
    """An input that must be known at import is computed at run time. `name` is that of the ONNX value."""

    def __init__(self, name: str, parameter: str) -> None:
        super().__init__(
            f"input '{name}' ({parameter}) must be known at compile time, or, where it holds sizes, in a range "
            f"that you give: dims={{'{name}': (1, 4096)}}, '{name}_0' and so on for several"
        )
        self.name = name


class ByDefinitionError(Exception):
    """Raised by a row for a use of its op that the op's own function body covers."""


class SameSizeError(ValueError):
    """Two sizes that the model takes to be equal; importing starts again with one in the other's place."""

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(f"sizes {a} and {b} must be equal")
        self.a, self.b = a, b


@dataclass(frozen=True)
class Row:
    """One importer: holds for `op` from operator set `since` on."""

    op: str
    domain: str
    since: int
    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]


_ROWS: dict[tuple[str, str], list[Row]] = {}


def row(*ops: str, since: int = 1, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as the importer of the named ops."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = tuple(inspect.signature(function).parameters.values())[1:]
        for op in ops:
            _ROWS.setdefault((domain, op), []).append(Row(op, domain, since, function, parameters))
        return function

    return register


@cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """All rows by (domain, op), newest first; the folder is the registry."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("onnx_ops_"):
            importlib.import_module(f"{__package__}.{module.name}")
    for found in _ROWS.values():
        found.sort(key=lambda item: -item.since)
    return _ROWS


def find_row(node: Node) -> Row | None:
    """The row for a node at its operator-set version."""
    return next((item for item in rows().get((node.domain, node.op), ()) if item.since <= node.version), None)


@cache
def _declared() -> dict[str, OpDef]:
    return {name: definition for definition in build.load_ops().values() for name in definition.onnx}


def one_to_one(node: Node) -> OpDef | None:
    """The mlc op that a declaration says the node is."""
    return _declared().get(node.op) if not node.domain else None


def supported_ops() -> set[str]:
    """Names of the ops that can be imported, those of other domains as `domain.op`; `mlc ops` prints them."""
    from mlc.frontend.onnx_control import CONTROL

    names = {f"{domain}.{op}" if domain else op for domain, op in rows()}
    schemas: list[Any] = [schema for schema in onnx.defs.get_all_schemas() if not schema.domain]
    bodies = {s.name for s in schemas if s.has_function or s.context_dependent_function_opset_versions}
    return names | set(_declared()) | set(CONTROL) | bodies | {"Constant"}


def one_to_one_attrs(definition: OpDef, node: Node) -> dict[str, Any]:
    """The declaration's attributes from the node's of the same names, with ONNX's own defaults."""
    found = {a.name: node.attrs[a.name] for a in definition.attributes if a.name in node.attrs}
    schema = onnx.defs.get_schema(node.op, node.version)
    for attribute in definition.attributes:
        default = schema.attributes.get(attribute.name)
        if attribute.name not in found and default is not None and default.default_value.type:
            found[attribute.name] = onnx.helper.get_attribute_value(default.default_value)
    return found


def numpy_dtype(number: int) -> np.dtype:
    """The numpy dtype of an ONNX element type number."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))


@dataclass
class Call:
    """One node on its way into the graph: attributes, known sizes, and every mlc op as a method (`c.add(a, b)`)."""

    importer: Importer
    node: Node
    sizes: Sizes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *operands, **attrs: self.importer.emit(name, *operands, **attrs)

    # --- the node ---

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    @property
    def version(self) -> int:
        return self.node.version

    def has_output(self, index: int) -> bool:
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def unsupported(self, what: str) -> UnsupportedNodeError:
        """The error to raise for a use of the op that no row covers."""
        return UnsupportedNodeError(what)

    # --- constants and types ---

    def scalar(self, value: float | bool, like: Value | str) -> Value:
        """A 0-D constant in the dtype of `like` (a value or a dtype name)."""
        dtype = like if isinstance(like, str) else like.dtype
        return self.const(np.asarray(value).astype(DTYPES[dtype].numpy))

    def const(self, array: np.ndarray) -> Value:
        return self.importer.constant(np.asarray(array))

    def to(self, x: Value, dtype: str) -> Value:
        """`x` in another dtype; itself where it has it already."""
        return x if x.dtype == dtype else self.cast(x, dtype=dtype)

    def mlc_dtype(self, number: int) -> str:
        """The mlc name of an ONNX element type number."""
        dtype = numpy_dtype(number)
        try:
            return types.dtype_of_numpy(dtype)
        except TypeError as error:
            raise UnsupportedNodeError(str(error)) from error

    # --- shapes ---

    def axis(self, x: Value, axis: int) -> int:
        """An axis counted from the front. Raises UnsupportedNodeError where `x` has no such axis."""
        rank = len(x.shape)
        if not -rank <= axis < max(rank, 1):
            raise MisfitError(f"axis {axis} of a tensor of rank {rank}")
        return axis % rank if rank else 0

    def axes(self, x: Value, axes: Sequence[int]) -> list[int]:
        return [self.axis(x, int(a)) for a in axes]

    def shaped(self, x: Value, shape: Sequence[Any]) -> Value:
        """`x` reshaped; itself where it has that shape already."""
        return x if tuple(shape) == tuple(x.shape) else self.reshape(x, shape=list(shape))

    def permuted(self, x: Value, perm: Sequence[int]) -> Value:
        return x if list(perm) == list(range(len(perm))) else self.transpose(x, perm=list(perm))

    def expanded(self, x: Value, shape: Sequence[Any]) -> Value:
        """`x` broadcast to a shape; itself where it has that shape already."""
        return x if tuple(shape) == tuple(x.shape) else self.broadcast_to(x, shape=list(shape))

    def with_rank(self, x: Value, rank: int) -> Value:
        """`x` with 1s in front up to a rank."""
        return self.shaped(x, [1] * (rank - len(x.shape)) + list(x.shape))

    def joined(self, *shapes: Sequence[Any]) -> tuple[Any, ...]:
        """The broadcast of shapes. Raises SameSizeError for two sizes that differ where a symbol is in one of them."""
        rank = max((len(s) for s in shapes), default=0)
        out: list[Any] = [1] * rank
        for shape in shapes:
            for axis, size in enumerate(shape, start=rank - len(shape)):
                out[axis] = self.joined_size(out[axis], size)
        return tuple(out)

    def joined_size(self, a: Any, b: Any) -> Any:
        if a == b or (isinstance(b, int) and b == 1):
            return a
        if isinstance(a, int) and a == 1:
            return b
        if isinstance(a, int) and isinstance(b, int):
            raise MisfitError(f"sizes {a} and {b} do not broadcast")
        raise SameSizeError(a, b)

    def same_size(self, a: Any, b: Any) -> Any:
        """States that two sizes are equal, as a contraction needs."""
        if a == b:
            return a
        if isinstance(a, int) and isinstance(b, int):
            raise MisfitError(f"sizes {a} and {b} must be equal")
        raise SameSizeError(a, b)

    def sliced(self, x: Value, axis: int, start: Any, limit: Any, step: int = 1) -> Value:
        """x[start:limit:step] along one axis, with bounds already in range."""
        if step == 1 and start == 0 and limit == x.shape[axis]:
            return x
        starts: list[Any] = [0] * len(x.shape)
        limits, steps = list(x.shape), [1] * len(x.shape)
        starts[axis], limits[axis], steps[axis] = start, limit, step
        return self.slice(x, starts=starts, limits=limits, steps=steps)

    # --- compositions that several families use ---

    def clamp(self, x: Value, low: float | Value, high: float | Value) -> Value:
        """x limited to [low, high]; NaN stays NaN."""
        low = self.scalar(low, x) if isinstance(low, int | float) else low
        high = self.scalar(high, x) if isinstance(high, int | float) else high
        return self.minimum(self.maximum(x, low), high)

    def hard_sigmoid(self, x: Value, alpha: float, beta: float) -> Value:
        """max(0, min(1, alpha * x + beta))."""
        return self.clamp(self.add(self.mul(x, self.scalar(alpha, x)), self.scalar(beta, x)), 0.0, 1.0)

    def softplus(self, x: Value) -> Value:
        """log(1 + exp(x)), without overflow for large x."""
        return self.add(self.maximum(x, self.scalar(0, x)), self.log1p(self.exp(self.neg(self.abs(x)))))

    def one_hot(self, index: Value, axis: int, depth: Any) -> Value:
        """A bool tensor with a new axis of `depth` where position == index; an index out of range gives no True."""
        positions = self.iota(size=depth, dtype=index.dtype)
        shape = list(index.shape)
        after = len(shape) - axis
        spread = self.shaped(index, [*shape[:axis], 1, *shape[axis:]])
        return self.eq(spread, self.shaped(positions, [depth] + [1] * after))


def bind(row_: Row, inputs: Sequence[Any], importer: Importer, node: Node) -> list[Any]:
    """The row's arguments: each input as its parameter's annotation wants it."""
    arguments: list[Any] = []
    parameters = list(row_.parameters)
    for index, name in enumerate(node.inputs):
        rest = parameters[-1] if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL else None
        parameter = parameters[index] if index < len(parameters) else rest
        if parameter is None:
            if name:
                raise UnsupportedNodeError(f"input {index} ('{name}')")
            continue
        arguments.append(_argument(parameter, inputs[index], name, importer))
    for parameter in parameters[len(arguments) :]:
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL and parameter.default is inspect.Parameter.empty:
            raise UnsupportedNodeError(f"input '{parameter.name}' is missing")
    return arguments


def _argument(parameter: inspect.Parameter, given: Any, name: str, importer: Importer) -> Any:
    if given is None:
        if parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            raise UnsupportedNodeError(f"input '{parameter.name}' is missing")
        return None
    kind = str(parameter.annotation).split(" ")[0]
    if kind == "Known":
        known = importer.known_sizes(given, name)
        if known is None:
            raise NeedsKnownError(name, parameter.name)
        return known
    if kind == "Any":
        return given
    return importer.materialize(given, name)
