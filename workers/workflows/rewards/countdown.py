"""Countdown: an expression using given numbers once each, with a target value."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.answer import last_tagged, visible
from rftd.workers.workflows.rewards.expression import value_of
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.rule_based import FORMAT_REWARD

_NUMBERS: Final = ("numbers", "nums")
"""Columns with the given numbers."""
_PLAIN: Final = re.compile(r"[-+*/()\d\s]+", re.ASCII)
"""Characters of a plain expression."""
_TARGET: Final = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)
"""Form of a target."""
_UNSUPPORTED_OPERATORS: Final = re.compile(r"\*\s*\*|/\s*/|[\d)]\s*\(|\)\s*\d", re.ASCII)
"""Powers, whole quotients and products without a sign, excluded from the four operations."""


class CountdownReward:
    """1 for an expression in the last `<answer>` using each number once to reach the target; 0.1 for another answer.

    The truth is `{"target": 24, "numbers": [3, 8]}` as JSON, or the target alone beside a column `numbers` or `nums`.
    The expression has whole numbers, + - * / and brackets; it is computed exactly, and never run as code.
    """

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns `accuracy`: 0 or 1, and `format_score`: 0.1 for a wrong answer in tags. Raises DataError for a
        malformed row.
        """
        target, numbers = _target_and_numbers(truth, task)
        answer = last_tagged(visible(response), "answer")
        if answer is None:
            return RewardResult.of(accuracy=0.0, format_score=0.0)
        if solves(answer, target, numbers):
            return RewardResult.of(answer.strip(), accuracy=1.0, format_score=0.0)
        return RewardResult.of(answer.strip(), accuracy=0.0, format_score=FORMAT_REWARD)


def solves(expression: str, target: Fraction, numbers: Sequence[int]) -> bool:
    """True if the expression uses each of the numbers exactly once and its value is `target`."""
    if not _PLAIN.fullmatch(expression) or _UNSUPPORTED_OPERATORS.search(expression):
        return False
    # A number with more digits than the longest given one matches none, and would be expensive to read.
    longest = max((len(str(number)) for number in numbers), default=0)
    used = re.findall(r"\d+", expression, re.ASCII)
    if any(len(digits) > longest for digits in used) or Counter(map(int, used)) != Counter(numbers):
        return False
    return value_of(expression) == target


def _target_and_numbers(truth: str, task: Task) -> tuple[Fraction, list[int]]:
    """Reads the target and the numbers of a row."""
    try:
        decoded: Any = json.loads(truth)
        columns = decoded if isinstance(decoded, dict) else {**task.raw, "target": decoded}
        target = str(columns["target"])
        if not _TARGET.fullmatch(target):  # an exponent could demand a number beyond any memory
            raise ValueError
        numbers = next(columns[name] for name in _NUMBERS if name in columns)
        if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            raise ValueError
        return Fraction(target), list(numbers)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        raise DataError(
            f"{truth[:80]!r} is not a Countdown task",
            where=task.where,
            fix='write the answer as {"target": 24, "numbers": [3, 8]}, or the target beside a column `numbers`',
        ) from None
