"""Numbers in text, compared by value: 1,000 = 1000, 72.0 = 72, 1/2 = 0.5 = \\frac{1}{2}.

Exact fractions, no floats and no evaluation; every pattern is linear in the text, which a model wrote.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

DIGITS: Final = 64
"""Longer digit strings are text: exact arithmetic on what a model wrote is bounded."""
NUMBER_CHARS: Final = 256
"""Longer texts are no number with a unit."""
_UNSIGNED: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,20}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER: Final = rf"[-+]?(?:{_UNSIGNED})"
_QUOTIENT: Final = rf"(?P<top>{_NUMBER})(?: ?/ ?(?P<bottom>{_UNSIGNED}))?"
_WHOLE: Final = re.compile(rf"{_QUOTIENT}\.?")
_MIXED: Final = re.compile(r"(?P<sign>-?)(?P<whole>[0-9]+) (?P<top>[0-9]+)/(?P<bottom>[0-9]+)")
# Not inside a word or an expression: of `x2`, `3.14.15` and `2+3` no part is a number of its own.
_INSIDE: Final = re.compile(rf"(?<![A-Za-z0-9_.+*/^\\-]){_QUOTIENT}")
_LATEX_FRACTION: Final = re.compile(r"\\[dt]?frac ?(?:\{ ?([-+]?[0-9]+) ?\} ?\{ ?([0-9]+) ?\}|([0-9]) ?([0-9]))")
_UNIT: Final = re.compile(
    r"(?:\\?%|\^?\\circ|\^\{\\circ\}|°|(?: |\\ )*\\(?:text|mathrm)\{[^{}]*\}| +[A-Za-z][A-Za-z .]*)$"
)
_NOISE: Final = re.compile(r"\\left|\\right|\\[!,;: ]|\\?\$|[€£¥]|\*\*|\{,\}")


def plain(text: str) -> str:
    """The text without what does not change a number: dollar signs, LaTeX spacing and fractions, double spaces."""
    text = text.replace("−", "-").replace("{,}", ",")
    text = _LATEX_FRACTION.sub(lambda m: f"{m[1] or m[3]}/{m[2] or m[4]}", text)
    return " ".join(_NOISE.sub("", text).split())


def parse_number(text: str) -> Fraction | None:
    """The value if the whole text is one number, perhaps with a currency before and a unit after it; else None."""
    if len(text) > NUMBER_CHARS:
        return None
    text = plain(text).strip("*_` ")
    for candidate in (text, _UNIT.sub("", text).strip()):
        if mixed := _MIXED.fullmatch(candidate):
            part = _value(mixed["top"], mixed["bottom"])
            whole = _value(mixed["whole"], None)
            if part is not None and whole is not None:
                return -(whole + part) if mixed["sign"] else whole + part
        if (match := _WHOLE.fullmatch(candidate)) and (value := _value(match["top"], match["bottom"])) is not None:
            return value
    return None


def last_number(text: str) -> Fraction | None:
    """The value of the last number that stands in a text; None if there is none."""
    value = None
    for match in _INSIDE.finditer(plain(text)):
        value = _value(match["top"], match["bottom"])
    return value


def _value(top: str, bottom: str | None) -> Fraction | None:
    if len(top) > DIGITS or (bottom is not None and len(bottom) > DIGITS):
        return None
    divisor = Fraction((bottom or "1").replace(",", ""))
    return Fraction(top.replace(",", "")) / divisor if divisor else None
