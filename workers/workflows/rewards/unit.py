"""Units beside numbers, which may clash or be converted: 5 km differs from 5 cm; 18 equals 18 dollars."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_NAMES: Final = {
    "dollar": "dollar dollars usd bucks $",
    "euro": "euro euros eur €",
    "sterling": "gbp £",
    "yen": "yen jpy ¥",
    "cent": "cent cents ¢",
    "percent": "percent pct %",
    "degree": "degree degrees deg circ °",
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "inch inches in",
    "ft": "ft foot feet",
    "mile": "mile mi",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram kilo",
    "lb": "lb lbs",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "second": "s sec second",
    "minute": "min minute",
    "hour": "h hr hour",
}
"""Spellings of each unit."""
_SIZES: Final = {
    "length": {
        "mm": Fraction("0.001"),
        "cm": Fraction("0.01"),
        "m": Fraction(1),
        "km": Fraction(1000),
        "inch": Fraction("0.0254"),
        "ft": Fraction("0.3048"),
        "mile": Fraction("1609.344"),
    },
    "mass": {"mg": Fraction("0.001"), "g": Fraction(1), "kg": Fraction(1000)},
    "volume": {"ml": Fraction("0.001"), "l": Fraction(1)},
    "time": {"second": Fraction(1), "minute": Fraction(60), "hour": Fraction(3600), "day": Fraction(86400)},
    "money": {"cent": Fraction("0.01"), "dollar": Fraction(1)},
    "share": {"percent": Fraction("0.01"), "": Fraction(1)},
}
"""Units that are exact multiples of each other, by quantity; the empty unit is a bare number."""
_CANONICAL: Final = {name: unit for unit, names in _NAMES.items() for name in names.split()}
_AREA: Final = re.compile(r"\b(?:square|sq)\.? ([a-z]+)")
"""A unit of area, such as `square feet`."""
_VOLUME: Final = re.compile(r"\bcubic ([a-z]+)")
"""A unit of volume, such as `cubic feet`."""
_AFTERWARDS: Final = {"squared": "^2", "cubed": "^3", "²": "^2", "³": "^3"}
"""Exponent by the word or sign behind a unit."""
_WORD: Final = re.compile(r"[a-z]+(?:\^[23])?|[$€£¥¢%°/]")
"""One unit of an expression, with its exponent, or a sign."""
_KNOWN: Final = {unit + power for unit in {*_NAMES, "unit"} for power in ("", "^2", "^3")}
"""Every known unit with the exponents 1 to 3."""
_SET_IN_TEXT: Final = re.compile(r"(?<=.)\\(?:text|mathrm|textrm|mbox)\{[^{}0-9]*\}(?:\^(?:\{[23]\}|[23])|[²³])?$")
# Words without information about the unit: 18 in total, 5 apples left.
_FILLERS: Final = re.compile(r"\bin (?:total|all)\b|\b(?:total|altogether|overall|left|remaining|more|each|of|the)\b")
_CHANGES: Final = frozenset("/")


def same_unit(left: str, right: str) -> bool:
    """False if the texts name different units and neither merely extends the other: dollars a day are dollars."""
    if not left or not right:
        return True
    ours = unit_words(left)
    theirs = unit_words(right)
    if not ours or not theirs:
        return True
    ours = _read_pound(ours, theirs)
    theirs = _read_pound(theirs, ours)
    if ours <= theirs or theirs <= ours:
        # Miles differ from miles per hour, but days match school days.
        return not (ours ^ theirs) & _CHANGES
    return False


def conversion(left: str, right: str) -> Fraction | None:
    """Returns the factor from the unit `left` to the unit `right`; None if either is unknown or they measure different
    quantities.
    """
    ours = unit_words(left)
    theirs = unit_words(right)
    if len(ours) > 1 or len(theirs) > 1:
        return None
    our_unit = "".join(ours)
    their_unit = "".join(theirs)
    sizes = next((sizes for sizes in _SIZES.values() if our_unit in sizes and their_unit in sizes), None)
    return None if sizes is None else sizes[our_unit] / sizes[their_unit]


def _read_pound(ours: frozenset[str], theirs: frozenset[str]) -> frozenset[str]:
    """Resolves a pound: money beside money, else a weight."""
    other_pounds = theirs & {"sterling", "lb"}
    return ours - {"pound"} | other_pounds if "pound" in ours and other_pounds else ours


def measured(text: str) -> tuple[str, str]:
    r"""Splits an expression from the unit behind it, `2\sqrt{3}\text{ cm}`; without a known unit, the unit is empty."""
    match = _SET_IN_TEXT.search(text)
    if match is None or not unit_words(match[0]) & _KNOWN:
        return text, ""
    return text[: match.start()].rstrip(), match[0]


def unit_words(text: str) -> frozenset[str]:
    """Returns the words of a unit in one spelling: `sq. meters` is {m^2}, `km per hour` is {km, /, hour}."""
    text = re.sub(r"\\(?:text|mathrm|textrm|mbox|rm)|[{}\\]", " ", text.casefold())
    text = _FILLERS.sub(" ", text.replace("mph", "mile/hour"))
    text = re.sub(r"\bper\b", "/", text)
    for word, power in _AFTERWARDS.items():
        text = re.sub(rf" ?{word}", power, text)
    text = re.sub(r" ?\^ ?([23]) ?", r"^\1 ", text)
    text = _VOLUME.sub(r"\1^3", _AREA.sub(r"\1^2", text))
    return frozenset(_canonical_word(word) for word in _WORD.findall(text))


def _canonical_word(word: str) -> str:
    """Returns a word of a unit in one spelling, with its power."""
    name, caret, power = word.partition("^")
    singular = name[:-1] if len(name) > 2 and name.endswith("s") else name
    return _CANONICAL.get(name, _CANONICAL.get(singular, singular)) + caret + power
