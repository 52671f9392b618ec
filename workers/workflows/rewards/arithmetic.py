"""Bounded arithmetic: exact while values are rational, with 60 digits where roots are not."""

from __future__ import annotations

import decimal
import hashlib
from decimal import Decimal
from fractions import Fraction
from typing import Final

EXPONENT: Final = 256
"""Largest exponent, and largest index of a root; beyond, a value is undefined."""
BITS: Final = 4096
"""Largest size of numerator and denominator in bits; beyond, a value is undefined."""
PRECISION: Final = decimal.Context(prec=60, Emax=9999, Emin=-9999, traps=[decimal.InvalidOperation, decimal.Overflow])
"""Decimal context for all functions here."""
_CLOSE: Final = Decimal("1e-45")
"""Relative difference below which two decimals are equal."""

Number = Fraction | Decimal
"""An exact or a decimal number."""


class Undefined(Exception):
    """There is no real value, or none within the bounds on size."""


def same_value(left: Number, right: Number) -> bool:
    """True if two values are equal, or agree in their first 45 digits if either is a decimal."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    with decimal.localcontext(PRECISION):
        near = as_decimal(left)
        far = as_decimal(right)
        return abs(near - far) <= _CLOSE * max(abs(near), abs(far))


def opaque(text: str) -> Fraction:
    """Returns a fixed number between 0 and 1 for a name, different from other names' numbers."""
    digest = hashlib.sha256(text.encode()).digest()
    return Fraction(int.from_bytes(digest[:8], "big") + 1, 2**64)


def _checked_size(number: Number) -> Number:
    """Returns the number. Raises Undefined beyond the bounds."""
    if isinstance(number, Fraction):
        if number.numerator.bit_length() > BITS or number.denominator.bit_length() > BITS:
            raise Undefined
    elif not number.is_finite():
        raise Undefined
    return number


def as_decimal(number: Number) -> Decimal:
    """Returns the number with 60 digits."""
    if isinstance(number, Decimal):
        return number
    return Decimal(number.numerator) / Decimal(number.denominator)


def total(left: Number, right: Number) -> Number:
    """Returns the sum of two numbers. Raises Undefined beyond the bounds."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _checked_size(left + right)
    return _decimal_operation("+", left, right)


def product(left: Number, right: Number) -> Number:
    """Returns the product of two numbers. Raises Undefined beyond the bounds."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _checked_size(left * right)
    return _decimal_operation("*", left, right)


def inverse(number: Number) -> Number:
    """Returns the reciprocal. Raises Undefined for 0."""
    if not number:
        raise Undefined
    return 1 / number


def _decimal_operation(sign: str, left: Number, right: Number) -> Number:
    """Returns the sum, product or power of two numbers as decimals. Raises Undefined."""
    near = as_decimal(left)
    far = as_decimal(right)
    try:
        if sign == "+":
            summed = near + far
            # The difference of two equal roots is 0, not the last digit of their rounding errors.
            return Decimal(0) if abs(summed) <= _CLOSE * max(abs(near), abs(far)) else summed
        return _checked_size(near * far if sign == "*" else near**far)
    except decimal.DecimalException as error:
        raise Undefined from error


def raised(base: Number, power: Number) -> Number:
    """Returns `base` to the power `power`. Raises Undefined without a real power, or beyond the bounds."""
    if isinstance(power, Fraction) and power.denominator == 1:
        times = power.numerator
        if abs(times) > EXPONENT or (not base and times <= 0):
            raise Undefined
        if isinstance(base, Fraction):
            size = max(base.numerator.bit_length(), base.denominator.bit_length())
            # Checked before the power is computed: a model may write 9^9^9.
            if size * abs(times) > BITS:
                raise Undefined
            return Fraction(base**times)
        return _decimal_operation("^", base, power)
    if isinstance(power, Fraction) and power.numerator in (1, -1):
        root = rooted(base, Fraction(power.denominator))
        return root if power.numerator == 1 else inverse(root)
    if base <= 0 or not -EXPONENT <= power <= EXPONENT:
        raise Undefined
    return _decimal_operation("^", base, power)


def rooted(number: Number, index: Number) -> Number:
    """Returns the real root of the given index, exact if rational. Raises Undefined without one, or for an index other
    than 2, 3, ...
    """
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= EXPONENT:
        raise Undefined
    odd = index.numerator % 2 == 1
    if number < 0:
        if not odd:
            raise Undefined
        return -rooted(-number, index)
    if not number:
        return Fraction(0)
    if isinstance(number, Fraction):
        top = _whole_root(number.numerator, index.numerator)
        bottom = _whole_root(number.denominator, index.numerator)
        if top is not None and bottom is not None:
            return Fraction(top, bottom)
    return _decimal_operation("^", number, Fraction(1, index.numerator))


def _whole_root(number: int, index: int) -> int | None:
    """Returns the exact root of a positive whole number; None without one."""
    low = 1
    high = 1 << (number.bit_length() // index + 1)
    while low <= high:
        middle = (low + high) // 2
        power = int(middle**index)
        if power == number:
            return middle
        if power < number:
            low = middle + 1
        else:
            high = middle - 1
    return None
