"""`StalenessPolicy` decides which groups start, and which experiences are next, or never (DESIGN, "Policies")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the folded state, the input of a policy's decisions. Steps count within the stage, from 1."""

    version: int
    """Weight version of the trainer, counted over the experiment."""
    first_version: int
    """Weight version at which the stage began."""
    published_version: int
    """Newest weight version announced to explorers."""
    starting_version: int | None = None
    """Weight version of a group starting now; None: left to the schedule of synchronisation."""
    total_steps: int
    planned_steps: int
    """Batches of this stage planned so far."""
    batch_size: int
    """Experiences of one batch."""
    repeat_times: int
    """Rollouts of one group."""
    planned_experiences: int
    """Experiences of this stage planned at least once."""
    waiting_experiences: int
    """Experiences never planned so far."""
    cooling_experiences: int = 0
    """Experiences planned before, and free to be planned again after their cooldown."""
    inflight_rollouts: int
    """Rollouts of open groups without a failure."""

    @property
    def steps_done(self) -> int:
        """Returns the number of trained steps of the stage."""
        return self.version - self.first_version

    @property
    def supply(self) -> int:
        """Returns the experiences of the stage planned, waiting or under way; failed and retired ones do not count."""
        return self.planned_experiences + self.waiting_experiences + self.inflight_rollouts

    def groups_below(self, most_experiences: int) -> int:
        """Returns how many groups may start within a supply of `most_experiences`, exceeded at most by the last group's
        rest.
        """
        # Rounded up: a batch not divisible by the group size would otherwise never be filled.
        return max(0, -((self.supply - most_experiences) // self.repeat_times))

    def after(self, chosen: Sequence[BufferEntry]) -> PolicyView:
        """Returns the view after `chosen` are planned as the next batch."""
        # A reused experience was counted at its first use: the supply counts distinct experiences.
        first_uses = sum(1 for experience in chosen if not experience.uses)
        return msgspec.structs.replace(
            self,
            planned_steps=self.planned_steps + 1,
            planned_experiences=self.planned_experiences + first_uses,
            waiting_experiences=self.waiting_experiences - first_uses,
        )

    def without(self, retired: Sequence[BufferEntry]) -> PolicyView:
        """Returns the view after `retired` have left the buffer."""
        unused = sum(1 for experience in retired if not experience.uses)
        return msgspec.structs.replace(
            self,
            waiting_experiences=self.waiting_experiences - unused,
            cooling_experiences=self.cooling_experiences - (len(retired) - unused),
        )


class Flight(msgspec.Struct, frozen=True):
    """A group under way."""

    group: UUID
    oldest_version: int
    """Oldest version at the beginning of one of the group's rollouts."""


class Retirement(msgspec.Struct, frozen=True):
    """Experiences barred from every later batch, with the reason."""

    reason: str
    entries: Sequence[BufferEntry]


class StalenessPolicy(Protocol):
    """A policy answers from view and buffer alone, so that recovering is folding and a decision can be replayed."""

    def admit(self, view: PolicyView) -> int:
        """Returns the number of groups that may start now."""
        ...

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the key of a group among the groups fit for training: the smallest is first."""
        ...

    def select(
        self, view: PolicyView, buffer: BufferIndex, size: int, without: frozenset[UUID]
    ) -> Sequence[BufferEntry]:
        """Returns the experiences of the next batch, at most `size`, in training order, excluding ids in `without`."""
        ...

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterable[Retirement]:
        """Returns experiences barred from every later batch, with reasons."""
        ...

    def waits_for(self, view: PolicyView) -> int | None:
        """Returns the version for which batches wait: none is formed while a group of this or an older version is under
        way.
        """
        ...

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """Returns the groups under way without any experience that could still be trained."""
        ...
