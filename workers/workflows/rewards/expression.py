r"""Expressions with variables, compared by value: 2x+2 = 2(x+1), \frac{\sqrt{2}}{2} = \frac{1}{\sqrt{2}}.

Two expressions count as equal if their values agree, or are both undefined, at several fixed points (polynomial
identity testing: Schwartz, Journal of the ACM 27(4), 1980). Rational arithmetic is exact; roots, pi, e and functions
such as sin have 60 digits. Nothing is evaluated as code; the length, the depth and the size of every number are
bounded, and unreadable text is not an expression.
"""

from __future__ import annotations

import decimal
import hashlib
import re
from fractions import Fraction
from typing import Final

from rftd.workers.workflows.rewards.arithmetic import (
    PRECISION,
    Number,
    Undefined,
    inverse,
    product,
    raised,
    rooted,
    same_value,
    total,
)
from rftd.workers.workflows.rewards.elementary import EULER, PI, binomial_of, factorial_of, value_at

EXPRESSION_CHARS: Final = 256
"""Maximum characters of an expression; longer texts are unreadable."""
POINTS: Final = 5
"""Number of points for comparing expressions; variables are negative at some of them."""
DEPTH: Final = 24
"""Maximum nesting of an expression."""
_TOKEN: Final = re.compile(
    r" *(?:(?P<number>[0-9]{1,64}(?:\.[0-9]{1,64})?|\.[0-9]{1,64})|(?P<command>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)"
    r"|(?P<sign>[-+*/^_(){}\[\]|!π√]))"
)
"""One token: number, command, word or sign."""
_FUNCTIONS: Final = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "lg",
        "exp",
    ]
)
"""Names of functions."""
_LETTERS: Final = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "theta",
        "lambda",
        "mu",
        "nu",
        "pi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "varphi",
        "omega",
        "infty",
    ]
)
"""Names of commands that are read like letters: Greek letters, and infinity."""
_CONSTANTS: Final = {"pi": PI, "e": EULER}
"""Values of constants."""
_TIMES: Final = frozenset({"*", "\\times", "\\cdot"})
"""Signs of multiplication."""
_OPENING: Final = {"(": ")", "{": "}", "[": "]"}
"""Closing bracket of each opening one."""
_SHOWS_MATHEMATICS: Final = re.compile(r"[-+*/^0-9]|\\[a-z]")
"""A character making a text an expression."""
_NORMAL: Final = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\dbinom", "\\binom"),
    ("\\tbinom", "\\binom"),
    ("\\div", "/"),
    ("**", "^"),
    ("×", "*"),
    ("·", "*"),
    ("²", "^{2}"),
    ("³", "^{3}"),
    ("\\lvert", "|"),
    ("\\rvert", "|"),
)
"""Spellings with equal meaning, each with its normal form."""


class Unreadable(Exception):
    """The text is not an expression readable by this grammar, or exceeds its bounds."""


def same_expression(left: str, right: str) -> bool:
    """True if two plain texts are expressions of equal value everywhere; False also if either is unreadable."""
    compared = False
    try:
        ours = _tokens_of(left)
        theirs = _tokens_of(right)
        for point in range(POINTS):
            same = _is_equal_at(ours, theirs, point)
            if same is False:
                return False
            compared = compared or same is True
    except Unreadable:
        return False
    return compared


def same_equation(left: str, right: str) -> bool:
    """True if two plain equations are equivalent; each has two sides, and the second has several variables.

    The differences of their sides are then multiples of each other by one number: 3x - y = 2 is y = 3x - 2.
    """
    compared = 0
    factor: Number | None = None
    try:
        ours = _difference_tokens(left)
        theirs = _difference_tokens(right)
        if len(_variables(theirs)) < 2:
            # x = 4 is a solution; 2x = 8 is not solved yet.
            return False
        for point in range(POINTS):
            near = _value_at_point(ours, point)
            far = _value_at_point(theirs, point)
            if near is None or far is None or not far:
                if (near is None) != (far is None) or (far is not None and near != far):
                    return False
                continue
            with decimal.localcontext(PRECISION):
                ratio = product(near, inverse(far))
            if not ratio or (factor is not None and not same_value(ratio, factor)):
                return False
            factor = ratio
            compared += 1
    except (Unreadable, Undefined):
        return False
    # At a single point any two expressions have a common factor.
    return compared > 2


