"""Computes `coefficients.py`: `python -m mlc.dialects.vecmath.fit` (needs mpmath).

Each row interpolates its function at Chebyshev nodes in 80-digit arithmetic, which is within a small factor of the best
polynomial in the maximum norm, then rounds every coefficient to the format it is used in. Leading terms that must be
exact (1, r, r/2) are not fitted: the rows fit what remains after them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 80


@dataclass(frozen=True)
class Row:
    """One polynomial: `function` on [low, high]; `degrees` by name of the precision it is for."""

    name: str
    function: Callable[[mp.mpf], mp.mpf]
    low: float
    high: float
    degrees: dict[str, int]
    pinned: tuple[float, ...] = ()  # the lowest coefficients, where an exact value is worth more than the best fit
    pairs: int = 0  # how many of the lowest coefficients precision "pair" keeps as sums of two numbers

    def fit(self, degree: int) -> list[mp.mpf]:
        """Coefficients, lowest first."""
        count = len(self.pinned)

        def rest(x: mp.mpf) -> mp.mpf:
            return (self.function(x) - mp.polyval(list(reversed(self.pinned)), x)) / x**count

        return [
            *map(mp.mpf, self.pinned),
            *interpolate(rest if count else self.function, self.low, self.high, degree - count),
        ]


def interpolate(function: Callable[[mp.mpf], mp.mpf], low: float, high: float, degree: int) -> list[mp.mpf]:
    """Power-basis coefficients, lowest first, of the interpolant at the Chebyshev nodes of [low, high]."""
    lo, hi, count = mp.mpf(low), mp.mpf(high), degree + 1
    nodes = [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    table = [mp.mpf(function(x)) for x in nodes]
    for level in range(1, count):  # Newton's divided differences
        for k in range(count - 1, level - 1, -1):
            table[k] = (table[k] - table[k - 1]) / (nodes[k] - nodes[k - level])
    powers = [table[-1]]
    for k in range(count - 2, -1, -1):  # powers * (x - node) + table[k]
        shifted = [mp.mpf(0), *powers]
        for i, c in enumerate(powers):
            shifted[i] -= nodes[k] * c
        shifted[0] += table[k]
        powers = shifted
    return powers


def rounded(value: mp.mpf, precision: str) -> float:
    """The value in the format that `precision` names: "f32" is single, the others double."""
    return float(np.float32(float(value))) if precision == "f32" else float(value)


def error_of(row: Row, coefficients: list[mp.mpf]) -> float:
    """The largest relative error on 101 points, as a power of two."""
    worst = mp.mpf(0)
    for k in range(101):
        x = mp.mpf(row.low) + (mp.mpf(row.high) - row.low) * (k + mp.mpf(1) / 3) / 101
        truth = row.function(x)
        worst = max(worst, abs(mp.polyval(list(reversed(coefficients)), x) / truth - 1))
    return float(mp.log(worst, 2)) if worst else -999.0


def _entry(name: str, precision: str, coefficients: list[float]) -> list[str]:
    """The lines of one entry of the table."""
    text = ", ".join(map(repr, coefficients)) + ("," if len(coefficients) == 1 else "")
    body = textwrap.wrap(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [f'    ("{name}", "{precision}"): (', *body, "    ),"]


def main() -> None:
    """Writes the module, once all of it is computed, and lists the errors."""
    from mlc.dialects.vecmath.fit_rows import ROWS

    lines = ['"""Polynomial coefficients, lowest power first, as `fit.py` computed them. Do not edit."""', ""]
    lines.append("# fmt: off")
    lines.append("COEFFICIENTS: dict[tuple[str, str], tuple[float, ...]] = {")
    for row in ROWS:
        for precision, degree in row.degrees.items():
            exact = row.fit(degree)
            highs = [rounded(c, precision) for c in exact]
            pairs = row.pairs if precision == "pair" else 0
            lows = [float(c - mp.mpf(high)) for c, high in zip(exact[:pairs], highs, strict=False)]
            error = error_of(row, [mp.mpf(h) + low for h, low in zip(highs, lows + [0.0] * len(highs), strict=False)])
            lines.append(f"    # relative error 2**{error:.1f} on [{row.low:.6g}, {row.high:.6g}]")
            lines += _entry(row.name, precision, highs)
            if pairs:
                lines += _entry(row.name, "pair_low", lows)
            print(row.name, precision, f"2**{error:.1f}")
    Path(__file__).with_name("coefficients.py").write_text("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    main()
