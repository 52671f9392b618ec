"""A look at the right answers and the categories of a dataset before its experiment is accepted."""

from __future__ import annotations

from typing import Final

from rftd.workers.rollout.workflows.registry import own_reward
from rftd.workers.tasksets.record import DatasetRecord
from rftd.workers.tasksets.taskset import Taskset

_OF_TEXTS: Final = frozenset(
    ("math_reward", "math_boxed_reward", "math_verify_reward", "accuracy_reward", "exact_match_reward")
)
"""Rewards of ours that compare an answer with a text, which the JSON of a mapping or a list never equals."""
_LOOKS: Final = 10_000
"""Rows that are looked at beside the first of each file, in ascending order: of a smaller dataset all."""


def check_truths(taskset: Taskset) -> None:
    """Returns if each truth that was looked at is a text where its reward takes one. Raises DataError, with the row."""
    spec = taskset.spec
    key = spec.format.response_key
    if not key:
        return
    looks = min(_LOOKS, len(taskset))
    spread = {number * len(taskset) // looks for number in range(looks)}
    for row in sorted({*taskset.first_rows, *spread}):
        record = DatasetRecord(taskset.row(row), spec, row)
        workflow = record.optional(spec.format.workflow_key) or spec.workflow
        reward = record.optional(spec.format.reward_fn_key) or spec.reward or own_reward(workflow)
        value = record.value(key)
        if reward in _OF_TEXTS and isinstance(value, dict | list):
            kind = "mapping" if isinstance(value, dict) else "list"
            raise record.error(f"has a {kind} under {key!r}, where {reward} takes a text: name one within it", key)


def check_categories(taskset: Taskset) -> None:
    """Returns if the first row of each file has a category, where a column of them is named. Raises DataError."""
    key = taskset.spec.format.category_key
    for row in taskset.first_rows if key else ():
        DatasetRecord(taskset.row(row), taskset.spec, row).text(key or "")
