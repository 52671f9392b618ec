"""`StalenessPolicy` decides which groups start, and which experiences are trained next, or never."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the folded state from which a policy decides. Steps are counted within the stage, from 1."""

    version: int
    """Weight version of the trainer, counted over the experiment."""
    first_version: int
    """Weight version at which the stage began."""
    published_version: int
    """Newest weight version announced to explorers."""
    starting_version: int | None = None
    """Weight version of a group started now; None if the synchronisation schedule decides."""
    total_steps: int
    """Number of steps of the stage."""
    planned_steps: int
    """Number of the stage's batches planned so far."""
    batch_size: int
    """Experiences of one batch."""
    repeat_times: int
    """Rollouts of one group."""
    planned_experiences: int
    """Experiences of this stage planned at least once."""
    waiting_experiences: int
    """Number of experiences never planned so far."""
    cooling_experiences: int = 0
    """Experiences planned before, and free to be planned again after their cooldown."""
    inflight_rollouts: int
    """Unfinished or successful rollouts of open groups."""

    @property
    def steps_done(self) -> int:
        """Number of trained steps of the stage."""
        return self.version - self.first_version

    @property
    def supply(self) -> int:
        """Number of the stage's experiences planned, waiting or being produced; failed and retired ones do
        not count.
        """
        return self.planned_experiences + self.waiting_experiences + self.inflight_rollouts

    def groups_below(self, most_experiences: int) -> int:
        """Returns how many groups may start until the supply reaches `most_experiences`; only the last group may exceed
        it.
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
        """Returns the view after the experiences `retired` were removed from the buffer."""
        unused = sum(1 for experience in retired if not experience.uses)
        return msgspec.structs.replace(
            self,
            waiting_experiences=self.waiting_experiences - unused,
            cooling_experiences=self.cooling_experiences - (len(retired) - unused),
        )


class Flight(msgspec.Struct, frozen=True):
    """An open group with unfinished rollouts."""

    group: UUID
    """Id of the group."""
    oldest_version: int
    """Oldest version at the beginning of one of the group's rollouts."""


class Retirement(msgspec.Struct, frozen=True):
    """Experiences that no later batch may use, with the reason."""

    reason: str
    """Reason recorded in experience.retired, such as `stale` or `capacity`."""
    entries: Sequence[BufferEntry]
    """Experiences to retire."""


class StalenessPolicy(Protocol):
    """A policy of one stage: which groups start, and which experiences are trained next, or never.

    It decides from view and buffer alone, so that a recovered daemon decides alike and a decision can be replayed.
    """

    def admit(self, view: PolicyView) -> int:
        """Returns the number of groups that may start now."""
        ...

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the sort key of a group ready for training: the smallest key is trained first."""
        ...

    def select(
        self, view: PolicyView, buffer: BufferIndex, size: int, without: frozenset[UUID]
    ) -> Sequence[BufferEntry]:
        """Returns the experiences of the next batch, at most `size`, in training order; ids in `without`
        are skipped.
        """
        ...

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterable[Retirement]:
        """Returns the experiences that no later batch may use, with reasons."""
        ...

    def waits_for(self, view: PolicyView) -> int | None:
        """Returns the version for which planning waits: no batch is formed while a group begun on this or an older
        version is unfinished.

        None if planning waits for no group.
        """
        ...

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """Returns the unfinished groups to abort, because none of their experiences could still be trained."""
        ...
