"""Evaluations under way: which rows of a held-out taskset are leased, and which are scored."""

from __future__ import annotations

from uuid import UUID

import msgspec
import numpy as np

from rftd.streams.codec import Decoded
from rftd.streams.events import experience, step, task


class Evaluation(msgspec.Struct):
    """One taskset answered by one weight version."""

    stage: int
    taskset: int
    version: int
    leases: dict[UUID, task.EvalLeased] = {}
    attempts: dict[int, int] = {}
    """Leases given out so far, by first row."""
    scores: dict[int, experience.EvalScored] = {}
    """The first score of each range of rows, by first row."""
    over: dict[UUID, int] = {}
    """Leases that expired, with their first rows, while these have no score: one that comes again is none."""

    def rows_scored(self) -> int:
        """Rows that have a score."""
        return sum(len(scored.rewards) for scored in self.scores.values())

    def mean_reward(self) -> float:
        """Mean score over the rows, in row order."""
        # The order matters to the last bit: a sum of floats depends on it, and every daemon must write the same score.
        return float(np.concatenate([self.scores[row].rewards.view() for row in sorted(self.scores)]).mean())

    def mean_tokens(self) -> float:
        """Mean response length in tokens."""
        return float(np.concatenate([self.scores[row].tokens.view() for row in sorted(self.scores)]).mean())


class EvalFold(msgspec.Struct):
    """Evaluations that are not completed."""

    open: dict[UUID, Evaluation] = {}
    _completed: set[UUID] = set()  # else a score that is read late would open its evaluation anew

    def apply(self, decoded: Decoded) -> None:
        """Takes in eval.leased, eval.scored, task.expired and eval.completed."""
        event = decoded.event
        match event:
            case task.EvalLeased():
                if (evaluation := self._evaluation(event)) is not None:
                    evaluation.attempts[event.row_start] = max(
                        event.attempt, evaluation.attempts.get(event.row_start, 0)
                    )
                    # A score or an expiry may be read before its lease, which lies in another partition.
                    if event.lease not in evaluation.over and event.row_start not in evaluation.scores:
                        evaluation.leases[event.lease] = event
            case experience.EvalScored():
                if (evaluation := self._evaluation(event)) is not None:
                    _score(evaluation, event)
            case task.TaskExpired():
                self._expire(event.lease)
            case step.EvalCompleted():
                self._completed.add(event.eval)
                self.open.pop(event.eval, None)
            case _:
                pass

    def _evaluation(self, event: task.EvalLeased | experience.EvalScored) -> Evaluation | None:
        """None if it is completed. A score says as well of what it is: its lease may never have had an effect."""
        if event.eval in self._completed:
            return None
        fresh = Evaluation(stage=event.stage, taskset=event.taskset, version=event.version)
        return self.open.setdefault(event.eval, fresh)

    def _expire(self, lease: UUID) -> None:
        for evaluation in self.open.values():
            if (leased := evaluation.leases.pop(lease, None)) is not None:
                evaluation.over[lease] = leased.row_start


def _score(evaluation: Evaluation, event: experience.EvalScored) -> None:
    """Takes in the first score of some rows; every lease of the same rows is over, whichever was read first."""
    if event.row_start not in evaluation.scores:  # without a judge's words, which are long and decide nothing
        evaluation.scores[event.row_start] = msgspec.structs.replace(event, auxiliary=())
    for lease in [id for id, leased in evaluation.leases.items() if leased.row_start == event.row_start]:
        del evaluation.leases[lease]
    for lease in [id for id, row_start in evaluation.over.items() if row_start == event.row_start]:
        del evaluation.over[lease]
