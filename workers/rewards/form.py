"""Whether think and answer tags are there."""

from __future__ import annotations

import re
from typing import Final

from rftd.workers.rewards.reward import RewardResult
from rftd.workers.tasksets.task import Task

FORMAT_REWARD: Final = 0.1
_TURN: Final = re.compile(r"</think>\s*<answer>")


class FormatReward:
    """+0.1 if the response is exactly tags on lines of their own around think and answer, else -0.1."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`format_score`: 0.1 or -0.1."""
        return RewardResult.of(format_score=FORMAT_REWARD if tags_on_lines(response) else -FORMAT_REWARD)


def tags_on_lines(response: str) -> bool:
    """True for `<think>\\n...\\n</think>\\n<answer>\\n...\\n</answer>` and nothing around it."""
    head, tail, turn = "<think>\n", "\n</answer>", "\n</think>\n<answer>\n"
    if not (response.startswith(head) and response.endswith(tail)):
        return False
    return turn in response[len(head) : -len(tail)]


def tags_at_end(response: str) -> bool:
    """True if the response ends with `<think>...</think> <answer>...</answer>`; any text may come before."""
    response = response.rstrip()
    opened = response.find("<think>")
    if opened < 0 or not response.endswith("</answer>"):
        return False
    turn = _TURN.search(response, opened + len("<think>"))
    return turn is not None and turn.end() <= len(response) - len("</answer>")
