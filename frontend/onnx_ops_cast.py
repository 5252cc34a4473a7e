"""ONNX conversions between element types, saturating or not, and views of the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row

if TYPE_CHECKING:
    from mlc.frontend.graph import Value

_SCALE = "f8e8m0fnu"


@row("Cast")
def _cast(c: Call, x: Value) -> Value:
    return _converted(c, x, c.mlc_dtype(c.attr("to")))


@row("CastLike")
def _cast_like(c: Call, x: Value, like: Value) -> Value:
    return _converted(c, x, like.dtype)


def _converted(c: Call, x: Value, dtype: str) -> Value:
    saturate = bool(c.attr("saturate", 1))
    if dtype == _SCALE:
        return _as_scale(c, x, saturate, c.attr("round_mode", "up"))
    return saturated(c, x, dtype) if saturate else c.to(x, dtype)


def saturated(c: Call, x: Value, dtype: str) -> Value:
    """`x` as `dtype`; a number too large for a float of 8 bits, infinity with it, becomes the largest."""
    if not DTYPES[dtype].is_float or DTYPES[dtype].bits != 8 or x.dtype == dtype:
        return c.to(x, dtype)
    wide = x if DTYPES[x.dtype].is_float and not DTYPES[x.dtype].is_stored_only else c.to(x, "f32")
    most = float(ml_dtypes.finfo(DTYPES[dtype].numpy).max)
    return c.to(c.clamp(wide, -most, most), dtype)


def _as_scale(c: Call, x: Value, saturate: bool, mode: str) -> Value:
    """The exponent of f32 `x`, whatever its sign, rounded as `mode` says; infinity and NaN are NaN.

    Source: ONNX Cast-25; `nearest` takes half the way up, except from 0, as its reference does.
    """
    bits = c.bitcast(c.to(x, "f32"), dtype="i32")
    exponent = c.bitwise_and(c.shift_right(bits, c.scalar(23, bits)), c.scalar(0xFF, bits))
    rest = c.bitwise_and(bits, c.scalar(0x7FFFFF, bits))
    if mode == "down":
        above = c.scalar(0, bits)
    elif mode == "up":
        above = c.to(c.gt(rest, c.scalar(0, bits)), "i32")
    else:
        half = c.where(c.gt(exponent, c.scalar(0, bits)), c.scalar(0x3FFFFF, bits), c.scalar(0x400000, bits))
        above = c.to(c.gt(rest, half), "i32")
    rounded = c.add(exponent, above)
    if saturate:
        rounded = c.minimum(rounded, c.scalar(0xFE, bits))
    special = c.eq(exponent, c.scalar(0xFF, bits))
    return c.bitcast(c.to(c.where(special, exponent, rounded), "u8"), dtype=_SCALE)


@row("BitCast")
def _bit_cast(c: Call, x: Value) -> Value:
    dtype = c.mlc_dtype(c.attr("to"))
    if "bool" in (x.dtype, dtype):  # one byte of 0 or 1
        return c.to(x, dtype)
    return c.bitcast(x, dtype=dtype)
