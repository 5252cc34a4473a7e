"""Element types of a byte or less that are only stored: floats of 8 and 4 bits, integers of 4 and 2.

Each element lies in a byte of its own, in its low bits. In registers the floats are f32 and the integers one byte wide;
what goes to memory is rounded or cut to the type, what comes from memory is exact.
Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0; Noune et al. 2022 for the fnuz types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .val import Val

_MANTISSA, _BIAS = 23, 127  # of f32
_INFINITY = 0x7F800000
_SCALE_NAN = 0xFF


@dataclass(frozen=True)
class Format:
    """A float of `sign_bit` magnitude bits, `mantissa` of them its fraction. Codes are magnitudes without the sign.

    `largest` is the last code of a finite number, `beyond` what larger ones become, `nan` what NaN does.
    `has_minus_zero`: else the code of minus zero is NaN, and no other is.
    """

    sign_bit: int
    mantissa: int
    bias: int
    largest: int
    beyond: int
    nan: int
    has_minus_zero: bool = True


FORMATS: dict[str, Format] = {
    "f8e4m3fn": Format(7, 3, 7, 0x7E, 0x7F, 0x7F),
    "f8e4m3fnuz": Format(7, 3, 8, 0x7F, 0x80, 0x80, has_minus_zero=False),
    "f8e5m2": Format(7, 2, 15, 0x7B, 0x7C, 0x7E),
    "f8e5m2fnuz": Format(7, 2, 16, 0x7F, 0x80, 0x80, has_minus_zero=False),
    "f4e2m1fn": Format(3, 1, 1, 0x7, 0x7, 0x0),
}
SCALE = "f8e8m0fnu"


def is_stored_only(kind: str, bits: int) -> bool:
    """Whether a type is one of those here, by its kind and width (dialects/types.py)."""
    return (kind == "f" and bits <= 8) or (kind in "iu" and bits < 8)


def code_of(x: Val, dtype: str) -> Val:
    """The u8 code of f32 `x`: to nearest even; what is too large is the type's infinity, NaN or, in 4 bits, largest."""
    if dtype == SCALE:
        return _scale_code(x)
    form = FORMATS[dtype]
    bits = x.bitcast("u32")
    size = bits & 0x7FFFFFFF
    sign = bits.shift_right(31 - form.sign_bit) & (1 << form.sign_bit)
    cut = _MANTISSA - form.mantissa
    odd = size.shift_right(cut) & 1
    normal = (size + ((1 << (cut - 1)) - 1) + odd).shift_right(cut) - ((_BIAS - form.bias) << form.mantissa)
    # A number whose last place is the type's least step: adding it rounds the sum to that step.
    magic = (_BIAS + _MANTISSA + 1 - form.bias - form.mantissa) << _MANTISSA
    step = x.bitcast("u32").like(magic).bitcast("f32")
    small = (size.bitcast("f32") + step).bitcast("u32") - magic
    code = size.lt((_BIAS + 1 - form.bias) << _MANTISSA).select(small, normal)
    code = code.gt(form.largest).select(code.like(form.beyond), code)
    code = size.gt(_INFINITY).select(code.like(form.nan), code)
    signed = code | sign
    return (signed if form.has_minus_zero else code.eq(0).select(code, signed)).cast("u8")


def _scale_code(x: Val) -> Val:
    """The nearest power of two, of two equally near the larger; what is none, or too large, is NaN."""
    bits = x.bitcast("u32")
    exponent = (bits + 0x400000).shift_right(_MANTISSA)
    # Below the least normal f32, whose exponent is 1, only 2^-127 is a power of the type.
    exponent = bits.lt(0x600000).select(exponent.like(0), exponent)
    is_number = bits.ge(1) & bits.lt(_INFINITY) & exponent.lt(_SCALE_NAN)
    return is_number.select(exponent, exponent.like(_SCALE_NAN)).cast("u8")


def number_of(code: Val, dtype: str) -> Val:
    """The f32 that u8 `code` stands for."""
    wide = code.cast("u32")
    if dtype == SCALE:
        power = wide.eq(0).select(wide.like(0x400000), wide.shift_left(_MANTISSA))
        return wide.eq(_SCALE_NAN).select(wide.like(0x7FC00000), power).bitcast("f32")
    form = FORMATS[dtype]
    size = wide & ((1 << form.sign_bit) - 1)
    sign = (wide & (1 << form.sign_bit)).shift_left(31 - form.sign_bit)
    normal = size.shift_left(_MANTISSA - form.mantissa) + ((_BIAS - form.bias) << _MANTISSA)
    small = (size.cast("f32") * 2.0 ** (1 - form.bias - form.mantissa)).bitcast("u32")
    bits = size.lt(1 << form.mantissa).select(small, normal) | sign
    quiet = bits.like(0x7FC00000)
    if not form.has_minus_zero:
        bits = (wide & ((2 << form.sign_bit) - 1)).eq(form.nan).select(quiet, bits)
    elif form.beyond > form.largest:
        bits = size.gt(form.largest).select(quiet, bits)
        if form.beyond != form.nan:
            bits = size.eq(form.beyond).select(sign | _INFINITY, bits)
    return bits.bitcast("f32")


def nibble_of(x: Val, bits: int) -> Val:
    """The low `bits` of a byte, the others 0."""
    return x & ((1 << bits) - 1)


def integer_of(code: Val, bits: int) -> Val:
    """The number in the low `bits` of i8 or u8 `code`, whatever is in the others."""
    return code.shift_left(8 - bits).shift_right(8 - bits)
