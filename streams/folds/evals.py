"""`EvalFold`: unfinished evaluations, with the leased and the scored rows of held-out tasksets."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from rftd.streams.events import experience, step, task
from rftd.streams.figures.reward_parts import part_means, part_sums
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import source_of


class Evaluation(msgspec.Struct):
    """One evaluation: a taskset answered by one weight version, with leases and scores."""

    stage: int
    """Index of the stage in the specification."""
    taskset: int
    """Index in the stage's `evals`."""
    version: int
    """Weight version."""
    leases: dict[UUID, task.EvalLeased] = {}
    """Unfinished leases, by id."""
    attempts: dict[int, int] = {}
    """Number of leases of each range of rows, by first row."""
    scores: dict[int, experience.EvalScored] = {}
    """First score of each range of rows, by first row."""
    over: dict[UUID, int] = {}
    """Expired leases with their first row, until the rows are scored, so that a repeated lease record is ignored."""
    holders: dict[UUID, str] = {}
    """Source of the worker holding each lease, remembered after the lease's end."""

    def holder(self, lease: UUID) -> str | None:
        """Returns the source of a lease's worker; None for an unknown lease."""
        return self.holders.get(lease)

    def rows_scored(self) -> int:
        """Returns the number of rows with a score."""
        return sum(scored.rows for scored in self.scores.values())

    def in_order(self) -> list[experience.EvalScored]:
        """Returns the scores, in the order of their rows."""
        return [self.scores[row] for row in sorted(self.scores)]

    def mean_reward(self) -> float:
        """Computes the mean score over the answers, in row order."""
        # The order matters to the last bit: a sum of floats depends on it, and every daemon must write an equal score.
        return float(np.concatenate([scored.rewards.view() for scored in self.in_order()]).mean())

    def mean_tokens(self) -> float:
        """Computes the mean response length in tokens."""
        return float(np.concatenate([scored.tokens.view() for scored in self.in_order()]).mean())

    def reward_parts(self) -> dict[str, float]:
        """Computes the mean of each named part of the rewards over the answers, by the names of figures."""
        answers = sum(len(scored.rewards) for scored in self.scores.values())
        return part_means(part_sums(scored.reward_parts for scored in self.in_order()), answers)


class EarlyScore(NamedTuple):
    """A score read before its lease, from another partition, with the source of its writer."""

    source: str
    """Name of the record's writer."""
    event: experience.EvalScored
    """The event."""


class EvalFold(msgspec.Struct):
    """Evaluations begun and not completed, with scores read before their leases."""

    open: dict[UUID, Evaluation] = {}
    """Unfinished evaluations, by id."""
    early: dict[UUID, list[EarlyScore]] = {}
    """Scores read before their leases, by evaluation; at most those before the counting one."""
    _completed: set[UUID] = set()  # else a score read late would open its evaluation anew
    """Ids of completed evaluations."""

    def apply(self, decoded: Decoded) -> None:
        """Folds eval.leased, eval.scored, task.expired and eval.completed."""
        event = decoded.event
        match event:
            case task.EvalLeased():
                if event.eval not in self._completed:
                    self._fold_lease(event)
            case experience.EvalScored():
                if event.eval not in self._completed:
                    self._fold_scores(event, decoded.head.source)
            case task.TaskExpired():
                self._expire(event.lease)
            case step.EvalCompleted():
                self._completed.add(event.eval)
                self.open.pop(event.eval, None)
                self.early.pop(event.eval, None)
            case _:
                pass

    def _fold_lease(self, event: task.EvalLeased) -> None:
        """Folds a lease of rows; the first lease of an evaluation begins the evaluation."""
        fresh = Evaluation(stage=event.stage, taskset=event.taskset, version=event.version)
        evaluation = self.open.setdefault(event.eval, fresh)
        evaluation.attempts[event.row_start] = max(event.attempt, evaluation.attempts.get(event.row_start, 0))
        evaluation.holders[event.lease] = source_of("explorer", event.worker)
        # A score or an expiry may be read before its lease, as they lie in another partition.
        if event.lease not in evaluation.over and event.row_start not in evaluation.scores:
            evaluation.leases[event.lease] = event
        if event.eval in self.early:
            self._hand_out_early(event, evaluation)

    def _hand_out_early(self, leased: task.EvalLeased, evaluation: Evaluation) -> None:
        """Counts the score written by the lease's holder before the lease was read, if there is one."""
        holder = evaluation.holder(leased.lease)
        remaining: list[EarlyScore] = []
        first: experience.EvalScored | None = None
        for score in self.early.pop(leased.eval):
            if score.event.lease == leased.lease:
                first = score.event if first is None and score.source == holder else first
            # Scores after the counting one no longer count.
            elif first is None or score.event.row_start != first.row_start:
                remaining.append(score)
        if remaining:
            self.early[leased.eval] = remaining
        if first is not None:
            _store_scores(evaluation, first)

    def _fold_scores(self, event: experience.EvalScored, source: str) -> None:
        """Counts the first score of a range of rows; before its lease is read, the right author is unknown."""
        evaluation = self.open.get(event.eval)
        if evaluation is not None and event.row_start in evaluation.scores:
            return
        holder = evaluation.holder(event.lease) if evaluation is not None else None
        if evaluation is None or holder is None:
            self._note_early(EarlyScore(source, _without_texts(event)))
        elif holder == source:
            _store_scores(evaluation, event)

    def _note_early(self, score: EarlyScore) -> None:
        """Stores a score read before its lease; of several scores of one writer and lease, the first is stored."""
        scores = self.early.setdefault(score.event.eval, [])
        identity = (score.source, score.event.lease, score.event.row_start)
        # For one writer and lease the first: a transport may repeat the record.
        if not any((earlier.source, earlier.event.lease, earlier.event.row_start) == identity for earlier in scores):
            scores.append(score)

    def _expire(self, lease: UUID) -> None:
        """Ends an expired lease of rows, in whichever open evaluation has it; an unknown lease changes nothing."""
        for evaluation in self.open.values():
            if (leased := evaluation.leases.pop(lease, None)) is not None:
                evaluation.over[lease] = leased.row_start


def _store_scores(evaluation: Evaluation, event: experience.EvalScored) -> None:
    """Stores the score of a range of rows; every lease of the rows is over, whichever was read first."""
    evaluation.scores[event.row_start] = _without_texts(event)
    for lease in [id for id, leased in evaluation.leases.items() if leased.row_start == event.row_start]:
        del evaluation.leases[lease]
    for lease in [id for id, row_start in evaluation.over.items() if row_start == event.row_start]:
        del evaluation.over[lease]


def _without_texts(event: experience.EvalScored) -> experience.EvalScored:
    """Returns the score without a judge's words and without the answers, which are long and decide nothing."""
    return msgspec.structs.replace(event, auxiliary=(), answers=None)
