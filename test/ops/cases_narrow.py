"""Rows of the types that are only stored: conversions over all their codes, and moves."""

from __future__ import annotations

import numpy as np
from case import Case, Maker
from mlc.dialects.types import DTYPES

FLOATS = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1fn", "f8e8m0fnu")
INTEGERS = ("i4", "u4", "i2", "u2")
RANGES = {"i4": (-8, 8), "u4": (0, 16), "i2": (-2, 2), "u2": (0, 4)}


def codes() -> Maker:
    """Every code in turn; of integers every byte, since bits past a type's own mean nothing."""

    def make(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        count = 16 if dtype == "f4e2m1fn" else 256
        return np.resize(np.arange(count, dtype=np.uint8), shape).view(DTYPES[dtype].numpy)

    return make


def halves() -> Maker:
    """Every f16 in turn, as the type of the row."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    return lambda rng, shape, dtype: np.resize(bits.view(np.float16), shape).astype(DTYPES[dtype].numpy)


def edges(narrow: str) -> Maker:
    """f32 about every step of an exponent, where rounding turns: ties, their neighbours, denormals, the largest."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    ends = [0, 1, 2, 0x7FFFF, 0x80000, 0x80001, 0xFFFFF, 0x100000, 0x100001, 0x17FFFF, 0x180000, 0x180001, 0x1FFFFF]
    ends += [0x200000, 0x200001, 0x2FFFFF, 0x300000, 0x300001, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000]
    ends += [0x600001, 0x6FFFFF, 0x700000, 0x700001, 0x77FFFF, 0x780000, 0x780001, 0x7FFFFF]
    positive = (exponents | np.asarray(ends, np.uint32)).reshape(-1)
    if narrow == "f8e8m0fnu":  # numbers just above its least power, which ml_dtypes before 0.7 rounded up
        positive = positive[(positive <= 0x400000) | (positive >= 0x600000)]
    bits = np.concatenate([positive, positive | np.uint32(1 << 31)])
    return lambda rng, shape, dtype: np.resize(bits.view(np.float32), shape)


def whole(low: int, high: int) -> Maker:
    return lambda rng, shape, dtype: np.resize(np.arange(low, high), shape).astype(DTYPES[dtype].numpy)


CASES = [
    *(Case("cast", [(256,)], [narrow], {"dtype": to}, make={0: codes()}, oracle=None)
      for narrow in FLOATS for to in ("f32", "f16", "f64")),
    *(Case("cast", [(256,)], [narrow], {"dtype": to}, make={0: codes()}, oracle=None)
      for narrow in INTEGERS for to in ("f32", "i8", "i64", "bool")),
    *(Case("cast", [(1 << 16,)], ["f16"], {"dtype": narrow}, make={0: halves()}, oracle=None) for narrow in FLOATS),
    *(Case("cast", [(256 * 62,)], ["f32"], {"dtype": narrow}, make={0: edges(narrow)}, oracle=None)
      for narrow in FLOATS),
    *(Case("cast", [(300,)], ["i32", "i8", "u8"], {"dtype": narrow}, make={0: whole(-150, 150)}, oracle=None)
      for narrow in INTEGERS),
    # Of a float outside the type's range nothing is said.
    *(Case("cast", [(300,)], ["f32"], {"dtype": narrow}, make={0: whole(*RANGES[narrow])}, oracle=None)
      for narrow in INTEGERS),
    *(Case("bitcast", [(256,)], ["u8"], {"dtype": narrow}, make={0: codes()}, oracle=None) for narrow in FLOATS[:4]),
    *(Case("transpose", [(5, 51)], [narrow], {"perm": [1, 0]}, make={0: codes()}, oracle=None)
      for narrow in ("f8e4m3fn", "f4e2m1fn", "i4")),
    *(Case("concat", [(3, 7), (3, 9)], [narrow], {"axis": 1}, make={0: codes(), 1: codes()}, oracle=None)
      for narrow in ("f8e5m2", "u4")),
    *(Case("flip", [(9, 31)], [narrow], {"axes": [1]}, make={0: codes()}, oracle=None) for narrow in ("f8e8m0fnu",)),
]  # fmt: skip
