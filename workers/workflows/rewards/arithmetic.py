"""Bounded arithmetic: exact while values are rational, with 60 digits where roots are not."""

from __future__ import annotations

import decimal
import hashlib
from decimal import Decimal
from fractions import Fraction
from typing import Final

EXPONENT: Final = 256
"""Larger exponents, and higher roots, give no value."""
BITS: Final = 4096
"""Larger numbers are no values."""
PRECISION: Final = decimal.Context(prec=60, Emax=9999, Emin=-9999, traps=[decimal.InvalidOperation, decimal.Overflow])
"""The context that everything here is to be called in."""
_CLOSE: Final = Decimal("1e-45")

Number = Fraction | Decimal


class Undefined(Exception):
    """There is no value, or only one beyond the bounds."""


def same_value(left: Number, right: Number) -> bool:
    """True if two values are equal, or their first 45 digits if one is a root."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    with decimal.localcontext(PRECISION):
        near = as_decimal(left)
        far = as_decimal(right)
        return abs(near - far) <= _CLOSE * max(abs(near), abs(far))


def opaque(text: str) -> Fraction:
    """A value between 0 and 1 that stands for what a text names, and for nothing else."""
    digest = hashlib.sha256(text.encode()).digest()
    return Fraction(int.from_bytes(digest[:8], "big") + 1, 2**64)


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() > BITS or value.denominator.bit_length() > BITS:
            raise Undefined
    elif not value.is_finite():
        raise Undefined
    return value


def as_decimal(value: Number) -> Decimal:
    """The value with 60 digits."""
    if isinstance(value, Decimal):
        return value
    return Decimal(value.numerator) / Decimal(value.denominator)


def total(left: Number, right: Number) -> Number:
    """The sum. Raises Undefined beyond the bounds."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _bounded(left + right)
    return _guarded("+", left, right)


def product(left: Number, right: Number) -> Number:
    """The product. Raises Undefined beyond the bounds."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _bounded(left * right)
    return _guarded("*", left, right)


def inverse(value: Number) -> Number:
    """The reciprocal of the value. Raises Undefined for 0."""
    if not value:
        raise Undefined
    return 1 / value


def _guarded(sign: str, left: Number, right: Number) -> Number:
    near = as_decimal(left)
    far = as_decimal(right)
    try:
        if sign == "+":
            value = near + far
            # What is left of two equal roots is nothing, not the last digit of their difference.
            return Decimal(0) if abs(value) <= _CLOSE * max(abs(near), abs(far)) else value
        return _bounded(near * far if sign == "*" else near**far)
    except decimal.DecimalException as error:
        raise Undefined from error


def raised(base: Number, power: Number) -> Number:
    """The power. Raises Undefined where there is no real one, or beyond the bounds."""
    if isinstance(power, Fraction) and power.denominator == 1:
        times = power.numerator
        if abs(times) > EXPONENT or (not base and times <= 0):
            raise Undefined
        if isinstance(base, Fraction):
            size = max(base.numerator.bit_length(), base.denominator.bit_length())
            # Before the power is computed: what a model wrote may be 9^9^9.
            if size * abs(times) > BITS:
                raise Undefined
            return Fraction(base**times)
        return _guarded("^", base, power)
    if isinstance(power, Fraction) and power.numerator in (1, -1):
        root = rooted(base, Fraction(power.denominator))
        return root if power.numerator == 1 else inverse(root)
    if base <= 0 or not -EXPONENT <= power <= EXPONENT:
        raise Undefined
    return _guarded("^", base, power)


def rooted(value: Number, index: Number) -> Number:
    """The real root, exact if it is rational. Raises Undefined if there is none, or the index is not 2 or more."""
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= EXPONENT:
        raise Undefined
    odd = index.numerator % 2 == 1
    if value < 0:
        if not odd:
            raise Undefined
        return -rooted(-value, index)
    if not value:
        return Fraction(0)
    if isinstance(value, Fraction):
        top = _whole_root(value.numerator, index.numerator)
        bottom = _whole_root(value.denominator, index.numerator)
        if top is not None and bottom is not None:
            return Fraction(top, bottom)
    return _guarded("^", value, Fraction(1, index.numerator))


def _whole_root(value: int, index: int) -> int | None:
    """The exact root of a positive whole number; None if it has none."""
    low = 1
    high = 1 << (value.bit_length() // index + 1)
    while low <= high:
        middle = (low + high) // 2
        power = int(middle**index)
        if power == value:
            return middle
        if power < value:
            low = middle + 1
        else:
            high = middle - 1
    return None
