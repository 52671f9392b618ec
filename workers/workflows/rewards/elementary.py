"""Elementary functions with 60 digits; uncomputed functions have opaque values depending on name and argument.

The power series are reduced to small arguments first, so a fixed number of terms suffices.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import comb, factorial
from typing import Final

from rftd.workers.workflows.rewards.arithmetic import Number, Undefined, as_decimal, inverse, opaque, product, total

PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")
"""The circle constant."""
EULER: Final = Decimal("2.71828182845904523536028747135266249775724709369995957496696762772407663035")
"""The base of natural logarithms."""
LARGEST: Final = 9999
"""Largest argument; larger ones have lost too many digits."""
COUNTED: Final = 64
"""Largest argument of factorials and binomials; larger ones have opaque values."""
_ZERO_BOUND: Final = Decimal("1e-50")
"""Absolute value below which a sine is 0."""


def value_at(name: str, inner: Number, base: Number | None = None) -> Number:
    """Returns the value of the function `name` at `inner`, of a logarithm to `base`; an opaque value for an uncomputed
    function.

    Raises Undefined without a real value.
    """
    if name in ("log", "ln", "lg"):
        return _logarithm(name, inner, base)
    if base is not None or name not in _COMPUTED:
        mark = "" if base is None else str(base)
        return opaque(f"{name} {mark} {as_decimal(inner):.40e}")
    argument = as_decimal(inner)
    if abs(argument) > LARGEST:
        raise Undefined
    try:
        return _COMPUTED[name](argument)
    except decimal.DecimalException as error:
        raise Undefined from error


def factorial_of(number: Number) -> Number:
    """Returns the factorial of a non-negative integer up to `COUNTED`; an opaque value for any other number."""
    if isinstance(number, Fraction) and number.denominator == 1 and 0 <= number <= COUNTED:
        return Fraction(factorial(number.numerator))
    return opaque(f"factorial {as_decimal(number):.40e}")


def binomial_of(top: Number, bottom: Number) -> Number:
    """Returns the binomial coefficient of integers up to `COUNTED`; an opaque value for other numbers."""
    whole = all(
        isinstance(number, Fraction) and number.denominator == 1 and 0 <= number <= COUNTED for number in (top, bottom)
    )
    if whole:
        return Fraction(comb(int(top), int(bottom)))
    return opaque(f"binomial {as_decimal(top):.40e} {as_decimal(bottom):.40e}")


def _logarithm(name: str, inner: Number, base: Number | None) -> Number:
    """Returns a logarithm; one without a base is opaque, except `ln`. Raises Undefined."""
    if inner <= 0 or (base is not None and (base <= 0 or base == 1)):
        raise Undefined
    natural = as_decimal(inner).ln()
    if base is not None:
        return product(natural, inverse(as_decimal(base).ln()))
    # A logarithm without a base obeys the laws of logarithms but has no known value: log 100 is 2 only in base 10.
    return natural if name == "ln" else product(natural, opaque(name))


def _sine(argument: Decimal) -> Decimal:
    """Returns the sine of an angle in radians."""
    turned = argument.remainder_near(2 * PI)
    # sin 3a = 3 sin a - 4 sin^3 a, five times: a is below 0.013 then, and 16 terms give 60 digits.
    small = turned / 243
    term = small
    sine = small
    for number in range(1, 16):
        term = -term * small * small / (2 * number * (2 * number + 1))
        sine += term
    for _ in range(5):
        sine = 3 * sine - 4 * sine**3
    return Decimal(0) if abs(sine) <= _ZERO_BOUND else sine


def _cosine(argument: Decimal) -> Decimal:
    """Returns the cosine of an angle in radians."""
    return _sine(argument + PI / 2)


def _quotient_of(
    top: Callable[[Decimal], Decimal], bottom: Callable[[Decimal], Decimal]
) -> Callable[[Decimal], Number]:
    """Returns the function dividing `top` by `bottom`."""
    return lambda argument: product(top(argument), inverse(bottom(argument)))


def _hyperbolic(sign: int) -> Callable[[Decimal], Decimal]:
    """Returns the hyperbolic sine (`sign` -1) or cosine (1)."""

    def value(argument: Decimal) -> Decimal:
        return as_decimal(total(argument.exp(), sign * (-argument).exp())) / 2

    return value


def _one(argument: Decimal) -> Decimal:
    """Returns 1 for every argument."""
    return Decimal(1)


_COMPUTED: Final[dict[str, Callable[[Decimal], Number]]] = {
    "sin": _sine,
    "cos": _cosine,
    "tan": _quotient_of(_sine, _cosine),
    "cot": _quotient_of(_cosine, _sine),
    "sec": _quotient_of(_one, _cosine),
    "csc": _quotient_of(_one, _sine),
    "sinh": _hyperbolic(-1),
    "cosh": _hyperbolic(1),
    "tanh": _quotient_of(_hyperbolic(-1), _hyperbolic(1)),
    "exp": Decimal.exp,
}
"""Computed functions by name."""
