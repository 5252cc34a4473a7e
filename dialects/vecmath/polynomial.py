"""Evaluates the fitted polynomials in the precision at hand."""

from __future__ import annotations

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import Lane, fma, horner

LONG = 9


def fitted(name: str, x: Lane, is_wide: bool, skip: int = 0) -> Lane:
    """The polynomial `name` at x, without its `skip` lowest terms: in f32, in f64, or in f64 good to f32 (`is_wide`).

    f32 without a fit of its own takes the wide one's coefficients, rounded.
    """
    key = (name, "wide" if is_wide else f"f{x.format.bits}")
    coefficients = COEFFICIENTS[key if key in COEFFICIENTS else (name, "wide")][skip:]
    if not is_wide or len(coefficients) < LONG:
        return horner(x, coefficients)
    # Two chains, of the even and the odd powers: half the latency for one multiplication.
    square = x * x
    return fma(x, horner(square, coefficients[1::2]), horner(square, coefficients[::2]))
