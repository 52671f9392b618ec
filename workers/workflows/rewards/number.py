r"""Numbers in text, compared by value: 1,000 = 1000, 1/2 = 0.5 = \frac{1}{2}, 4\frac{2}{3} = 14/3, 3e4 = 30000.

Exact fractions, no floats and no evaluation; every pattern is linear in the model's text, and digits and exponents are
bounded.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Final

import msgspec

from rftd.workers.workflows.rewards.unit import conversion, same_unit

DIGITS: Final = 64
"""Maximum digits of a number: exact arithmetic on a model's text must be bounded. Exponents have up to three digits."""
NUMBER_CHARS: Final = 256
"""Maximum characters of a number with a unit."""
_UNSIGNED: Final = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3}){1,20}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
"""Pattern of an unsigned number."""
_AMOUNT: Final = re.compile(
    rf"(?:^(?P<lead>[-+]) |(?P<sign>[-+]))?(?:(?P<whole>[0-9]+) (?P<part>[0-9]+)/(?P<of>[0-9]+)"
    rf"|(?P<scaled>{_UNSIGNED})[eE](?P<power>[-+]?[0-9]{{1,3}})(?![0-9])"
    rf"|(?P<top>{_UNSIGNED})(?: ?/ ?(?P<bottom>{_UNSIGNED}))?)"
)
"""A number: mixed, in powers of ten, or a fraction."""
_MIXED_GAP: Final = re.compile(r"(?<=[0-9])(?:\\[!,;: ]|\s)*(?=\\[dtc]?frac)")
_LATEX_FRACTION: Final = re.compile(
    r"\\[dtc]?frac ?(?:\{ ?([-+]?[0-9]+) ?\} ?\{ ?([-+]?[0-9]+) ?\}|([0-9]) ?([0-9]))(?![0-9])"
)
"""A LaTeX fraction of integers."""
_POWER_OF_TEN: Final = re.compile(
    r"(?:(?P<times>(?<=[0-9]) ?(?:\\times|\\cdot|[*×·x]) ?)|(?<![0-9A-Za-z^*×·_./}])(?<!times )(?<!cdot )(?<![*×·] ))"
    r"10 ?\^ ?(?:\{ ?(?P<braced>[-+]?[0-9]{1,3}) ?\}|\((?P<round>[-+]?[0-9]{1,3})\)|(?P<bare>[-+]?[0-9]{1,3}))(?![0-9])"
)
"""A power of ten in any notation."""
_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
"""Digit by superscript digit."""
_RAISED_TEN: Final = re.compile(r"10(⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})")
"""A power of ten with superscript digits."""
_UNIT: Final = re.compile(
    r" ?\\?%|\^?(?:\\circ|\{ ?\\circ ?\}|°) ?(?:\\(?:text|mathrm))?[{ ]{0,2}[CFK]?\}?|°[CF]?"
    r"|(?: |\\ )*\\(?:text|mathrm|textrm|mbox|rm)\{[^{}0-9]*(?:\^?(?:\{[23]\}|[23²³]))?\}(?:\^(?:\{[23]\}|[23])|[²³])?"
    r"|(?: +| ?/ ?)[A-Za-z][A-Za-z ./]*(?:\^(?:\{[23]\}|[23])|[²³])?|¢"
)
_SCALES: Final = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Factors of words such as `million` behind a number."""
_SCALE: Final = re.compile(rf"[ {{}}]*(?:\\text\{{ ?)?({'|'.join(_SCALES)})s?\b", re.IGNORECASE)
# Words that change the number beside them: five squared, five and a half, five or six.
_READS_ON: Final = re.compile(
    r"\b(?:or|not|plus|minus|negative|squared?|cubed?|root|pi|sqrt|base|modulo|sin|cos|tan|log|ln|exp|twice|double|triple|factorial|point|half|halves|thirds?|"
    r"(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths?|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b|n't\b",
    re.IGNORECASE,
)
_MEASURED: Final = re.compile(r"\b(?:square [a-z]{2,}|[a-z]{2,} (?:squared|cubed))\b", re.IGNORECASE)
"""A unit of area or volume in words."""
_LETTER: Final = re.compile(r"(?<![A-Za-z'’\\])[A-Za-z](?![A-Za-z'’])")
"""A letter that stands alone."""
_UNIT_LETTERS: Final = frozenset("mgshlLJNWVKCFa")
"""Letters that are units."""
# `\\ ` in a matrix ends a row and is not a space.
_NOISE: Final = re.compile(
    r"\\(?:left|right)(?![A-Za-z])|(?<!\\)\\[!,;: ()\[\]]|\\?\$|[€£¥]|\*\*(?![0-9(])|(?<![0-9)])\*\*|\{,\}"
)
_LIST_SPACE: Final = re.compile(r",(?:\\[,;: ]|\s)+")
"""White space after the comma of a list."""
_SPACED_DIGITS: Final = re.compile(r"(?<=[0-9])(?:(?:\\[;: ])+(?![0-9]{3}(?![0-9]))|\\?\$|[€£¥])(?=[0-9])")
"""A space or currency sign within a number."""
_WRAPPER: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf|textrm|mbox|rm)\{([^{}]*)\}")
"""A LaTeX text command with its content."""


class Quantity(msgspec.Struct, frozen=True):
    """A number with the currency or unit written next to it; the unit is empty without one."""

    value: Fraction
    """The number."""
    unit: str = ""
    """Currency or unit as written; empty without one."""

    def agrees(self, expected: Quantity) -> bool:
        """True if the values are equal, converted if necessary, and the units, where both have one, do not clash."""
        if self.value == expected.value and same_unit(self.unit, expected.unit):
            return True
        factor = conversion(self.unit, expected.unit)
        return factor is not None and self.value * factor == expected.value


def plain(text: str) -> str:
    """Returns the text without meaningless parts: dollar signs, LaTeX spacing, double spaces."""
    text = text.replace("−", "-").replace("{,}", ",")
    text = _LIST_SPACE.sub(", ", _SPACED_DIGITS.sub(" ", text))
    return " ".join(_NOISE.sub("", text).split())


def unwrapped(text: str) -> str:
    r"""Returns the text with the words in `\text{...}` and similar commands as plain words."""
    return _WRAPPER.sub(r"\1", text)


def parse_quantity(text: str) -> Quantity | None:
    """Parses a text that is only a number with a unit, perhaps in parentheses; None for any other text."""
    if len(text) > NUMBER_CHARS:
        return None
    currency = currency_of(text)
    text = numerals(text).strip("*_` ").rstrip(".").rstrip("*_` ")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    match = _AMOUNT.match(text)
    if match is None:
        return None
    return quantity_of(match, text[match.end() :], currency)


def numerals(text: str) -> str:
    """Returns the plain text with LaTeX fractions as 1/2, mixed numbers as 4 2/3 and powers of ten as 3e4."""
    text = _LATEX_FRACTION.sub(_division_text, _MIXED_GAP.sub(" ", text))
    text = _RAISED_TEN.sub(lambda m: f"10^{{{m[1].translate(_RAISED)}}}", plain(text))
    return _POWER_OF_TEN.sub(_scientific_text, text)


def amounts(text: str) -> list[re.Match[str]]:
    """Returns the first two numbers in a text prepared by `numerals`: enough to know whether there is just one."""
    return list(itertools.islice(_AMOUNT.finditer(text), 2))


def unit_after(text: str) -> str:
    """Returns the unit at the beginning of a text; empty without one."""
    match = _UNIT.match(text)
    return match[0] if match else ""


def quantity_of(match: re.Match[str], unit: str, currency: str = "") -> Quantity | None:
    """Returns the number matched by `amounts` with the text after it as unit; None if that text is not a unit."""
    number = _matched_value(match)
    if number is None:
        return None
    scale = _SCALE.match(unit)
    if scale is not None:
        number *= _SCALES[scale[1].lower()]
        unit = unit[: scale.start(1)] + unit[scale.end() :]
        unit = unit.rstrip()
    if unit and (_UNIT.fullmatch(unit) is None or changes_number(unit)):
        return None
    return Quantity(number, f"{currency} {unit}".strip())


def changes_number(words: str) -> bool:
    """True if words next to a number change its value ("half of", "million") or are numbers themselves."""
    if _READS_ON.search(_MEASURED.sub(" ", words)):
        return True
    return any(letter not in _UNIT_LETTERS for letter in _LETTER.findall(words))


def currency_of(text: str) -> str:
    """Returns the currency sign in a text; a pair of dollar signs is mathematics, not money."""
    for sign in "€£¥":
        if sign in text:
            return sign
    return "$" if "\\$" in text or text.count("$") % 2 else ""


def _division_text(match: re.Match[str]) -> str:
    """Returns a LaTeX fraction as `a/b`."""
    top: str = match[1] or match[3]
    bottom: str = match[2] or match[4]
    if bottom[0] == "-":
        # 2 over -5 is -2 over 5.
        top = top[1:] if top[0] == "-" else "-" + top.removeprefix("+")
    return f"{top}/{bottom.lstrip('-+')}"


def _scientific_text(match: re.Match[str]) -> str:
    """Returns a power of ten as `e3` behind a factor, and as `1e3` without one."""
    power = match["braced"] or match["round"] or match["bare"]
    return f"e{power}" if match["times"] else f"1e{power}"


def _matched_value(match: re.Match[str]) -> Fraction | None:
    """Returns the matched number; None for too many digits or a division by zero."""
    if any(group is not None and len(group) > DIGITS for group in match.groups()):
        return None
    if match["whole"] is not None:
        fraction = _quotient(match["part"], match["of"])
        number = None if fraction is None else int(match["whole"]) + fraction
    elif match["scaled"] is not None:
        number = _quotient(match["scaled"], None)
        number = None if number is None else number * Fraction(10) ** int(match["power"])
    else:
        number = _quotient(match["top"], match["bottom"])
    return -number if number is not None and "-" in (match["lead"], match["sign"]) else number


def _quotient(top: str, bottom: str | None) -> Fraction | None:
    """Returns the quotient of two numbers; None for a division by zero."""
    divisor = Fraction((bottom or "1").replace(",", ""))
    return Fraction(top.replace(",", "")) / divisor if divisor else None
