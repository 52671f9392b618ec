"""The one number in words, and the closing words of a response without a marked answer."""

from __future__ import annotations

import re
from typing import Final

from rftd.workers.workflows.rewards.number import (
    Quantity,
    amounts,
    changes_number,
    currency_of,
    numerals,
    quantity_of,
    unit_after,
    unwrapped,
)

WORDS_CHARS: Final = 1000
"""Maximum characters around one number; of a longer response the end counts."""
# Not inside a word or an expression: `x2`, `3.14.15`, `2+3`, `\sqrt{2}` and `52_8` contain no separate number.
_ALONE_BEFORE: Final = re.compile(r"(?:^|\s)[(\"*]*$|[A-Za-z][.:]$")
_ALONE_AFTER: Final = re.compile(r"$|\s|[.,;:!?)\"'*]+(?=\s|$)")
"""End of a text, white space or punctuation after an answer that stands alone."""
_NO_WORDS: Final = re.compile(r"[0-9\\^_{}\[\]*+<>|=≤≥≠√π×·]|(?<![A-Za-z])/|/(?![A-Za-z])")
"""Characters of a formula, absent from an answer in words."""
_NEGATED: Final = re.compile(r"\b(?:no|wrong|incorrect|between|(?:more|less|fewer|greater|higher|lower) than)\b", re.I)
"""Words that deny or bound the number after them."""
_EQUALS: Final = re.compile(r"[^=]*=\s*")
_PROPER: Final = re.compile(r"\b[A-Z]\b")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
"""Gap between two sentences."""
_ANSWER: Final = re.compile(r"\b(?:answer|option|choice)(?: is|:|=| =)(?: ?:)?", re.IGNORECASE)
"""Words that introduce an answer, such as `the answer is`."""
_VARIABLE: Final = re.compile(r"(?<![A-Za-z\\])([A-Za-z]) ?=")
"""A variable with its equals sign."""


def only_quantity(text: str) -> Quantity | None:
    """Returns the only number in a text such as "so she pays 18 dollars", with its unit; None for several numbers.

    None also if the text around the number has more than words: signs of mathematics, variables, words that change a
    number.
    """
    if len(text) > WORDS_CHARS:
        return None
    currency = currency_of(text)
    text = unwrapped(numerals(text)).strip()
    matches = amounts(text)
    if len(matches) != 1:
        return None
    match = matches[0]
    before = text[: match.start()]
    after = text[match.end() :]
    # A unit may run on into words, "18 dollars a day for all", so a unit with too many words is examined as words.
    unit = unit_after(after)
    if _ALONE_AFTER.match(after[len(unit) :]) is None and unit.startswith(" "):
        # The match ends within a word, "18 a day at the farmer's": the words before that may be the unit.
        unit = unit.rpartition(" ")[0]
    quantity = quantity_of(match, unit, currency)
    if quantity is None or _ALONE_AFTER.match(after[len(unit) :]) is None:
        return None
    if not before.strip() and after.startswith("!"):
        # A factorial, because no words make the mark an exclamation.
        return None
    equals = _EQUALS.fullmatch(before)
    if equals is not None:
        before = before.replace("=", " ")
        alone = True
    else:
        alone = _ALONE_BEFORE.search(before) is not None and not changes_number(_PROPER.sub(" ", before))
    after_unit = after[len(unit) :]
    if (
        not alone
        or _NO_WORDS.search(before + " " + after_unit)
        or _NEGATED.search(before + " " + unit + " " + after_unit)
    ):
        return None
    return None if changes_number(_PROPER.sub(" ", after_unit)) else quantity


def announced(response: str) -> str | None:
    """Returns the words after the last "answer is" near a text's end; None without them."""
    response = _last_words(response)
    matches = list(_ANSWER.finditer(response))
    if not matches:
        return None
    lines = response[matches[-1].end() :].strip().splitlines()
    return _SENTENCE.split(lines[0])[0] if lines else ""


def closing(response: str) -> str:
    """Returns the part of a response without a marked answer that states its answer.

    These are the words after the last "answer is", else the last sentence with a digit; of an equation, the right side.
    """
    words = announced(response)
    if words is not None:
        return words
    response = _last_words(response)
    for line in reversed(response.splitlines()):
        for sentence in reversed(_SENTENCE.split(line)):
            if any(character.isdigit() for character in sentence):
                several = len(set(_VARIABLE.findall(sentence))) > 1
                return sentence if several else sentence.rpartition("=")[2]
    return response


def _last_words(text: str) -> str:
    # The first word of the cut end may be incomplete.
    """Returns the end of a long text, from a whole word on."""
    return text if len(text) <= WORDS_CHARS else text[-WORDS_CHARS:].partition(" ")[2]
