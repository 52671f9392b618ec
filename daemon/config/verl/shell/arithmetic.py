"""`whole_number` works out a shell's `$((...))`: whole numbers, + - * / %, brackets and variables."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d{1,18})|\$?\{?([A-Za-z_]\w*)\}?|([-+*/%()]))")
_MOST = 1 << 63
_DEPTH = 20
_LONGEST = 1000


def whole_number(text: str, variable: Callable[[str], str]) -> int | None:
    """The number, or None if the text is no such expression, a variable is unknown, or it grows beyond 64 bits."""
    tokens: list[int | str] = []
    at = 0
    if len(text) > _LONGEST:
        return None
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        at = found.end()
        digits = found[1] or (variable(found[2]).strip() if found[2] else "")
        if found[3]:
            tokens.append(found[3])
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
    def __init__(self, tokens: list[int | str]) -> None:
        self.tokens = tokens

    def sum(self, depth: int) -> int:
        """A sum of products."""
        value = self._product(depth)
        while self.tokens[:1] in (["+"], ["-"]):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            value += sign * self._product(depth)
        return value

    def _product(self, depth: int) -> int:
        value = self._atom(depth)
        while self.tokens[:1] in (["*"], ["/"], ["%"]):
            operator = self.tokens.pop(0)
            other = self._atom(depth)
            if operator == "*":
                value *= other
            else:
                # The shell rounds towards zero.
                quotient = abs(value) // abs(other) * (1 if (value < 0) == (other < 0) else -1)
                value = quotient if operator == "/" else value - quotient * other
            if abs(value) >= _MOST:
                raise ValueError("beyond 64 bits")
        return value

    def _atom(self, depth: int) -> int:
        if depth > _DEPTH:
            raise ValueError("nested too deep")
        first = self.tokens.pop(0)
        if first == "-":
            return -self._atom(depth + 1)
        if first == "(":
            value = self.sum(depth + 1)
            if self.tokens.pop(0) != ")":
                raise ValueError("not closed")
            return value
        if isinstance(first, str):
            raise ValueError(first)
        return first
