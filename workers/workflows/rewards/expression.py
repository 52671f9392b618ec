"""Expressions with variables, compared by value: 2x+2 = 2(x+1), \\frac{\\sqrt{2}}{2} = \\frac{1}{\\sqrt{2}}.

Two expressions are held to be one if they have the same value, or none, wherever some fixed points put their variables
(polynomial identity testing: Schwartz, Journal of the ACM 27(4), 1980). Rational arithmetic is exact; roots, pi, e and
functions such as sin have 60 digits. Nothing is evaluated as code; the length, the depth and the size of every number
are bounded, and what cannot be read is no expression.
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
"""Longer texts are no expressions."""
POINTS: Final = 5
"""The number of points at which expressions are compared; variables are negative at some of them."""
DEPTH: Final = 24
_TOKEN: Final = re.compile(
    r" *(?:(?P<number>[0-9]{1,64}(?:\.[0-9]{1,64})?|\.[0-9]{1,64})|(?P<command>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)"
    r"|(?P<sign>[-+*/^_(){}\[\]|!π√]))"
)
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
_CONSTANTS: Final = {"pi": PI, "e": EULER}
_TIMES: Final = frozenset({"*", "\\times", "\\cdot"})
_OPENING: Final = {"(": ")", "{": "}", "[": "]"}
_SHOWS_MATHEMATICS: Final = re.compile(r"[-+*/^0-9]|\\[a-z]")
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


class Unreadable(Exception):
    """The text is no expression that is read here."""


def same_expression(left: str, right: str) -> bool:
    """True if two plain texts are expressions of the same value everywhere; False also where one cannot be read."""
    known = False
    try:
        ours = _tokens(left)
        theirs = _tokens(right)
        for point in range(POINTS):
            same = _same_at(ours, theirs, point)
            if same is False:
                return False
            known = known or same is True
    except Unreadable:
        return False
    return known


def same_equation(left: str, right: str) -> bool:
    """True if two plain equations, each of two sides and the second of several variables, say the same.

    Their differences of sides are then multiples of each other by one number: 3x - y = 2 is y = 3x - 2.
    """
    known = 0
    factor: Number | None = None
    try:
        ours = _difference(left)
        theirs = _difference(right)
        if len(_variables(theirs)) < 2:
            # x = 4 is a solution, and 2x = 8 is none yet.
            return False
        for point in range(POINTS):
            near = _at(ours, point)
            far = _at(theirs, point)
            if near is None or far is None or not far:
                if (near is None) != (far is None) or (far is not None and near != far):
                    return False
                continue
            with decimal.localcontext(PRECISION):
                ratio = product(near, inverse(far))
            if not ratio or (factor is not None and not same_value(ratio, factor)):
                return False
            factor = ratio
            known += 1
    except (Unreadable, Undefined):
        return False
    # Any two have one factor at one point.
    return known > 2


def value_of(text: str) -> Fraction | None:
    """The exact value of a plain text that is arithmetic without variables; None for any other."""
    try:
        tokens = _tokens(text)
        if _variables(tokens):
            return None
        with decimal.localcontext(PRECISION):
            value = _Reader(tokens, 0).whole()
    except (Unreadable, Undefined):
        return None
    return value if isinstance(value, Fraction) else None


def _difference(equation: str) -> list[str]:
    sides = equation.split("=")
    if len(sides) != 2:
        raise Unreadable
    return ["(", *_tokens(sides[0]), ")", "-", "(", *_tokens(sides[1]), ")"]


def _variables(tokens: list[str]) -> set[str]:
    return {token for token in tokens if token[0].isalpha() or token[1:] in _LETTERS}


def _same_at(ours: list[str], theirs: list[str], point: int) -> bool | None:
    left = _at(ours, point)
    right = _at(theirs, point)
    if left is None or right is None:
        return None if left is right else False
    return same_value(left, right)


def _at(tokens: list[str], point: int) -> Number | None:
    try:
        with decimal.localcontext(PRECISION):
            return _Reader(tokens, point).whole()
    except Undefined:
        return None


def _tokens(text: str) -> list[str]:
    if len(text) > EXPRESSION_CHARS:
        raise Unreadable
    for written, normal in _NORMAL:
        text = text.replace(written, normal)
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
            # `2ab` is a product; a word is a word, and one with its letters in another order is another.
            if not splits or len(token) > 3:
                raise Unreadable
            tokens.extend(token)
        else:
            tokens.append({"π": "\\pi", "√": "\\sqrt"}.get(token, token))
    if not tokens:
        raise Unreadable
    return tokens


class _Reader:
    """Reads tokens by recursive descent and computes their value at a point on the way."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self._tokens = tokens
        self._point = point
        self._at = 0
        self._depth = 0

    def whole(self) -> Number:
        value = self._sum()
        if self._at < len(self._tokens):
            raise Unreadable
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._next()
        if not token or (wanted and token != wanted):
            raise Unreadable
        self._at += 1
        return token

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > DEPTH:
            raise Unreadable
        value = product(self._sign(), self._term())
        while self._next() in ("+", "-"):
            sign = self._sign()
            value = total(value, product(sign, self._term()))
        self._depth -= 1
        return value

    def _sign(self) -> Fraction:
        if self._next() not in ("+", "-"):
            return Fraction(1)
        return Fraction(-1 if self._take() == "-" else 1)

    def _term(self) -> Number:
        value = self._power()
        divided = False
        while True:
            if self._next() in _TIMES:
                self._take()
                value = product(value, self._power())
                divided = False
            elif self._next() == "/":
                self._take()
                value = product(value, inverse(self._power()))
                divided = True
            elif self._next() and (self._next()[0].isalpha() or self._next()[0] in "\\({"):
                # 1/2x is half an x to some and the inverse of 2x to others.
                if divided:
                    raise Unreadable
                value = product(value, self._power())
            else:
                return value

    def _power(self) -> Number:
        base = self._counted()
        if self._next() != "^":
            return base
        self._take()
        sign = self._sign()
        return raised(base, product(sign, self._counted()))

    def _counted(self) -> Number:
        value = self._base()
        while self._next() == "!":
            self._take()
            value = factorial_of(value)
        return value

    def _base(self) -> Number:
        read = self._take()
        if read[0].isdigit() or read[0] == ".":
            return Fraction(read)
        if read in _OPENING:
            value = self._sum()
            self._take(_OPENING[read])
            return value
        if read == "|":
            value = self._sum()
            self._take("|")
            return value if value >= 0 else -value
        if read == "\\frac":
            top = self._argument()
            return product(top, inverse(self._argument()))
        if read == "\\binom":
            chosen_from = self._argument()
            return binomial_of(chosen_from, self._argument())
        if read == "\\sqrt":
            return self._root()
        name = read.removeprefix("\\")
        if read[0] == "\\" and name in _FUNCTIONS:
            return self._function(name)
        if read.isalpha() or name in _LETTERS:
            return self._variable(name)
        raise Unreadable

    def _argument(self) -> Number:
        """A group, or one digit of what follows: `\\frac12` is a half."""
        token = self._next()
        if token.isdigit() and len(token) > 1:
            self._tokens = [*self._tokens[: self._at], token[0], token[1:], *self._tokens[self._at + 1 :]]
        return self._base()

    def _root(self) -> Number:
        index: Number = Fraction(2)
        if self._next() == "[":
            self._take()
            index = self._sum()
            self._take("]")
        return rooted(self._argument(), index)

    def _function(self, name: str) -> Number:
        base: Number | None = None
        power: Number = Fraction(1)
        if self._next() == "_":
            self._take()
            base = self._argument()
        if self._next() == "^":
            self._take()
            power = self._argument()
        if power < 0:
            # An inverse function to some, an inverse value to others.
            raise Unreadable
        bracketed = self._next() in _OPENING
        inner = self._base()
        if not bracketed:
            # sin 2x is the sine of all of it, sin x cos x is a product.
            while self._next() and (self._next().isalpha() or self._next()[1:] in _LETTERS):
                inner = product(inner, self._base())
            if self._next() == "^":
                raise Unreadable
        return raised(value_at(name, inner, base), power)

    def _variable(self, name: str) -> Number:
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
        value = Fraction(int.from_bytes(digest[:4], "big") % 9973 + 2, int.from_bytes(digest[4:6], "big") % 997 + 97)
        # All positive where roots have values, all negative where a root of a square shows, else mixed.
        negative = self._point == 2 or (self._point > 2 and digest[6] % 2 == 1)
        return -value if negative else value
