"""Parsing of the text after `=` in an override, with Hydra's syntax: `1e-6`, `[a,'b']`, `{k: v}`, `null`, `True`."""

from __future__ import annotations

import math
import re
from typing import Any, Final

_INT: Final = re.compile(r"[-+]?(?:0|[1-9][\d_]{0,18})")
"""A whole number."""
_FLOAT: Final = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d{1,4})?")
"""A decimal number, with or without an exponent."""
_FLOAT_LOOKS: Final = re.compile(r"[.eE]")
"""Characters of which a float has at least one."""
_FUNCTION: Final = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag|extend_list)\(")
"""Beginning of a sweep or function of Hydra."""
_DEPTH: Final = 16
"""Maximum nesting of lists and mappings."""


class HydraProblem(ValueError):
    """Raised for text that is no single Hydra value; `what` is the problem as a predicate, `fix` is advice for the
    user.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.what = problem
        self.fix = fix


def read_value(text: str) -> Any:
    """Parses the text after `=` of an override to None, a bool, number, text, list or dict. Raises HydraProblem."""
    if _FUNCTION.match(text.strip()):
        raise HydraProblem("is a sweep or a function of Hydra's", "write one value")
    reader = _Values(text)
    parsed = reader.value("", 0)
    reader.blanks()
    if reader.at < len(text):
        if text[reader.at] == ",":
            raise HydraProblem("is a sweep over several values", "write one value, or [a,b] for a list")
        raise HydraProblem(f"continues after its end, with {text[reader.at :][:20]!r}", "quote it")
    return parsed


def read_word(text: str) -> Any:
    """Converts an unquoted word to None, a bool, an int or a finite float; any other word stays text.

    `None` is text to Hydra, but read as null here, the evident intention. `~` and `???` are null too.
    """
    lowered = text.lower()
    if lowered in ("null", "none", "~", "???"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    # Without a point or an exponent the word is not a number: `010` stays text.
    if len(text) <= 40 and _FLOAT_LOOKS.search(text) and _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        return number if math.isfinite(number) else text
    return text


class _Values:
    """A parser of nested Hydra values over `text`; `at` is the index of the next character to read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def blanks(self) -> None:
        """Moves the reading position `at` past white space."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self, stops: str, depth: int) -> Any:
        """Parses one value from the reading position on; an unquoted word ends before any character of `stops` (a comma
        if empty).

        `depth` is the number of enclosing lists and mappings. Raises HydraProblem beyond `_DEPTH`.
        """
        if depth > _DEPTH:
            raise HydraProblem("is nested too deep", "make it flatter")
        self.blanks()
        char = self.text[self.at : self.at + 1]
        if char == "[":
            return self._list(depth)
        if char == "{":
            return self._mapping(depth)
        if char and char in "'\"":
            return self._quoted()
        return self._plain(stops)

    def _list(self, depth: int) -> list[Any]:
        """Parses a list from its opening bracket on."""
        self.at += 1
        elements: list[Any] = []
        while True:
            self.blanks()
            if self.text.startswith("]", self.at):
                self.at += 1
                return elements
            elements.append(self.value(",]", depth + 1))
            self._next("]", "the list")

    def _mapping(self, depth: int) -> dict[str, Any]:
        """Parses a mapping from its opening brace on."""
        self.at += 1
        pairs: dict[str, Any] = {}
        while True:
            self.blanks()
            if self.text.startswith("}", self.at):
                self.at += 1
                return pairs
            key = str(self.value(":", depth + 1))
            if not self.text.startswith(":", self.at):
                raise HydraProblem("has a mapping with a key and no value", "write {key: value}")
            self.at += 1
            pairs[key] = self.value(",}", depth + 1)
            self._next("}", "the mapping")

    def _next(self, end: str, noun: str) -> None:
        """Moves past a comma; at the closing `end` stays. Raises HydraProblem for anything else."""
        self.blanks()
        if self.text.startswith(",", self.at):
            self.at += 1
        elif not self.text.startswith(end, self.at):
            raise HydraProblem(f"never ends: {noun} is not closed", f"close it with {end}, and quote it for the shell")

    def _quoted(self) -> str:
        """Parses a quoted text, and returns it without quotes."""
        quote = self.text[self.at]
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise HydraProblem(f"has a quote {quote} that is never closed", f"close it with {quote}")
        inside = self.text[self.at + 1 : end].replace(f"\\{quote}", quote)
        self.at = end + 1
        return inside

    def _plain(self, stops: str) -> Any:
        """Parses an unquoted word up to a character of `stops`, references `${...}` kept whole."""
        start = self.at
        stops = stops or ","
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("${", self.at):
                depth += 1
                self.at += 1
            elif char == "}" and depth:
                depth -= 1
            elif char in stops and not depth:
                break
            self.at += 1
        return read_word(self.text[start : self.at].strip())
