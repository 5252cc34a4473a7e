"""`@mlc.import_op`: how users teach the importers an op that mlc does not know, in terms of mlc's own.

    @mlc.import_op("acme::leaky_clamp")
    def leaky_clamp(g, x, low, slope=0.1):
        low = g.scalar(low, x.dtype)
        return g.add(g.maximum(x, low), g.mul(g.minimum(g.sub(x, low), g.scalar(0, x.dtype)), g.scalar(slope, x.dtype)))

The name is that of a torch op (`torch.ops.acme.leaky_clamp`, all overloads, or "acme::leaky_clamp.default" for one), or
of an ONNX node as domain and operator; "ai.onnx::Relu" is the standard domain's. A lowering given here comes before
mlc's own. `docs/ops.md` lists the ops that `g` has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mlc.dialects.builder import Value

Lowering = Callable[..., Any]
_LOWERINGS: dict[str, Lowering] = {}


class LoweringError(ValueError):
    """A user's lowering that failed, or gave what is no tensor; the message names both."""


def import_op(name: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function as what becomes of the op `name`, "namespace::op".

    It gets the graph builder `g`, the op's tensors as values with `dtype` and `shape` (sizes are ints, or expressions
    of dynamic sizes), and its other arguments as they are: of a torch op by position or name, of an ONNX node the
    attributes by name, an absent input as None. It returns a value, or a tuple of as many as the op has results.
    Registering a name again replaces it, so that a notebook cell can run twice.
    Raises: ValueError for a name that is not "namespace::op".
    """
    namespace, separator, op = name.partition("::")
    if not namespace or not separator or not op:
        raise ValueError(f"'{name}' names no op: write \"namespace::op\", or \"onnx.domain::Operator\"")

    def register(function: Lowering) -> Lowering:
        _LOWERINGS[name] = function
        return function

    return register


def torch_lowering(target: str) -> Lowering | None:
    """The lowering of a torch op by its record name, "acme.leaky_clamp.default"."""
    namespace, _, op = target.partition(".")
    return _LOWERINGS.get(f"{namespace}::{op}") or _LOWERINGS.get(f"{namespace}::{op.partition('.')[0]}")


def onnx_lowering(domain: str, op: str) -> Lowering | None:
    """The lowering of an ONNX node."""
    return _LOWERINGS.get(f"{domain or 'ai.onnx'}::{op}")


def apply(lowering: Lowering, g: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """The lowering's results. Raises: LoweringError, with the line of the user's file, in place of whatever it
    raises."""
    try:
        result = lowering(g, *operands, **attrs)
    except Exception as error:
        raise LoweringError(f"{_place(lowering, error)}: {type(error).__name__}: {error}") from error
    for one in result if isinstance(result, tuple) else (result,):
        if not isinstance(one, Value):
            kind = "a numpy array; wrap it in g.constant" if isinstance(one, np.ndarray) else type(one).__name__
            raise LoweringError(f"{_place(lowering)}: the lowering gave {kind}, and must give what ops of g give")
    return result


def _place(lowering: Lowering, error: BaseException | None = None) -> str:
    """Where the lowering is, or where in its file it failed: "ops.py:12"."""
    code = getattr(lowering, "__code__", None)
    if code is None:
        return repr(lowering)
    line, trace = code.co_firstlineno, error.__traceback__ if error is not None else None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{code.co_filename}:{line}"
