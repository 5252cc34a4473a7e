"""What a model takes and gives: element types, named sizes, tensors. Shared by the file's writer and the loader.

Imports next to nothing, and no dataclasses, whose import takes longer than loading a small model.
"""

from __future__ import annotations

from typing import NamedTuple

COMPUTED_DIM, DATA_DIM = -(2**63), -(2**63) + 1
# The order is the file's dtype code, the same as MLC_DTYPE_LIST in mlc_rt.h (a test compares them).
DTYPES = (
    "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "u16", "u32", "u64", "bool",
    "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn", "i4", "u4", "i2", "u2",
)  # fmt: skip


class Symbol(NamedTuple):
    """A named size; `min` and `max` are the values it may take, both included."""

    name: str
    min: int
    max: int


class TensorInfo(NamedTuple):
    """An input or output. A dim is a static size, a symbol's name, None where an expression computes it, or "*" where
    the data of a run decide it."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] = ()


def dim_word(dim: int, symbols: list[Symbol]) -> int | str | None:
    """What TensorInfo has for a dim of the file."""
    if dim in (COMPUTED_DIM, DATA_DIM):
        return None if dim == COMPUTED_DIM else "*"
    return dim if dim >= 0 else symbols[-1 - dim].name
