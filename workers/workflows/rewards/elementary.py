"""Elementary functions with 60 digits, and those that have no value here as what they are of.

The power series are reduced to small arguments first, so that a fixed number of terms suffices.
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
EULER: Final = Decimal("2.71828182845904523536028747135266249775724709369995957496696762772407663035")
LARGEST: Final = 9999
"""Arguments beyond it have lost too many digits."""
COUNTED: Final = 64
"""Factorials and binomials of larger numbers are no values."""
_NOTHING: Final = Decimal("1e-50")


def value_at(name: str, inner: Number, base: Number | None = None) -> Number:
    """The value of a function, whose logarithm's base may be given; what is not computed stands for itself.

    Raises Undefined where there is no real value.
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


def factorial_of(value: Number) -> Number:
    """The factorial of a small whole number; of anything else what stands for it."""
    if isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= COUNTED:
        return Fraction(factorial(value.numerator))
    return opaque(f"factorial {as_decimal(value):.40e}")


def binomial_of(top: Number, bottom: Number) -> Number:
    """The binomial coefficient of small whole numbers; of anything else what stands for it."""
    whole = all(
        isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= COUNTED for value in (top, bottom)
    )
    if whole:
        return Fraction(comb(int(top), int(bottom)))
    return opaque(f"binomial {as_decimal(top):.40e} {as_decimal(bottom):.40e}")


def _logarithm(name: str, inner: Number, base: Number | None) -> Number:
    if inner <= 0 or (base is not None and (base <= 0 or base == 1)):
        raise Undefined
    value = as_decimal(inner).ln()
    if base is not None:
        return product(value, inverse(as_decimal(base).ln()))
    # Of a logarithm that names no base its laws hold, and no value is known: it is 2 of 100 to some only.
    return value if name == "ln" else product(value, opaque(name))


def _sine(argument: Decimal) -> Decimal:
    turned = argument.remainder_near(2 * PI)
    # sin 3a = 3 sin a - 4 sin^3 a, five times: a is below 0.013 then, and 16 terms have 60 digits.
    small = turned / 243
    term = small
    value = small
    for number in range(1, 16):
        term = -term * small * small / (2 * number * (2 * number + 1))
        value += term
    for _ in range(5):
        value = 3 * value - 4 * value**3
    return Decimal(0) if abs(value) <= _NOTHING else value


def _cosine(argument: Decimal) -> Decimal:
    return _sine(argument + PI / 2)


def _over(top: Callable[[Decimal], Decimal], bottom: Callable[[Decimal], Decimal]) -> Callable[[Decimal], Number]:
    return lambda argument: product(top(argument), inverse(bottom(argument)))


def _hyperbolic(sign: int) -> Callable[[Decimal], Decimal]:
    def value(argument: Decimal) -> Decimal:
        return as_decimal(total(argument.exp(), sign * (-argument).exp())) / 2

    return value


def _one(argument: Decimal) -> Decimal:
    return Decimal(1)


_COMPUTED: Final[dict[str, Callable[[Decimal], Number]]] = {
    "sin": _sine,
    "cos": _cosine,
    "tan": _over(_sine, _cosine),
    "cot": _over(_cosine, _sine),
    "sec": _over(_one, _cosine),
    "csc": _over(_one, _sine),
    "sinh": _hyperbolic(-1),
    "cosh": _hyperbolic(1),
    "tanh": _over(_hyperbolic(-1), _hyperbolic(1)),
    "exp": Decimal.exp,
}
