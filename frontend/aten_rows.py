"""The table of ATen rows and the builder that the rows are written in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mlc.dialects import dims
from mlc.dialects.dims import Dim
from mlc.dialects.types import DTYPES
from mlc.frontend.record import NUMPY_DTYPES, Scalar, Value
from mlc.frontend.report import UnsupportedCaseError
from mlc.frontend.shape_values import Sizes

Row = Callable[..., Any]
ROWS: dict[str, Row] = {}

# Arguments that say nothing about values.
IGNORED_KEYWORDS = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad", "generator"}
)


def row(*targets: str) -> Callable[[Row], Row]:
    """Registers the function for ops: "aten.add" stands for every overload, "aten.add.Tensor" for one."""

    def register(function: Row) -> Row:
        for target in targets:
            assert target not in ROWS, f"{target} has two rows"
            ROWS[target] = function
        return function

    return register


ALIASES: dict[str, str] = {}


def alias(target: str, same_as: str) -> None:
    """Declares that op `target` is another name of op `same_as`, all overloads."""
    ALIASES[target] = same_as


def is_tensor(value: Any) -> bool:
    """Whether it is a value in the graph, in contrast to a number, a size or None."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, np.ndarray)


def is_float(dtype: str) -> bool:
    return dtype in DTYPES and DTYPES[dtype].is_float


