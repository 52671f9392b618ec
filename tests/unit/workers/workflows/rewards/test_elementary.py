"""Elementary functions agree with the standard library, hold their laws, and end where they have no value."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import pytest

from rftd.workers.workflows.rewards.arithmetic import PRECISION, Undefined, as_decimal, same_value
from rftd.workers.workflows.rewards.elementary import PI, binomial_of, factorial_of, value_at
from rftd.workers.workflows.rewards.expression import same_equation, same_expression

REFERENCES = {
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "exp": math.exp,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_those_of_the_standard_library(name: str) -> None:
    with decimal.localcontext(PRECISION):
        for number in range(-40, 41):
            argument = Fraction(number, 7)
            expected = REFERENCES[name](float(argument))
            assert float(as_decimal(value_at(name, argument))) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_sines_and_cosines_keep_their_digits_far_out() -> None:
    with decimal.localcontext(PRECISION):
        for number in range(0, 9999, 333):
            sine = as_decimal(value_at("sin", Fraction(number)))
            cosine = as_decimal(value_at("cos", Fraction(number)))
            assert same_value(sine**2 + cosine**2, Decimal(1))
        assert value_at("sin", PI) == 0


@pytest.mark.parametrize(
    ("name", "argument"),
    [("ln", 0), ("log", -1), ("tan", PRECISION.divide(PI, Decimal(2))), ("exp", 10**6), ("cot", 0), ("exp", 9999 * PI)],
)
def test_there_is_no_value_outside_the_domain(name: str, argument: int | Decimal) -> None:
    with decimal.localcontext(PRECISION), pytest.raises(Undefined):
        value_at(name, Fraction(argument) if isinstance(argument, int) else argument)


def test_small_factorials_and_binomials_are_exact_and_others_stand_for_themselves() -> None:
    with decimal.localcontext(PRECISION):
        assert factorial_of(Fraction(5)) == 120
        assert binomial_of(Fraction(5), Fraction(2)) == 10
        assert factorial_of(Fraction(10**6)) == factorial_of(Fraction(10**6)) != factorial_of(Fraction(10**6 + 1))
        assert binomial_of(Fraction(1, 2), Fraction(2)) != binomial_of(Fraction(2), Fraction(1, 2))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("\\cos(\\pi/3)", "1/2", True),
        ("\\log 4", "2\\log 2", True),
        ("\\log 100", "2", False),
        ("\\log_2 8", "\\log_3 27", True),
        ("\\ln e", "1", True),
        ("\\sin 2x", "2\\sin x\\cos x", True),
        ("\\sin 2x", "2\\sin x", False),
        ("\\tan x", "\\frac{\\sin x}{\\cos x}", True),
        ("\\ln x^2", "\\ln x", False),
        ("\\arctan x", "\\arcsin x", False),
        ("e", "2.718281828459045", False),
        ("\\pi", "3.141592653589793", False),
        ("n!", "n", False),
        ("3!!", "720", True),
    ],
)
def test_expressions_with_functions(left: str, right: str, same: bool) -> None:
    assert same_expression(left, right) is same


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("2y = 6x - 4", "y = 3x - 2", True),
        ("2x = 8", "x = 4", False),
        ("x = y", "x - y = 0", True),
        ("x = x", "x = y", False),
        ("x = y", "x = x", False),
        ("xy = y", "x = y", False),
        ("x^2 = y^2", "x = y", False),
        ("y = 3x", "y = 3x - 2", False),
        ("y = 3x = 2", "y = 3x", False),
    ],
)
def test_equations_of_several_variables(answer: str, truth: str, same: bool) -> None:
    assert same_equation(answer, truth) is same