def value_of(text: str) -> Fraction | None:
    """Returns the exact value of plain arithmetic without variables; None for other texts."""
    try:
        tokens = _tokens_of(text)
        if _variables(tokens):
            return None
        with decimal.localcontext(PRECISION):
            number = _ExpressionReader(tokens, 0).whole()
    except (Unreadable, Undefined):
        return None
    return number if isinstance(number, Fraction) else None


def _difference_tokens(equation: str) -> list[str]:
    """Returns the tokens of left minus right side. Raises Unreadable."""
    sides = equation.split("=")
    if len(sides) != 2:
        raise Unreadable
    return ["(", *_tokens_of(sides[0]), ")", "-", "(", *_tokens_of(sides[1]), ")"]


def _variables(tokens: list[str]) -> set[str]:
    """Returns the letters among tokens: variables, and the constants pi and e."""
    return {token for token in tokens if token[0].isalpha() or token[1:] in _LETTERS}


def _is_equal_at(ours: list[str], theirs: list[str], point: int) -> bool | None:
    """True if both values are equal at a point; None if neither has a value there."""
    our_value = _value_at_point(ours, point)
    their_value = _value_at_point(theirs, point)
    if our_value is None or their_value is None:
        return None if our_value is their_value else False
    return same_value(our_value, their_value)


def _value_at_point(tokens: list[str], point: int) -> Number | None:
    """Returns the value at a point; None if undefined."""
    try:
        with decimal.localcontext(PRECISION):
            return _ExpressionReader(tokens, point).whole()
    except Undefined:
        return None


def _tokens_of(text: str) -> list[str]:
    """Splits a text into tokens. Raises Unreadable."""
    if len(text) > EXPRESSION_CHARS:
        raise Unreadable
    for spelling, normal in _NORMAL:
        text = text.replace(spelling, normal)
    splits = _SHOWS_MATHEMATICS.search(text) is not None
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable
        at = match.end()
        token = match[0].strip()
        if match["word"] and token in _FUNCTIONS | {"sqrt", "pi"}:
            tokens.append("\\" + token)
        elif match["word"] and len(token) > 1:
            # `2ab` is a product; a word is not, because its value must change with the order of its letters.
            if not splits or len(token) > 3:
                raise Unreadable
            tokens.extend(token)
        else:
            tokens.append({"π": "\\pi", "√": "\\sqrt"}.get(token, token))
    if not tokens:
        raise Unreadable
    return tokens