class AtenBuilder:
    """GraphBuilder with torch's conventions: scalars as operands, type promotion, negative axes, broadcasting.

    `outs` are the record's values for the node at hand: torch's own word on result dtypes and shapes.
    """

    def __init__(self, graph: Any, ranges: dict[str, tuple[int, int]]) -> None:
        self.graph = graph
        self.sizes = Sizes(ranges)
        self.outs: list[Value | None] = []
        self.unread = {name for name in ranges if re.fullmatch(r"u\d+", name)}  # sizes that no node read from data yet

    # --- what torch says about the node's results ---

    @property
    def out_dtype(self) -> str:
        value = self.outs[0]
        assert value is not None
        return value.dtype

    @property
    def out_shape(self) -> list[Any]:
        value = self.outs[0]
        assert value is not None and value.shape is not None
        return [dims.parse(size) if isinstance(size, str) else size for size in value.shape]

    # --- making values ---

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        return self.graph.op(name, *operands, **attrs)

    def scalar(self, value: Any, dtype: str) -> Any:
        """A number or size as a 0-D tensor."""
        if is_tensor(value):
            return self.cast(value, dtype)
        if isinstance(value, Dim):
            return self.op("dim_value", value=value, dtype=dtype)
        if isinstance(value, complex):
            raise UnsupportedCaseError("complex numbers are not supported; keep real and imaginary parts apart")
        if dtype not in DTYPES:
            raise UnsupportedCaseError(f"dtype {dtype} is not supported")
        if not is_float(dtype) and dtype != "bool":
            value = int(value)
            info = np.iinfo(NUMPY_DTYPES[dtype])
            value = (value - info.min) % (1 << info.bits) + info.min  # wraps as a C cast does
        return self.constant(np.array(value, NUMPY_DTYPES[dtype]))

    def constant(self, array: np.ndarray) -> Any:
        return self.graph.constant(array)

    def full(self, shape: Sequence[Any], value: Any, dtype: str) -> Any:
        if is_tensor(value) or isinstance(value, Dim):
            return self.expand(self.scalar(value, dtype), shape)
        if dtype not in DTYPES:
            raise UnsupportedCaseError(f"dtype {dtype} is not supported")
        return self.op("full", shape=list(shape), value=value, dtype=dtype)

    def iota(self, size: Any, dtype: str, start: Any = 0, step: int = 1) -> Any:
        return self.op("iota", size=size, start=start, step=step, dtype=dtype)

    def cast(self, x: Any, dtype: str | Scalar | None) -> Any:
        """`x` as another dtype; None and the same dtype leave it."""
        dtype = dtype.dtype if isinstance(dtype, Scalar) else dtype
        if dtype is None or x.dtype == dtype:
            return x
        if dtype not in DTYPES:
            raise UnsupportedCaseError(f"dtype {dtype} is not supported")
        return self.op("cast", x, dtype=dtype)

    # --- types ---

    def promote(self, *operands: Any) -> str:
        """Torch's result type: tensors with dimensions first, then 0-D tensors, then numbers, by category.

        Source: torch documentation, "type promotion".
        """
        order: list[list[str]] = [[], [], []]
        for operand in operands:
            if is_tensor(operand):
                order[0 if operand.shape else 1].append(operand.dtype)
            elif operand is not None:
                number = "bool" if isinstance(operand, bool) else "f32" if isinstance(operand, float) else "i64"
                order[2].append(number)
        result = ""
        for dtypes in order:
            joined = ""
            for dtype in dtypes:
                joined = _join(joined, dtype) if joined else dtype
            if joined and (not result or _category(joined) > _category(result)):
                result = joined
        return result

    def binary(self, name: str, x: Any, y: Any, dtype: str | None = None) -> Any:
        """A pointwise op of two operands (tensors, numbers, sizes) computed in `dtype` or the promoted one."""
        dtype = dtype or self.promote(x, y)
        x, y = self.aligned(self.scalar(x, dtype), self.scalar(y, dtype))
        return self.op(name, x, y)

    def aligned(self, *operands: Any) -> list[Any]:
        """The operands with sizes that torch holds for equal, but that are spelt differently, spelt as in the first."""
        rank = max(len(operand.shape) for operand in operands)
        wanted: list[Any] = [1] * rank
        for operand in operands:
            for axis, size in enumerate(operand.shape, rank - len(operand.shape)):
                if wanted[axis] == 1 or (isinstance(size, int) and size != 1):
                    wanted[axis] = size
        out = []
        for operand in operands:
            first = rank - len(operand.shape)
            shape = [1 if s == 1 else wanted[axis] for axis, s in enumerate(operand.shape, first)]
            out.append(self.reshape(operand, shape))
        return out

    def add(self, x: Any, y: Any, dtype: str | None = None) -> Any:
        return self.binary("add", x, y, dtype)

    def sub(self, x: Any, y: Any, dtype: str | None = None) -> Any:
        return self.binary("sub", x, y, dtype)

    def mul(self, x: Any, y: Any, dtype: str | None = None) -> Any:
        return self.binary("mul", x, y, dtype)

    def div(self, x: Any, y: Any, dtype: str | None = None) -> Any:
        return self.binary("div", x, y, dtype)

    def where(self, condition: Any, x: Any, y: Any, dtype: str | None = None) -> Any:
        dtype = dtype or self.promote(x, y)
        operands = self.aligned(self.cast(condition, "bool"), self.scalar(x, dtype), self.scalar(y, dtype))
        return self.op("where", *operands)

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        """Bounds `x` on the sides that are not None."""
        if low is not None:
            x = self.binary("maximum", x, low, x.dtype)
        return x if high is None else self.binary("minimum", x, high, x.dtype)

    # --- shapes ---

    def axis(self, x: Any, dim: int) -> int:
        return dim % max(len(x.shape), 1)

    def axes(self, x: Any, dim: Any) -> list[int]:
        """Sorted non-negative axes; None and [] mean all. A number may be asked for its axis 0 or -1, and has none."""
        if not x.shape:
            return []
        if dim is None or (isinstance(dim, (list, tuple)) and not dim):
            return list(range(len(x.shape)))
        return sorted(self.axis(x, d) for d in (dim if isinstance(dim, (list, tuple)) else [dim]))

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        """`shape` holds no -1."""
        return x if list(x.shape) == list(shape) else self.op("reshape", x, shape=list(shape))

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return x if list(perm) == list(range(len(perm))) else self.op("transpose", x, perm=list(perm))

    def swap(self, x: Any, a: int, b: int) -> Any:
        """`x` with two axes exchanged."""
        perm = list(range(len(x.shape)))
        a, b = self.axis(x, a), self.axis(x, b)
        if perm:
            perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def move(self, x: Any, source: int, target: int) -> Any:
        """`x` with one axis moved elsewhere."""
        perm = list(range(len(x.shape)))
        perm.insert(target % len(perm), perm.pop(source % len(perm)))
        return self.transpose(x, perm)

    def expand(self, x: Any, shape: Sequence[Any]) -> Any:
        """`x` broadcast to `shape`; a size of -1 keeps the operand's."""
        lead = len(shape) - len(x.shape)
        full = [x.shape[i - lead] if _is(size, -1) else size for i, size in enumerate(shape)]
        spelt = [size if _is(size, 1) else full[lead + i] for i, size in enumerate(x.shape)]
        x = self.reshape(x, spelt)
        return x if list(x.shape) == full else self.op("broadcast_to", x, shape=full)

    def unsqueeze(self, x: Any, *axes: int) -> Any:
        """Size-1 dimensions at `axes` of the result."""
        rank = len(x.shape) + len(axes)
        wanted = {axis % rank for axis in axes}
        sizes = iter(x.shape)
        return self.reshape(x, [1 if axis in wanted else next(sizes) for axis in range(rank)])

    def squeeze(self, x: Any, *axes: int) -> Any:
        drop = {self.axis(x, axis) for axis in axes}
        return self.reshape(x, [size for axis, size in enumerate(x.shape) if axis not in drop])

    def slice(self, x: Any, dim: int, start: Any = None, end: Any = None, step: int = 1) -> Any:
        """x[..., start:end:step, ...] at axis `dim`, with Python's meaning of negative and large bounds."""
        axis = self.axis(x, dim)
        first, limit, length = self.sizes.slice_bounds(
            x.shape[axis], 0 if start is None else start, (1 << 62) if end is None else end, step
        )
        if _is(first, 0) and step == 1 and length == x.shape[axis]:
            return x
        starts, limits, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        starts[axis], limits[axis], steps[axis] = first, limit, step
        return self.op("slice", x, starts=starts, limits=limits, steps=steps)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else self.op("concat", *parts, axis=axis)

    def reduce(self, name: str, x: Any, dim: Any, keepdim: bool = False) -> Any:
        axes = self.axes(x, dim)
        return x if not axes else self.op(name, x, axes=axes, keepdims=bool(keepdim))

    def count(self, x: Any, axes: Sequence[int]) -> Any:
        """How many elements the axes span."""
        return dims.product(x.shape[axis] for axis in axes)

    def unary(self, name: str, x: Any, dtype: str | None = None) -> Any:
        return self.op(name, self.cast(x, dtype))

    def real(self, x: Any) -> Any:
        """`x` in the node's result dtype where that is a float and x is not: sqrt of integers and the like."""
        return self.cast(x, self.out_dtype) if is_float(self.out_dtype) and not is_float(x.dtype) else x


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if dtype not in DTYPES or DTYPES[dtype].is_float else 1


def _join(a: str, b: str) -> str:
    """The dtype that holds both, of the same or different categories."""
    if a == b:
        return a
    if _category(a) != _category(b):
        return a if _category(a) > _category(b) else b
    kinds, bits = (DTYPES[a].kind, DTYPES[b].kind), (DTYPES[a].bits, DTYPES[b].bits)
    if kinds[0] == kinds[1]:
        return ("f32" if is_float(a) else a) if bits[0] == bits[1] else a if bits[0] > bits[1] else b  # f16 with bf16
    unsigned, signed = (a, b) if kinds[0] == "u" else (b, a)
    if DTYPES[signed].bits > DTYPES[unsigned].bits:
        return signed
    return f"i{min(DTYPES[unsigned].bits * 2, 64)}"


def ratio(a: float, b: float) -> float:
    """a / b, NaN for 0 / 0, as torch has it."""
    return a / b if b else math.nan if a == 0 else math.inf
