"""Evaluations under way: which rows of a held-out taskset are leased, and which are scored."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from rftd.streams.events import experience, step, task
from rftd.streams.figures.reward_parts import part_means, part_sums
from rftd.streams.log.codec import Decoded
from rftd.streams.log.writers import source_of


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
    holders: dict[UUID, str] = {}
    """The source of the worker that each lease was given to, whether or not the lease is over."""

    def holder(self, lease: UUID) -> str | None:
        """The source of the worker that a lease was given to; None if there was no such lease yet."""
        return self.holders.get(lease)

    def rows_scored(self) -> int:
        """Rows that have a score."""
        return sum(scored.rows for scored in self.scores.values())

    def in_order(self) -> list[experience.EvalScored]:
        """The scores, by their rows."""
        return [self.scores[row] for row in sorted(self.scores)]

    def mean_reward(self) -> float:
        """Mean score over the answers, in row order."""
        # The order matters to the last bit: a sum of floats depends on it, and every daemon must write the same score.
        return float(np.concatenate([scored.rewards.view() for scored in self.in_order()]).mean())

    def mean_tokens(self) -> float:
        """Mean response length in tokens."""
        return float(np.concatenate([scored.tokens.view() for scored in self.in_order()]).mean())

    def reward_parts(self) -> dict[str, float]:
        """Mean of each named part of the rewards over the answers, by the names of figures."""
        answers = sum(len(scored.rewards) for scored in self.scores.values())
        return part_means(part_sums(scored.reward_parts for scored in self.in_order()), answers)


class EarlyScore(NamedTuple):
    """A score whose lease was not read yet."""

    source: str
    event: experience.EvalScored


class EvalFold(msgspec.Struct):
    """Evaluations that are not completed."""

    open: dict[UUID, Evaluation] = {}
    early: dict[UUID, list[EarlyScore]] = {}
    """Scores of leases that were not read yet, by evaluation: those that lie before the one that counts."""
    _completed: set[UUID] = set()  # else a score that is read late would open its evaluation anew

    def apply(self, decoded: Decoded) -> None:
        """Takes in eval.leased, eval.scored, task.expired and eval.completed."""
        event = decoded.event
        match event:
            case task.EvalLeased():
                if event.eval not in self._completed:
                    self._leased(event)
            case experience.EvalScored():
                if event.eval not in self._completed:
                    self._scored(event, decoded.head.source)
            case task.TaskExpired():
                self._expire(event.lease)
            case step.EvalCompleted():
                self._completed.add(event.eval)
                self.open.pop(event.eval, None)
                self.early.pop(event.eval, None)
            case _:
                pass

    def _leased(self, event: task.EvalLeased) -> None:
        fresh = Evaluation(stage=event.stage, taskset=event.taskset, version=event.version)
        evaluation = self.open.setdefault(event.eval, fresh)
        evaluation.attempts[event.row_start] = max(event.attempt, evaluation.attempts.get(event.row_start, 0))
        evaluation.holders[event.lease] = source_of("explorer", event.worker)
        # A score or an expiry may be read before its lease, which lies in another partition.
        if event.lease not in evaluation.over and event.row_start not in evaluation.scores:
            evaluation.leases[event.lease] = event
        if event.eval in self.early:
            self._hand_out_early(event, evaluation)

    def _hand_out_early(self, leased: task.EvalLeased, evaluation: Evaluation) -> None:
        """Takes in the score that the lease's holder wrote before the lease was read, if there is one."""
        holder = evaluation.holder(leased.lease)
        kept: list[EarlyScore] = []
        first: experience.EvalScored | None = None
        for score in self.early.pop(leased.eval):
            if score.event.lease == leased.lease:
                first = score.event if first is None and score.source == holder else first
            # What comes after the score that counts does not count any more.
            elif first is None or score.event.row_start != first.row_start:
                kept.append(score)
        if kept:
            self.early[leased.eval] = kept
        if first is not None:
            _score(evaluation, first)

    def _scored(self, event: experience.EvalScored, source: str) -> None:
        """Takes in the first score of some rows; before its lease is read nobody knows whose it is."""
        evaluation = self.open.get(event.eval)
        if evaluation is not None and event.row_start in evaluation.scores:
            return
        holder = evaluation.holder(event.lease) if evaluation is not None else None
        if evaluation is None or holder is None:
            self._note_early(EarlyScore(source, _without_texts(event)))
        elif holder == source:
            _score(evaluation, event)

    def _note_early(self, score: EarlyScore) -> None:
        scores = self.early.setdefault(score.event.eval, [])
        place = (score.source, score.event.lease, score.event.row_start)
        # Of one writer and lease the first: a transport may repeat it.
        if not any((known.source, known.event.lease, known.event.row_start) == place for known in scores):
            scores.append(score)

    def _expire(self, lease: UUID) -> None:
        for evaluation in self.open.values():
            if (leased := evaluation.leases.pop(lease, None)) is not None:
                evaluation.over[lease] = leased.row_start


def _score(evaluation: Evaluation, event: experience.EvalScored) -> None:
    """Takes in the score of some rows; every lease of the same rows is over, whichever was read first."""
    evaluation.scores[event.row_start] = _without_texts(event)
    for lease in [id for id, leased in evaluation.leases.items() if leased.row_start == event.row_start]:
        del evaluation.leases[lease]
    for lease in [id for id, row_start in evaluation.over.items() if row_start == event.row_start]:
        del evaluation.over[lease]


def _without_texts(event: experience.EvalScored) -> experience.EvalScored:
    """The score without a judge's words and without the answers, which are long and decide nothing."""
    return msgspec.structs.replace(event, auxiliary=(), answers=None)
