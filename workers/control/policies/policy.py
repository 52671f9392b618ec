"""`StalenessPolicy` answers what may start, what is trained next, and what never can be (DESIGN, "Policies")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The counts that a policy decides on: a reading of the folded state. Steps count within the stage, from 1."""

    version: int
    """Weight version of the trainer, counted over the experiment."""
    first_version: int
    """Weight version at which the stage began."""
    published_version: int
    """The newest weight version that is announced to explorers."""
    starting_version: int | None = None
    """The version that a group which starts now begins on; None: the schedule of synchronisation says."""
    total_steps: int
    planned_steps: int
    """Batches of this stage planned so far."""
    batch_size: int
    """Experiences of one batch."""
    repeat_times: int
    """Rollouts of one group."""
    planned_experiences: int
    """Experiences of this stage that were planned at least once."""
    waiting_experiences: int
    """Experiences that were never planned so far."""
    cooling_experiences: int = 0
    """Experiences that were planned before, and may be again once they have rested."""
    inflight_rollouts: int
    """Rollouts of open groups that did not fail."""

    @property
    def steps_done(self) -> int:
        """Steps of the stage that were trained."""
        return self.version - self.first_version

    @property
    def supply(self) -> int:
        """Experiences of the stage that were planned, wait, or are under way; what failed or was retired is none."""
        return self.planned_experiences + self.waiting_experiences + self.inflight_rollouts

    def groups_below(self, most_experiences: int) -> int:
        """The number of groups that may start; the supply then stays within so many, but for the last group's rest."""
        # Rounded up: a batch that is no multiple of the group size would otherwise never be filled.
        return max(0, -((self.supply - most_experiences) // self.repeat_times))

    def after(self, chosen: Sequence[BufferEntry]) -> PolicyView:
        """The view once `chosen` are planned as the next batch."""
        # What is used again was counted at its first use: the supply is of different experiences.
        first = sum(1 for entry in chosen if not entry.uses)
        return msgspec.structs.replace(
            self,
            planned_steps=self.planned_steps + 1,
            planned_experiences=self.planned_experiences + first,
            waiting_experiences=self.waiting_experiences - first,
        )

    def without(self, gone: Sequence[BufferEntry]) -> PolicyView:
        """The view once `gone` are retired."""
        first = sum(1 for entry in gone if not entry.uses)
        return msgspec.structs.replace(
            self,
            waiting_experiences=self.waiting_experiences - first,
            cooling_experiences=self.cooling_experiences - (len(gone) - first),
        )


class Flight(msgspec.Struct, frozen=True):
    """A group under way."""

    group: UUID
    oldest_version: int
    """The oldest version that one of its rollouts began with."""


class Retirement(msgspec.Struct, frozen=True):
    """Experiences that no later batch can hold, and why."""

    reason: str
    entries: Sequence[BufferEntry]


class StalenessPolicy(Protocol):
    """A policy answers from view and buffer alone, so that recovering is folding and a decision can be replayed."""

    def admit(self, view: PolicyView) -> int:
        """The number of groups that may start now."""
        ...

    def order(self, ready: ReadyGroup) -> Order:
        """The key of a group among those that may be trained: the smallest is first."""
        ...

    def select(
        self, view: PolicyView, buffer: BufferIndex, size: int, without: frozenset[UUID]
    ) -> Sequence[BufferEntry]:
        """The experiences of the next batch, at most `size`, in training order, none of those `without` it."""
        ...

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterable[Retirement]:
        """Experiences that no later batch can hold."""
        ...

    def waits_for(self, view: PolicyView) -> int | None:
        """The version for which batches wait: none is formed while a group of it, or of an older one, is under way."""
        ...

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """The groups under way of which nothing could be trained any more."""
        ...
