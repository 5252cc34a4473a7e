"""The remainder of a large number by pi/2, exact to its format: Payne and Hanek's method in 32-bit limbs.

x = M 2**E with an integer M of 53 (f64) or 24 bits. Of x * 2/pi only the bits below 4 matter, so a window of 192 bits
of 2/pi that starts where its product with M 2**E falls below 8 is enough; the window is chosen a lane by selects, as
gathers are slow or absent. Limbs lie in 64-bit lanes, which hold their products.
Source: Payne & Hanek 1983, "Radian reduction for trigonometric functions".
"""

from __future__ import annotations

from mlc.dialects.vecmath.lanes import Lane, fast_two_sum, fma, parts, select, two_product, two_sum

# The first 1216 bits of 2/pi: floor(2/pi * 2**1216).
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424d"
    "d2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639"
    "835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f46"
    "3f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab",
    16,
)
TWO_OVER_PI_BITS = 1216
LEAD_BITS = 64  # zeros put before them, so that the window never starts before the first word
LIMBS = 6
LOW_HALF = (1 << 32) - 1
HALF_PI = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))


def _words(count: int) -> list[int]:
    """The first `count` 32-bit words of 64 zeros and the bits of 2/pi."""
    total = TWO_OVER_PI_BITS + LEAD_BITS
    return [(TWO_OVER_PI >> (total - 32 * (k + 1))) & LOW_HALF for k in range(count)]


def _window(start: Lane, last_start: int) -> list[Lane]:
    """The `LIMBS` 32-bit limbs from bit `start` of the words on, most significant first."""
    needed = LIMBS + 1
    word_count = (last_start >> 5) + needed
    words = [start.splat(word) for word in _words(word_count)]
    index = start >> 5
    for level in reversed(range((last_start >> 5).bit_length())):
        step = 1 << level
        is_set = (index & step).differs(0)
        reach = min(needed + step - 1, len(words))
        words = [select(is_set, words[k + step], words[k]) if k + step < len(words) else words[k] for k in range(reach)]
    drop = 32 - (start & 31)
    return [((words[k] << 32) | words[k + 1]).shift_right_zero(drop) & LOW_HALF for k in range(LIMBS)]


def _product(mantissa: Lane, window: list[Lane]) -> list[Lane]:
    """The low 192 bits of mantissa * window as 32-bit limbs, least significant first."""
    halves = (mantissa & LOW_HALF, mantissa.shift_right_zero(32))
    columns: list[list[Lane]] = [[] for _ in range(LIMBS + 2)]
    for k, limb in enumerate(reversed(window)):
        for place, half in enumerate(halves):
            product = half * limb
            columns[k + place].append(product & LOW_HALF)
            columns[k + place + 1].append(product.shift_right_zero(32))
    limbs = []
    carry = mantissa.splat(0)
    for column in columns[:LIMBS]:
        for term in column:
            carry = carry + term
        limbs.append(carry & LOW_HALF)
        carry = carry.shift_right_zero(32)
    return limbs


def _as_floats(upper: Lane, lower: Lane, x: Lane) -> tuple[Lane, Lane]:
    """The signed 128-bit integer upper, lower over 2**128 as a sum of two floats of the format of x."""
    width = x.format.mantissa_bits + 1
    total, lost = x.splat(0.0), x.splat(0.0)
    left = 64
    while left:  # pieces so short that they convert without rounding
        left = max(left - width, 0)
        piece = upper >> left if left + width == 64 else upper.shift_right_zero(left) & ((1 << min(width, 64)) - 1)
        if left == 0 and 64 % width:
            piece = upper & ((1 << 64 % width) - 1)
        total, carried = two_sum(total, piece.to_float(x) * 2.0 ** (left - 64))
        lost = lost + carried
    total, carried = two_sum(total, lower.shift_right_zero(65 - width).to_float(x) * 2.0 ** (-64 - width + 1))
    return fast_two_sum(total, lost + carried)


def reduce_huge(x: Lane, largest_exponent: int) -> tuple[Lane, Lane, Lane]:
    """(quadrant, high, low): x = n pi/2 + high + low with n in the low two bits of `quadrant`; NaN for inf.

    For 2**12 <= |x| < 2**largest_exponent; lanes outside get an unspecified number.
    """
    fraction, bias = x.format.mantissa_bits, x.format.bias
    bits = x.abs().bits().int_cast(64)
    mantissa = (bits & ((1 << fraction) - 1)) | (1 << fraction)
    lead = LEAD_BITS - 2 - fraction - bias
    last_start = largest_exponent - 1 + bias + lead
    start = (bits >> fraction) + lead
    start = select(start < 0, 0, select(start > last_start, last_start, start))
    _, next_low, middle, next_middle, next_top, top = _product(mantissa, _window(start, last_start))
    quadrant = top >> 30
    upper = ((top << 34) | (next_top << 2)) | (next_middle >> 30)
    lower = ((next_middle << 34) | (middle << 2)) | (next_low >> 30)
    # As a signed number the fraction lies in [-1/2, 1/2): the quadrant rounds to nearest.
    quadrant = quadrant + upper.shift_right_zero(63)
    total, lost = _as_floats(upper, lower, x)
    half_pi = parts(*HALF_PI, x)
    high, product_lost = two_product(total, half_pi[0])
    high, carried = fast_two_sum(high, fma(total, half_pi[1], fma(lost, half_pi[0], product_lost)))
    is_negative = x < 0.0
    sign = x.bits() & x.splat(-0.0).bits()
    high = (high.bits() ^ sign).as_float() + x * 0.0  # NaN for inf
    quadrant = select(is_negative, 0 - quadrant, quadrant).int_cast(x.format.bits)
    return quadrant, high, (carried.bits() ^ sign).as_float()
