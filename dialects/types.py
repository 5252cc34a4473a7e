"""Element types and tensor types of the mlc dialect, and their MLIR form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from mlir import ir

from . import dims
from .narrow import is_stored_only

if TYPE_CHECKING:
    from .dims import Size


@dataclass(frozen=True)
class DType:
    """`kind` is "f" float, "i" signed, "u" unsigned or "b" bool; a bool takes one byte in memory."""

    name: str
    kind: str
    bits: int
    numpy: np.dtype
    mlir: str

    @property
    def bytes(self) -> int:
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_narrow_float(self) -> bool:
        """Computed in f32 and rounded when stored."""
        return self.kind == "f" and self.bits < 32

    @property
    def is_stored_only(self) -> bool:
        """Moved and converted, never computed with (dialects/narrow.py)."""
        return is_stored_only(self.kind, self.bits)


def _dtype(name: str, kind: str, bits: int, numpy: Any, mlir: str) -> tuple[str, DType]:
    return name, DType(name, kind, bits, np.dtype(numpy), mlir)


DTYPES: dict[str, DType] = dict(
    [
        _dtype("f64", "f", 64, np.float64, "f64"), _dtype("f32", "f", 32, np.float32, "f32"),
        _dtype("f16", "f", 16, np.float16, "f16"), _dtype("bf16", "f", 16, ml_dtypes.bfloat16, "bf16"),
        _dtype("i64", "i", 64, np.int64, "i64"), _dtype("i32", "i", 32, np.int32, "i32"),
        _dtype("i16", "i", 16, np.int16, "i16"), _dtype("i8", "i", 8, np.int8, "i8"),
        _dtype("u64", "u", 64, np.uint64, "ui64"), _dtype("u32", "u", 32, np.uint32, "ui32"),
        _dtype("u16", "u", 16, np.uint16, "ui16"), _dtype("u8", "u", 8, np.uint8, "ui8"),
        _dtype("bool", "b", 8, np.bool_, "i1"),
        _dtype("f8e4m3fn", "f", 8, ml_dtypes.float8_e4m3fn, "f8E4M3FN"),
        _dtype("f8e4m3fnuz", "f", 8, ml_dtypes.float8_e4m3fnuz, "f8E4M3FNUZ"),
        _dtype("f8e5m2", "f", 8, ml_dtypes.float8_e5m2, "f8E5M2"),
        _dtype("f8e5m2fnuz", "f", 8, ml_dtypes.float8_e5m2fnuz, "f8E5M2FNUZ"),
        _dtype("f8e8m0fnu", "f", 8, ml_dtypes.float8_e8m0fnu, "f8E8M0FNU"),
        _dtype("f4e2m1fn", "f", 4, ml_dtypes.float4_e2m1fn, "f4E2M1FN"),
        _dtype("i4", "i", 4, ml_dtypes.int4, "i4"), _dtype("u4", "u", 4, ml_dtypes.uint4, "ui4"),
        _dtype("i2", "i", 2, ml_dtypes.int2, "i2"), _dtype("u2", "u", 2, ml_dtypes.uint2, "ui2"),
    ]
)
_FROM_MLIR = {d.mlir: d for d in DTYPES.values()}
_FROM_NUMPY = {d.numpy: d for d in DTYPES.values()}


def dtype_of_numpy(dtype: np.dtype) -> str:
    """The mlc name of a numpy dtype. Raises TypeError for one that mlc has not."""
    found = _FROM_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"element type {dtype} is not supported; supported: {', '.join(DTYPES)}")
    return found.name


@dataclass(frozen=True)
class TensorType:
    """Element type and sizes of a tensor. `shape` entries are `int` or `Dim`."""

    dtype: str
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(s, int) for s in self.shape)

    @property
    def elements(self) -> Size:
        return dims.product(self.shape)

    @property
    def bytes(self) -> Size:
        return self.elements * DTYPES[self.dtype].bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(str(s) for s in self.shape)}]"

    def to_ir(self) -> ir.Type:
        element = ir.Type.parse(DTYPES[self.dtype].mlir)
        if self.is_static:
            return ir.RankedTensorType.get(list(self.shape), element, loc=ir.Location.unknown())
        dynamic = ir.ShapedType.get_dynamic_size()
        sizes = [s if isinstance(s, int) else dynamic for s in self.shape]
        encoding = ir.ArrayAttr.get([ir.StringAttr.get(str(s)) for s in self.shape])
        return ir.RankedTensorType.get(sizes, element, encoding, loc=ir.Location.unknown())


_CACHE: dict[str, TensorType] = {}


def from_ir(type_: ir.Type) -> TensorType:
    """Raises ValueError for a type that is no tensor, or a dynamic size without a name."""
    text = str(type_)
    found = _CACHE.get(text)
    if found is None:
        found = _CACHE[text] = _from_ir(type_)
    return found


def _from_ir(type_: ir.Type) -> TensorType:
    if not isinstance(type_, ir.RankedTensorType):
        raise ValueError(f"{type_} is no ranked tensor")
    dtype = _FROM_MLIR.get(str(type_.element_type))
    if dtype is None:
        raise ValueError(f"{type_}: mlc has no element type {type_.element_type}")
    encoding = type_.encoding
    if encoding is None:
        if not type_.has_static_shape:
            raise ValueError(f"{type_}: a dynamic size needs a name, as in tensor<?x4xf32, [\"N\", \"4\"]>")
        return TensorType(dtype.name, tuple(type_.shape))
    names = [ir.StringAttr(a).value for a in ir.ArrayAttr(encoding)]
    return TensorType(dtype.name, tuple(dims.parse(n) for n in names))


def broadcast_shapes(shapes: list[tuple[Size, ...]]) -> tuple[Size, ...]:
    """Shapes joined along missing leading or statically-1 dimensions. Raises ValueError naming the two sizes that
    differ."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif size not in (1, result[axis]):
                raise ValueError(f"sizes {result[axis]} and {size} of dimension {axis} do not broadcast")
    return tuple(result)
