"""`RolloutLog`: lines of an explorer's log about its work: failed rollouts, retried attempts, answered evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, explain
from rftd.ops.logs import Logger
from rftd.streams.events.experience import EvalScored, ExperienceProduced, RolloutFailed
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.workflows.runner import SILENT_ROLLOUTS

REASON_CHARS = 300
"""Maximum characters of a reason in a log line; the event has the full reason."""


class RolloutLog:
    """Logs failed and retried rollouts, few of many, and each answered range of an evaluation's rows."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        """Lines go to `log`; `clock` times evaluations."""
        self._log = log
        self._clock = clock
        self._failed: Counter[str] = Counter()
        """Number of failed rollouts by error code."""
        self._retried: Counter[str] = Counter()
        """Failed attempts with a retry, by code."""

    def ended(self, events: Iterable[ExperienceProduced | RolloutFailed]) -> None:
        """Logs failed rollouts, but of each error code only failure number 1, 2, 4, 8, ..., with that number."""
        for event in events:
            if not isinstance(event, RolloutFailed):
                continue
            self._failed[event.code] += 1
            count = self._failed[event.code]
            if _is_logged(count):
                self._log.warning(
                    "rollout.failed",
                    code=event.code,
                    failed=count,
                    group=str(event.group),
                    rollout=event.rollout,
                    reason=event.reason[:REASON_CHARS],
                )

    def tried_again(self, error: RftdError) -> None:
        """Logs retried attempts, equally thinned: they cost time, and no event records them."""
        self._retried[error.code] += 1
        count = self._retried[error.code]
        if _is_logged(count):
            self._log.warning("rollout.retried", code=error.code, retried=count, reason=explain(error)[:REASON_CHARS])

    def silent_role(self, workflow: str, role: str) -> None:
        """Logs a role declared by a workflow and used by none of its first rollouts."""
        self._log.warning(
            "workflow.silent_role",
            workflow=workflow,
            agent=role,
            reason=f"no rollout of {SILENT_ROLLOUTS} had a sequence of this role: nothing of the role is trained",
        )

    def evaluated(self, scored: EvalScored, taskset: TasksetSpec, began_s: float) -> None:
        """Logs the mean reward of the rows of one lease, and the seconds taken."""
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


def _is_logged(count: int) -> bool:
    """True for counts of one, two, four, eight and so on."""
    return count & (count - 1) == 0
