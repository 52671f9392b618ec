"""Events counted only once: plans by their steps, other decisions by their ids, of which the newest are remembered.

An event may lie in a partition twice if its writer got no acknowledgement (Kafka). The repetition precedes the writer's
next append, or its writer has been replaced by a fence since; so the newest ids suffice.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events import batch
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.ranges import Ranges

REMEMBERED: Final = 4096
"""Minimum number of newest ids, and newest steps, remembered; the maximum is twice as high."""


class Recent(msgspec.Struct):
    """The newest ids of one partition's events."""

    newer: set[UUID] = set()
    older: set[UUID] = set()

    def __contains__(self, id: UUID) -> bool:
        return id in self.newer or id in self.older

    def first(self, id: UUID) -> bool:
        """Remembers an id; False if already known."""
        if id in self:
            return False
        self.newer.add(id)
        # Two halves: dropping one is free, while an order of single ids would cost time with each id.
        if len(self.newer) >= REMEMBERED:
            self.older = self.newer
            self.newer = set()
        return True


class PlannedBatches(msgspec.Struct):
    """Steps with a batch planned and not abandoned: from the spine alone, hence in one order everywhere."""

    steps: Ranges = msgspec.field(default_factory=Ranges)
    newest: dict[int, UUID] = {}
    """The batches of the newest steps."""
    abandoned: set[UUID] = set()
    furthest: int = 0
    """The last executed step."""
    before: int = 0
    """The last step before the first one to be planned: of the history shared by a fork, or of earlier stages."""

    @property
    def last(self) -> int:
        """The last step planned here or made elsewhere: the next plan is for the step after it."""
        return max(self.before, self.steps.last or 0)

    def begin(self, version: int) -> None:
        """Sets the weight version after which batches are planned next."""
        self.before = max(self.before, version)

    def plan(self, event: batch.BatchPlanned) -> bool:
        """Adds a plan; False if it is known, or not for the next step: a planner skips none."""
        if event.batch in self.abandoned or event.step != self.last + 1:
            return False
        self.steps.add(event.step)
        self.newest[event.step] = event.batch
        trim(self.newest)
        return True

    def abandon(self, event: batch.BatchAbandoned) -> bool:
        """Removes a plan; False if it is not the plan of its step, or was executed before: an executed plan stands."""
        # Of a step and its abandonment the first on the spine counts: an executed plan made weights, and stands.
        if event.step <= self.furthest:
            return False
        # For a step no longer among the newest, the batch is unknown, and believed.
        planned_batch = self.newest.get(event.step, event.batch)
        if event.batch in self.abandoned or event.step not in self.steps or planned_batch != event.batch:
            return False
        self.steps.discard(event.step)
        self.newest.pop(event.step, None)
        self.abandoned.add(event.batch)
        return True

    def complete(self, event: StepCompleted) -> None:
        """Counts a step; a step of a batch abandoned before does not count."""
        if event.batch not in self.abandoned:
            self.furthest = max(self.furthest, event.step)


def trim(newest: dict[object, object] | dict[int, UUID] | dict[int, int] | dict[tuple[int, int], str]) -> None:
    """Drops the oldest keys of a mapping grown too large; seldom, and therefore at negligible cost."""
    if len(newest) >= 2 * REMEMBERED:
        for key in list(newest)[:REMEMBERED]:
            del newest[key]  # type: ignore[arg-type]
