"""What the bodies of pointwise ops compute with on numpy: wide intermediates, and functions that numpy has not.

A body judges compiled code, so it is to be nearer to the true value than that code: transcendental functions run in f64
and are rounded once, through f32 for f16 and bf16 as compiled code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .types import DTYPES, dtype_of_numpy

Array = np.ndarray


def is_narrow(dtype: np.dtype) -> bool:
    return DTYPES[dtype_of_numpy(dtype)].is_narrow_float


def widened(x: Any) -> Any:
    """f16, bf16 and smaller floats as f32, integers of less than a byte as one; others as they are."""
    x = np.asarray(x)
    info = DTYPES[dtype_of_numpy(x.dtype)]
    if info.is_stored_only and not info.is_float:
        return x.astype(np.int8)
    return x.astype(np.float32) if info.is_narrow_float else x


def narrowed(value: Any, dtype: np.dtype) -> Array:
    """`value` rounded to `dtype`; to f16, bf16 and smaller floats through f32."""
    value = np.asarray(value)
    return (value.astype(np.float32) if is_narrow(dtype) else value).astype(dtype)


def exactly(function: Callable[..., Any], *operands: Any) -> Array:
    """`function` of operands of one float type, computed in f64 and rounded to that type."""
    dtype = np.asarray(operands[0]).dtype
    with np.errstate(all="ignore"):
        return narrowed(function(*(np.asarray(x).astype(np.float64) for x in operands)), dtype)


def _elementwise(function: Callable[[float], float]) -> Callable[[Any], Array]:
    vectorized = np.vectorize(function, otypes=[np.float64])
    return lambda x: vectorized(x) if np.size(x) else np.zeros(np.shape(x))


erf = _elementwise(math.erf)
erfc = _elementwise(math.erfc)


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf  # a pole, where math.lgamma raises
    return math.lgamma(x)


lgamma = _elementwise(_lgamma)


def _digamma(x: float) -> float:
    """By reflection and recurrence to x >= 10, then the asymptotic series. Source: Abramowitz & Stegun 6.3.5-6.3.18."""
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        fraction = math.fmod(x, 1.0)  # tan has period pi: reduced before the product is rounded
        return _digamma(1.0 - x) - math.pi / math.tan(math.pi * fraction)
    total = 0.0
    while x < 10.0:
        total -= 1.0 / x
        x += 1.0
    if math.isinf(x):
        return x
    square = 1.0 / (x * x)
    series = 0.0
    for bernoulli in (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = (series + bernoulli) * square
    return total + math.log(x) - 0.5 / x - series


digamma = _elementwise(_digamma)


def _erfinv(y: float) -> float:
    """By Halley's steps on erf (near 0) or erfc (in the tail, where erf has no bits left)."""
    size = abs(y)
    if not size < 1.0:
        return math.copysign(math.inf, y) if size == 1.0 else math.nan
    if size == 0.0:
        return y
    if size < 1e-8:
        return y * math.sqrt(math.pi) / 2
    tail = 1.0 - size
    x = math.sqrt(math.pi) / 2 * size if size < 0.7 else math.sqrt(-math.log(tail * math.sqrt(math.pi)))
    for _ in range(40):
        error = math.erf(x) - size if size < 0.5 else tail - math.erfc(x)
        slope = 2 / math.sqrt(math.pi) * math.exp(-x * x)
        step = error / (slope + x * error)
        x -= step
        if abs(step) <= 1e-16 * x:
            break
    return math.copysign(x, y)


erfinv = _elementwise(_erfinv)


def sigmoid(x: Array) -> Array:
    """Without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def truncating_divide(a: Array, b: Array) -> Array:
    """Integer quotient rounded toward zero; 0 for a zero divisor; the lowest integer / -1 wraps."""
    with np.errstate(all="ignore"):
        floor = np.floor_divide(a, b)
        is_inexact_negative = (floor * b != a) & ((a < 0) != (b < 0)) & (b != 0)
        return floor + is_inexact_negative.astype(floor.dtype)


def integer_power(base: Array, exponent: Array) -> Array:
    """Wrapping power; for a negative exponent the quotient 1 / base**-exponent rounded toward zero.

    Source: ATen pow on integer tensors.
    """
    base, exponent = np.broadcast_arrays(base, exponent)
    with np.errstate(all="ignore"):
        magnitude = np.power(base, np.maximum(exponent, 0))
        of_minus_one = np.where(base == -1, 1 - 2 * (exponent % 2).astype(np.int64), 0)
        inverse = np.where(base == 1, 1, of_minus_one)
    return np.where(exponent < 0, inverse, magnitude).astype(base.dtype)
