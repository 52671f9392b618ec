"""`RolloutLog`: the lines of an explorer's log about what it was asked for: failed rollouts, answered evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, explain
from rftd.ops.logs import Logger
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.spec.spec import TasksetSpec

REASON_CHARS = 300
"""Of a reason, which the event has whole: a line is read by people."""


class RolloutLog:
    """Tells failed rollouts, few of many, and rows of evaluations."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._failed: Counter[str] = Counter()
        """Failures so far, by code: the codes are those of the tree of errors, and few."""
        self._retried: Counter[str] = Counter()
        """Failed attempts that others followed, by code."""

    def ended(self, events: Iterable[ExperienceProduced | RolloutFailed]) -> None:
        """Tells the first, second, fourth, eighth ... failure of each code, with how many there were."""
        for event in events:
            if not isinstance(event, RolloutFailed):
                continue
            self._failed[event.code] += 1
            count = self._failed[event.code]
            if _told(count):
                self._log.warning(
                    "rollout.failed",
                    code=event.code,
                    failed=count,
                    group=str(event.group),
                    rollout=event.rollout,
                    reason=event.reason[:REASON_CHARS],
                )

    def tried_again(self, error: RftdError) -> None:
        """Tells as few of the attempts that failed and are made again: each cost its time, and no event says so."""
        self._retried[error.code] += 1
        count = self._retried[error.code]
        if _told(count):
            self._log.warning("rollout.retried", code=error.code, retried=count, reason=explain(error)[:REASON_CHARS])

    def evaluated(self, scored: EvalScored, taskset: TasksetSpec, began_s: float) -> None:
        """Tells the mean reward of rows that were answered: of a small taskset, the whole evaluation."""
        rewards = scored.rewards.view()
        self._log.info(
            "eval.scored",
            version=scored.version,
            taskset=taskset.name,
            first_row=scored.row_start,
            rows=scored.rows,
            of_rows=taskset.rows,
            score=round(float(np.mean(rewards)), 4) if len(rewards) else None,
            eval_s=round(self._clock.monotonic_s() - began_s, 3),
        )


def _told(count: int) -> bool:
    """True for the first, second, fourth, eighth ... of its kind."""
    return count & (count - 1) == 0
