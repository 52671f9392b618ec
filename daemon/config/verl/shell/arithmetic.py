"""`whole_number` evaluates a shell's `$((...))`: whole numbers, + - * / %, brackets and variables."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d{1,18})|\$?\{?([A-Za-z_]\w*)\}?|([-+*/%()]))")
"""A number, a variable, or an operator."""
_MOST = 1 << 63
"""Bound of the magnitude of numbers."""
_DEPTH = 20
"""Maximum depth of nested brackets."""
_LONGEST = 1000
"""Maximum length of an expression."""


def whole_number(text: str, variable: Callable[[str], str]) -> int | None:
    """Returns the number; None for an invalid expression, an unknown variable, or a number beyond 64 bits."""
    tokens: list[int | str] = []
    at = 0
    if len(text) > _LONGEST:
        return None
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        digits = token[1] or (variable(token[2]).strip() if token[2] else "")
        if token[3]:
            tokens.append(token[3])
        elif re.fullmatch(r"-?\d{1,18}", digits):
            tokens.append(int(digits))
        else:
            return None
    parser = _Parser(tokens)
    try:
        number = parser.sum(0)
    except (IndexError, ZeroDivisionError, ValueError):
        return None
    return number if not parser.tokens else None


class _Parser:
    """Parser of an expression by recursive descent, consuming a list of tokens."""

    def __init__(self, tokens: list[int | str]) -> None:
        self.tokens = tokens

    def sum(self, depth: int) -> int:
        """Parses a sum of products."""
        total = self._product(depth)
        while self.tokens[:1] in (["+"], ["-"]):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            total += sign * self._product(depth)
        return total

    def _product(self, depth: int) -> int:
        """Parses a product of atoms. Raises ValueError beyond 64 bits, ZeroDivisionError."""
        number = self._atom(depth)
        while self.tokens[:1] in (["*"], ["/"], ["%"]):
            operator = self.tokens.pop(0)
            operand = self._atom(depth)
            if operator == "*":
                number *= operand
            else:
                # The shell rounds towards zero.
                quotient = abs(number) // abs(operand) * (1 if (number < 0) == (operand < 0) else -1)
                number = quotient if operator == "/" else number - quotient * operand
            if abs(number) >= _MOST:
                raise ValueError("beyond 64 bits")
        return number

    def _atom(self, depth: int) -> int:
        """Parses a number, a negative, or an expression in brackets. Raises ValueError."""
        if depth > _DEPTH:
            raise ValueError("nested too deep")
        first = self.tokens.pop(0)
        if first == "-":
            return -self._atom(depth + 1)
        if first == "(":
            inner = self.sum(depth + 1)
            if self.tokens.pop(0) != ")":
                raise ValueError("not closed")
            return inner
        if isinstance(first, str):
            raise ValueError(first)
        return first
