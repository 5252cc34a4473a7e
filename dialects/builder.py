"""OpBuilder: adds mlc ops at one place of the IR, in Python calls: `g.add(a, b)`, `g.scalar(1.0, "f32")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mlir import ir

from . import build, dims, types

# Larger constants become weights: they would bloat the IR, and kernels read them from memory anyway.
SMALL_CONSTANT_ELEMENTS = 64


class Value:
    """A tensor in the IR: its MLIR value with dtype and shape at hand."""

    __slots__ = ("ir", "type")

    def __init__(self, value: ir.Value) -> None:
        self.ir, self.type = value, build.type_of(value)

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> tuple[dims.Size, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)


class OpBuilder:
    """Builds ops before `before` with its location; what `lower` rules are given."""

    def __init__(self, point: ir.InsertionPoint, loc: ir.Location) -> None:
        self.point, self.loc = point, loc

    def op(self, op_name: str, /, *operands: Value | None, **attrs: Any) -> Any:
        """Adds `mlc.<op_name>`; returns its Value, or a tuple of them. Raises OpError when it does not fit."""
        with self.loc, self.point:
            result = build.create(op_name, *(None if o is None else o.ir for o in operands), loc=self.loc, **attrs)
        return tuple(Value(r) for r in result) if isinstance(result, tuple) else Value(result)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in build.load_ops():
            raise AttributeError(f"{type(self).__name__} has no '{name}', and there is no such op")
        return lambda *operands, **attrs: self.op(name, *operands, **attrs)

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        """A small constant tensor in the IR."""
        value = np.asarray(array, None if dtype is None else types.DTYPES[dtype].numpy)
        return self.op("constant", value=value)

    def scalar(self, number: int | float | bool, dtype: str) -> Value:
        """A 0-D constant."""
        return self.constant(np.asarray(number).astype(types.DTYPES[dtype].numpy))
