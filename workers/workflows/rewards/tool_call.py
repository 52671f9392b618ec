"""`ToolCallReward`: calls of functions in a response, compared with those of the row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.reward import RewardResult

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
"""A call between tags."""
_EXTRACTED_CHARACTERS: Final = 200
"""Maximum characters of the extracted answer."""


class ToolCallReward:
    """1 if the response calls the functions of the truth with equal arguments, in any order, else 0.

    Calls are JSON between `<tool_call>` and `</tool_call>`: an object with `name` and `arguments`, or a list.
    With `with_think`, a response without a thought in think tags before its first call gets 0.
    """

    def __init__(self, *, with_think: bool = True) -> None:
        """`with_think`: a response without a tagged thought earns 0."""
        self._with_think = with_think

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns `accuracy`: 0 or 1. Raises DataError if the truth has no calls in JSON."""
        try:
            expected = sorted(_calls(truth))
        except ValueError as error:
            raise DataError(f"the truth has no calls in JSON: {error}", where=task.where) from error
        head, opened, _ = response.partition("<tool_call>")
        thought = head.partition("<think>")[2].partition("</think>")
        formed = bool(opened) and (not self._with_think or bool(thought[1]))
        try:
            called = sorted(call for text in _CALL.findall(response) for call in _calls(text))
        except (ValueError, RecursionError):
            return RewardResult.of(None, accuracy=0.0)
        extracted = " ".join(called)[:_EXTRACTED_CHARACTERS] or None
        return RewardResult.of(extracted, accuracy=float(formed and called == expected))


def _calls(text: str) -> Iterator[str]:
    """Yields each call in a JSON text in one spelling: sorted keys, arguments parsed where written as a text."""
    content = json.loads(text)
    for call in content if isinstance(content, list) else [content]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("a call is no object with a name")
        arguments: Any = call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        yield json.dumps({"name": call["name"], "arguments": arguments}, sort_keys=True)
