"""The answer in a response, the truth in a reference solution, and their agreement."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rftd.workers.workflows.rewards.collection import same_choice, same_collection, value_side
from rftd.workers.workflows.rewards.expression import same_equation, same_expression, value_of
from rftd.workers.workflows.rewards.number import Quantity, parse_quantity, plain, unwrapped
from rftd.workers.workflows.rewards.unit import measured, same_unit
from rftd.workers.workflows.rewards.words import announced, closing, only_quantity

_BOX: Final = re.compile(r"\\f?boxed ?(\{)")
"""Beginning of a box."""
_BRACE: Final = re.compile(r"[{}]")
"""An opening or closing brace, for finding the end of a box."""
_ONE_BRACED: Final = re.compile(r"([\^_])\{([A-Za-z0-9])\}")
"""An exponent or index of one character in braces."""
_ALIKE: Final = (
    ("\\displaystyle", ""),
    ("\\varnothing", "\\emptyset"),
    ("∅", "\\emptyset"),
    ("\\mathbb{R}", "(-\\infty, \\infty)"),
)
"""Spellings with equal meaning, each with its normal form."""
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
"""Soft hyphens, joiners, direction and byte order marks: invisible characters written by some tokenizers."""
_DEPTH: Final = 3
"""Nesting depth of an answer's members; deeper members are compared as text."""


