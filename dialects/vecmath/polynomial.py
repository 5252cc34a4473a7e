"""Evaluates the fitted polynomials in the precision at hand."""

from __future__ import annotations

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import Lane, horner


def fitted(name: str, x: Lane, is_wide: bool, skip: int = 0) -> Lane:
    """The polynomial `name` at x, without its `skip` lowest terms: in f32, in f64, or in f64 good to f32 (`is_wide`).

    f32 without a fit of its own takes the wide one's coefficients, rounded.
    """
    key = (name, "wide" if is_wide else f"f{x.format.bits}")
    return horner(x, COEFFICIENTS[key if key in COEFFICIENTS else (name, "wide")][skip:])
