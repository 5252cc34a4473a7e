"""Numbers kept as a sum of two, of about 104 bits in f64: what f64 functions are made of where one number would err.

Polynomials are evaluated in one number as far as their terms are small, and as pairs from there on.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.vecmath.coefficients import COEFFICIENTS
from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, horner, select, two_product, two_sum


@dataclass(frozen=True)
class Pair:
    """high + low, |low| at most a few ulps of `high`. Infinities do not survive arithmetic: select around it."""

    high: Lane
    low: Lane

    @staticmethod
    def of(high: Lane) -> Pair:
        """A single number."""
        return Pair(high, high.splat(0.0))

    @staticmethod
    def constant(parts: tuple[float, float], like: Lane) -> Pair:
        """The sum of two constants."""
        return Pair(like.splat(parts[0]), like.splat(parts[1]))

    def __neg__(self) -> Pair:
        return Pair(-self.high, -self.low)

    def __add__(self, other: Pair) -> Pair:
        total, lost = two_sum(self.high, other.high)
        return Pair(*fast_two_sum(total, lost + (self.low + other.low)))

    def __sub__(self, other: Pair) -> Pair:
        return self + -other

    def __mul__(self, other: Pair) -> Pair:
        product, lost = two_product(self.high, other.high)
        return Pair(*fast_two_sum(product, fma(self.high, other.low, fma(self.low, other.high, lost))))

    def __truediv__(self, other: Pair) -> Pair:
        inverse = 1.0 / other.high
        quotient = self.high * inverse
        rest = fma(-quotient, other.high, self.high) + fma(-quotient, other.low, self.low)
        return Pair(*fast_two_sum(quotient, rest * inverse))

    def scaled(self, factor: Lane | float) -> Pair:
        """This times a power of two."""
        return Pair(self.high * factor, self.low * factor)

    def signed(self, sign: Lane) -> Pair:
        """This, negated where the sign bit of the integer `sign` is set, whose other bits are 0."""
        return Pair((self.high.bits() ^ sign).as_float(), (self.low.bits() ^ sign).as_float())

    def rounded(self) -> Lane:
        """The nearest single number."""
        return self.high + self.low


def select_pair(condition: Lane, yes: Pair, no: Pair) -> Pair:
    """`yes` where `condition`, else `no`."""
    return Pair(select(condition, yes.high, no.high), select(condition, yes.low, no.low))


def fitted_pair(name: str, x: Pair) -> Pair:
    """The polynomial `name` of f64, its lowest terms as pairs."""
    highs, lows = COEFFICIENTS[name, "pair"], COEFFICIENTS[name, "pair_low"]
    total = Pair.of(horner(x.high, highs[len(lows) :]))
    for high, low in zip(reversed(highs[: len(lows)]), reversed(lows), strict=True):
        product, lost = two_product(total.high, x.high)
        lost = fma(total.high, x.low, fma(total.low, x.high, lost))
        upper, carried = two_sum(product, product.splat(high))
        total = Pair(upper, carried + (lost + low))
    return Pair(*fast_two_sum(total.high, total.low))