def visible(text: str) -> str:
    """Returns the text without invisible characters."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def truth_of(reference: str) -> str:
    """Returns the truth in a dataset's answer: after the last `####` (GSM8K), else the last boxed text, else
    everything.
    """
    if "####" in reference:
        return reference.rpartition("####")[2].strip()
    boxed = last_boxed(reference)
    return (reference if boxed is None else boxed).strip()


def answer_of(response: str) -> str | None:
    """Returns a response's marked answer: the last `<answer>`, else the last box, else after `####`; None without
    marks.
    """
    tagged = last_tagged(response, "answer")
    # The thought is not searched: a model weighs several numbers before answering.
    text = response.rpartition("</think>")[2] if tagged is None else tagged
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    if "####" in text:
        lines = text.rpartition("####")[2].strip().splitlines()
        return lines[0].strip() if lines else ""
    return None if tagged is None else tagged.strip()


def finished_answer_of(response: str) -> str | None:
    """Returns the marked answer of a response that is marked to its end; None where the end is not certain."""
    answer = answer_of(response)
    text = response.rpartition("</think>")[2]
    if last_tagged(response, "answer") is None and last_boxed(text) is None and "####" in text:
        # A line is whole once the next one has begun.
        return answer if "\n" in text.rpartition("####")[2].strip(" ") else None
    return answer


def last_tagged(text: str, tag: str) -> str | None:
    """Returns the text in the last complete `<tag>...</tag>`; None without one."""
    head, closed, _ = text.rpartition(f"</{tag}>")
    _, opened, inner = head.rpartition(f"<{tag}>")
    return inner if closed and opened else None


def last_boxed(text: str) -> str | None:
    r"""Returns the text in the last complete `\boxed{...}`, with nested braces; None without one."""
    boxes = {match.start(1) for match in _BOX.finditer(text)}
    if not boxes:
        return None
    last: tuple[int, int] | None = None
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened and (start := opened.pop()) in boxes and (last is None or start > last[0]):
            last = (start, brace.start())
    return None if last is None else text[last[0] + 1 : last[1]]


def agree(answer: str, truth: str) -> bool:
    """True if two answers are the same number, expression or collection, or equal texts up to case and spacing.

    A numeric truth requires a number: 12 * 12 does not agree with 144. A unit may be missing, but must not differ.
    """
    return _agrees_within(visible(answer), visible(truth), _DEPTH)


class AnswerVerdict(NamedTuple):
    """The verdict on a response, with the answer read from it."""

    accuracy: float
    """1 if the answer agrees with the truth, else 0."""
    extracted: str | None
    """The answer as compared; None for a cut response without a marked answer."""


def judged_answer(response: str, truth: str, *, cut: bool = False) -> AnswerVerdict:
    """Returns the verdict: accuracy 1 if the response's answer agrees with the truth, else 0; and the answer.

    A wordy answer counts if it has just one number: "so she pays 18 dollars a day" agrees with 18. A response without a
    marked answer counts by the words after its last "answer is", else by its last sentence with a number. A response
    `cut` at its length limit counts only by an answer marked to the end: its last words may be half a number.
    """
    response = visible(response)
    expected = truth_of(visible(truth))
    marked = finished_answer_of(response) if cut else answer_of(response)
    if cut and marked is None:
        return AnswerVerdict(0.0, None)
    claimed = response.rpartition("</think>")[2] if marked is None else marked
    if agree(claimed, expected):
        return AnswerVerdict(1.0, claimed.strip())
    words = closing(claimed) if marked is None else announced(claimed) or claimed
    extracted = words.strip()
    if words is not claimed and agree(words, expected):
        return AnswerVerdict(1.0, extracted)
    expected_quantity = parse_quantity(expected)
    only_number = None if expected_quantity is None else only_quantity(words)
    is_right = expected_quantity is not None and only_number is not None and only_number.agrees(expected_quantity)
    return AnswerVerdict(1.0 if is_right else 0.0, extracted)


def accuracy(response: str, truth: str, *, cut: bool = False) -> float:
    """Returns the accuracy of `judged_answer`: 1 or 0."""
    return judged_answer(response, truth, cut=cut).accuracy


def _is_quantity(answer: str, expected: Quantity) -> bool:
    """True if the answer is a number, or an equation with a true left side, equal to the expected one."""
    quantity = parse_quantity(answer) or parse_quantity(unwrapped(value_side(plain(answer))))
    if quantity is None and "=" in answer:
        # An equation counts by its right side if the left side equals it: 9 * 2 = 18, but not 9 + 2 = 18.
        left_side, _, right = plain(answer).rpartition("=")
        right_value = parse_quantity(right)
        quantity = right_value if right_value is not None and value_of(left_side) == right_value.value else None
    return quantity is not None and quantity.agrees(expected)


def _agrees_within(answer: str, truth: str, depth: int) -> bool:
    """True if two answers agree; members of collections are compared down to `depth`."""
    expected = parse_quantity(truth)
    if expected is not None:
        return _is_quantity(answer, expected)
    if _text_form(answer) == _text_form(truth):
        return True
    bare, unit = measured(_simple_form(answer))
    truth_bare, truth_unit = measured(_simple_form(truth))
    if (unit or truth_unit) and same_unit(unit, truth_unit) and same_expression(bare, truth_bare):
        return True
    answer = unwrapped(_simple_form(answer))
    truth = unwrapped(_simple_form(truth))
    if same_choice(answer, truth) or same_expression(answer, truth):
        return True
    answer_value = value_side(answer)
    truth_value = value_side(truth)
    # Only one of the two may omit the name: y = 2x and 2x.
    one_named = (answer_value == answer) != (truth_value == truth)
    if same_equation(answer, truth) or (one_named and same_expression(answer_value, truth_value)):
        return True
    if depth == 0:
        return False
    if one_named:
        answer = answer_value
        truth = truth_value
    return same_collection(answer, truth, lambda ours, theirs: _agrees_within(ours, theirs, depth - 1))


def _simple_form(text: str) -> str:
    """Returns the text in normal spelling, without surrounding marks."""
    for spelling, normal_form in _ALIKE:
        text = text.replace(spelling, normal_form)
    return plain(text).strip(" .*`")


def _text_form(text: str) -> str:
    """Returns the text for a comparison letter by letter."""
    text = unwrapped(_simple_form(text)).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return re.sub(r"\s+", "", _ONE_BRACED.sub(r"\1\2", text)).rstrip(".").casefold()
