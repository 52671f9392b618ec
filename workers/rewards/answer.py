"""The answer in a response, the truth in a reference solution, and whether they agree."""

from __future__ import annotations

import re
from typing import Final

from rftd.workers.rewards.number import last_number, parse_number, plain

_BOX: Final = re.compile(r"\\f?boxed ?(\{)")
_BRACE: Final = re.compile(r"[{}]")
_WRAPPER: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


def truth_of(reference: str) -> str:
    """The truth in a dataset's answer: after the last `####` (GSM8K), else the last boxed one, else all of it."""
    if "####" in reference:
        return reference.rpartition("####")[2].strip()
    boxed = last_boxed(reference)
    return (reference if boxed is None else boxed).strip()


def answer_of(response: str) -> str | None:
    """The answer that a response marks: the last `<answer>`, else the last boxed one, else after `####`; else None."""
    tagged = last_tagged(response, "answer")
    text = response.rpartition("</think>")[2] if tagged is None else tagged
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    if "####" in text:
        lines = text.rpartition("####")[2].strip().splitlines()
        return lines[0].strip() if lines else ""
    return None if tagged is None else tagged.strip()


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last complete `<tag>...</tag>`; None without one."""
    head, closed, _ = text.rpartition(f"</{tag}>")
    _, opened, inner = head.rpartition(f"<{tag}>")
    return inner if closed and opened else None


def last_boxed(text: str) -> str | None:
    """What stands in the last complete `\\boxed{...}`, whose braces may nest; None without one."""
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
    """True if two answers are the same number or, where the truth is none, the same text up to case and spacing."""
    number = parse_number(truth)
    if number is None:
        return _text(answer) == _text(truth)
    return parse_number(answer) == number


def accuracy(response: str, truth: str) -> float:
    """1 if the response's answer agrees with the truth, else 0.

    An unmarked or wordy answer counts by the last number in it: "so she pays 18 dollars a day" agrees with 18.
    """
    expected = truth_of(truth)
    marked = answer_of(response)
    if marked is not None and agree(marked, expected):
        return 1.0
    number = parse_number(expected)
    if number is None:
        return 1.0 if marked is None and _text(response) == _text(expected) else 0.0
    return 1.0 if last_number(response.rpartition("</think>")[2] if marked is None else marked) == number else 0.0


def _text(text: str) -> str:
    return re.sub(r"\s+", "", _WRAPPER.sub(r"\1", plain(text))).rstrip(".").casefold()
