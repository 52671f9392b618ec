"""`Processing`: the experience pipeline's work on one finished group: leases to explorers, and their answers."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from rftd.streams.events import experience, task
from rftd.streams.log.writers import source_of


class PipelineAnswer(NamedTuple):
    """The verdicts on a group, with the source of their writer."""

    source: str
    """Name of the record's writer."""
    event: experience.GroupProcessed
    """Verdicts of the pipeline on the group's members, or the reason of a failure."""


class Processing(msgspec.Struct):
    """Leases of one group for its stage's experience pipeline. The first answer by the holder of a lease counts."""

    attempts: int = 0
    """Number of leases until now."""
    leases: dict[UUID, task.GroupLeased] = {}
    """Unfinished leases."""
    answers: list[PipelineAnswer] = []
    """Answers in the order of the log, the first of each writer and lease; leases may be read after their answers."""
    _holders: dict[UUID, str] = {}
    """Source of the worker holding each lease, remembered after the lease's end."""
    _over: set[UUID] = set()
    """Expired leases, so that a repeated lease record is ignored."""

    def lease(self, event: task.GroupLeased) -> None:
        """Folds a lease, which may have been answered or expired before, as read from another partition."""
        self.attempts = max(self.attempts, event.attempt)
        self._holders[event.lease] = source_of("explorer", event.worker)
        if event.lease not in self._over and not any(self._counts(answer, event.lease) for answer in self.answers):
            self.leases[event.lease] = event

    def answer(self, event: experience.GroupProcessed, source: str) -> None:
        """Folds an answer."""
        answer = PipelineAnswer(source, event)
        if any((earlier.source, earlier.event.lease) == (source, event.lease) for earlier in self.answers):
            return
        self.answers.append(answer)
        if self._counts(answer, event.lease):
            self.leases.pop(event.lease, None)

    def expire(self, lease: UUID) -> None:
        """Folds the expiry of a lease."""
        self.leases.pop(lease, None)
        self._over.add(lease)

    def verdict_on(self, rollouts: tuple[int, ...]) -> experience.GroupProcessed | None:
        """Returns the counting answer about exactly these rollouts; None without one."""
        for answer in self.answers:
            if answer.event.rollouts == rollouts and self._counts(answer, answer.event.lease):
                return answer.event
        return None

    def _counts(self, answer: PipelineAnswer, lease: UUID) -> bool:
        """True for an answer to this lease by its holder."""
        return answer.event.lease == lease and self._holders.get(lease) == answer.source
