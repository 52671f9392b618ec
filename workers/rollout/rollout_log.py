"""`RolloutLog`: the lines of an explorer's log about what it was asked for: failed rollouts, answered evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from rftd.ops.clock import Clock
from rftd.ops.logs import Logger
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.spec import TasksetSpec

REASON_CHARS = 300
"""Of a reason, which the event has whole: a line is read by people."""


class RolloutLog:
    """Tells failed rollouts, few of many, and rows of evaluations."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._failed: Counter[str] = Counter()
        """Failures so far, by code: the codes are those of the tree of errors, and few."""

    def ended(self, events: Iterable[ExperienceProduced | RolloutFailed]) -> None:
        """Tells the first, second, fourth, eighth ... failure of each code, with how many there were."""
        for event in events:
            if not isinstance(event, RolloutFailed):
                continue
            self._failed[event.code] += 1
            count = self._failed[event.code]
            if count & (count - 1) == 0:
                self._log.warning(
                    "rollout.failed",
                    code=event.code,
                    failed=count,
                    group=str(event.group),
                    rollout=event.rollout,
                    reason=event.reason[:REASON_CHARS],
                )

    def evaluated(self, scored: EvalScored, taskset: TasksetSpec, began_s: float) -> None:
        """Tells the mean reward of rows that were answered: of a small taskset, the whole evaluation."""
        rewards = scored.rewards.view()
        self._log.info(
            "eval.scored",
            version=scored.version,
            taskset=taskset.name,
            first_row=scored.row_start,
            rows=len(rewards),
            of_rows=taskset.rows,
            score=round(float(np.mean(rewards)), 4) if len(rewards) else None,
            eval_s=round(self._clock.monotonic_s() - began_s, 3),
        )
