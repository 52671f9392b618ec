"""Events that must not count twice: plans by their steps, other decisions by their ids, of which the newest are known.

An event may lie in a partition twice where a writer could not know that it was heard (Kafka). The second comes before
the writer's next append, or it is of a writer that a fence has replaced since; so the newest ids suffice.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events import batch
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.ranges import Ranges

REMEMBERED: Final = 4096
"""Newest ids, and newest steps, that are known at least; twice as many are at most."""


class Recent(msgspec.Struct):
    """The newest ids of one partition's events."""

    newer: set[UUID] = set()
    older: set[UUID] = set()

    def __contains__(self, id: UUID) -> bool:
        return id in self.newer or id in self.older

    def first(self, id: UUID) -> bool:
        """Takes it in; False if it was there."""
        if id in self:
            return False
        self.newer.add(id)
        # Two halves: dropping one is free, where an order of single ids would cost with each of them.
        if len(self.newer) >= REMEMBERED:
            self.older = self.newer
            self.newer = set()
        return True


class PlannedBatches(msgspec.Struct):
    """Steps whose batch is planned and was not abandoned: of the spine alone, so in one order everywhere."""

    steps: Ranges = msgspec.field(default_factory=Ranges)
    newest: dict[int, UUID] = {}
    """The batches of the newest steps."""
    abandoned: set[UUID] = set()
    furthest: int = 0
    """The last step that was executed."""
    before: int = 0
    """The last step before the first that may be planned: of the history that a fork shares, or of earlier stages."""

    @property
    def last(self) -> int:
        """The last step that is planned, or made elsewhere: the next plan is of the step after it."""
        return max(self.before, self.steps.last or 0)

    def begin(self, version: int) -> None:
        """Sets the weight version after which batches are planned next."""
        self.before = max(self.before, version)

    def plan(self, event: batch.BatchPlanned) -> bool:
        """Takes in a plan; False if it was there, or is not of the next step: a planner leaves none out."""
        if event.batch in self.abandoned or event.step != self.last + 1:
            return False
        self.steps.add(event.step)
        self.newest[event.step] = event.batch
        trim(self.newest)
        return True

    def abandon(self, event: batch.BatchAbandoned) -> bool:
        """Takes it out again; False if it is not the plan of its step, or was executed before: that stands."""
        # Of a step and its abandonment the first on the spine counts: what was executed made weights, and stands.
        if event.step <= self.furthest:
            return False
        # Of a step that is no longer among the newest the batch is not known, and believed.
        known = self.newest.get(event.step, event.batch)
        if event.batch in self.abandoned or event.step not in self.steps or known != event.batch:
            return False
        self.steps.discard(event.step)
        self.newest.pop(event.step, None)
        self.abandoned.add(event.batch)
        return True

    def complete(self, event: StepCompleted) -> None:
        """Takes in a step; one of a batch that was abandoned before it does not count."""
        if event.batch not in self.abandoned:
            self.furthest = max(self.furthest, event.step)


def trim(newest: dict[object, object] | dict[int, UUID] | dict[int, int] | dict[tuple[int, int], str]) -> None:
    """Drops the oldest of too many; seldom, so that it costs nothing."""
    if len(newest) >= 2 * REMEMBERED:
        for key in list(newest)[:REMEMBERED]:
            del newest[key]  # type: ignore[arg-type]