class _ExpressionReader:
    """Reads tokens by recursive descent and computes their value at a point on the way."""

    def __init__(self, tokens: list[str], point: int) -> None:
        """`point` is the number of the point that gives variables their values."""
        self._tokens_of = tokens
        self._point = point
        self._value_at_point = 0
        self._depth = 0

    def whole(self) -> Number:
        """Returns the value of all tokens. Raises Unreadable, Undefined."""
        number = self._sum()
        if self._value_at_point < len(self._tokens_of):
            raise Unreadable
        return number

    def _next(self) -> str:
        """Returns the next token; empty at the end."""
        return self._tokens_of[self._value_at_point] if self._value_at_point < len(self._tokens_of) else ""

    def _take(self, expected: str = "") -> str:
        """Returns the next token and moves behind it. Raises Unreadable unless it is the `expected` one."""
        token = self._next()
        if not token or (expected and token != expected):
            raise Unreadable
        self._value_at_point += 1
        return token

    def _sum(self) -> Number:
        """Reads a sum."""
        self._depth += 1
        if self._depth > DEPTH:
            raise Unreadable
        number = product(self._sign(), self._term())
        while self._next() in ("+", "-"):
            sign = self._sign()
            number = total(number, product(sign, self._term()))
        self._depth -= 1
        return number

    def _sign(self) -> Fraction:
        """Reads a sign: 1 or -1; 1 without one."""
        if self._next() not in ("+", "-"):
            return Fraction(1)
        return Fraction(-1 if self._take() == "-" else 1)

    def _term(self) -> Number:
        """Reads a product or quotient."""
        number = self._power()
        divided = False
        while True:
            if self._next() in _TIMES:
                self._take()
                number = product(number, self._power())
                divided = False
            elif self._next() == "/":
                self._take()
                number = product(number, inverse(self._power()))
                divided = True
            elif self._next() and (self._next()[0].isalpha() or self._next()[0] in "\\({"):
                # 1/2x is ambiguous: half of x, or the inverse of 2x.
                if divided:
                    raise Unreadable
                number = product(number, self._power())
            else:
                return number

    def _power(self) -> Number:
        """Reads a power."""
        base = self._counted()
        if self._next() != "^":
            return base
        self._take()
        sign = self._sign()
        return raised(base, product(sign, self._counted()))

    def _counted(self) -> Number:
        """Reads a number with factorials."""
        number = self._base()
        while self._next() == "!":
            self._take()
            number = factorial_of(number)
        return number

    def _base(self) -> Number:
        symbol = self._take()
        if symbol[0].isdigit() or symbol[0] == ".":
            return Fraction(symbol)
        if symbol in _OPENING:
            number = self._sum()
            self._take(_OPENING[symbol])
            return number
        if symbol == "|":
            number = self._sum()
            self._take("|")
            return number if number >= 0 else -number
        if symbol == "\\frac":
            top = self._argument()
            return product(top, inverse(self._argument()))
        if symbol == "\\binom":
            chosen_from = self._argument()
            return binomial_of(chosen_from, self._argument())
        if symbol == "\\sqrt":
            return self._root()
        name = symbol.removeprefix("\\")
        if symbol[0] == "\\" and name in _FUNCTIONS:
            return self._function(name)
        if symbol.isalpha() or name in _LETTERS:
            return self._variable(name)
        raise Unreadable

    def _argument(self) -> Number:
        r"""Reads a group, or one digit of the following token: `\frac12` is a half."""
        token = self._next()
        if token.isdigit() and len(token) > 1:
            self._tokens_of = [
                *self._tokens_of[: self._value_at_point],
                token[0],
                token[1:],
                *self._tokens_of[self._value_at_point + 1 :],
            ]
        return self._base()

    def _root(self) -> Number:
        """Reads a root with its index."""
        index: Number = Fraction(2)
        if self._next() == "[":
            self._take()
            index = self._sum()
            self._take("]")
        return rooted(self._argument(), index)

    def _function(self, name: str) -> Number:
        """Reads a function with base, power and argument."""
        base: Number | None = None
        power: Number = Fraction(1)
        if self._next() == "_":
            self._take()
            base = self._argument()
        if self._next() == "^":
            self._take()
            power = self._argument()
        if power < 0:
            # Ambiguous: an inverse function, or an inverse value.
            raise Unreadable
        bracketed = self._next() in _OPENING
        inner = self._base()
        if not bracketed:
            # sin 2x is the sine of 2x; sin x cos x is a product.
            while self._next() and (self._next().isalpha() or self._next()[1:] in _LETTERS):
                inner = product(inner, self._base())
            if self._next() == "^":
                raise Unreadable
        return raised(value_at(name, inner, base), power)

    def _variable(self, name: str) -> Number:
        """Returns the value of a constant, or of a variable at the point."""
        if name in _CONSTANTS and self._next() != "_":
            return _CONSTANTS[name]
        if self._next() == "_":
            self._take()
            if self._next() == "{":
                self._take()
                name += "_" + self._take()
                self._take("}")
            else:
                name += "_" + self._take()
        digest = hashlib.sha256(f"{name} {self._point}".encode()).digest()
        magnitude = Fraction(
            int.from_bytes(digest[:4], "big") % 9973 + 2, int.from_bytes(digest[4:6], "big") % 997 + 97
        )
        # All positive where roots have values, all negative to expose the root of a square, else mixed.
        negative = self._point == 2 or (self._point > 2 and digest[6] % 2 == 1)
        return -magnitude if negative else magnitude
