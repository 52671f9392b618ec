"""`StalenessPolicy`: what may start, what is trained next, and what never can be (DESIGN, "Policies")."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from rftd.streams.folds.ledger import Waiting


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy decides on: a reading of the folded state. Steps count within the stage, from 1."""

    version: int
    """Weight version of the trainer, counted over the experiment."""
    first_version: int
    """Weight version at which the stage began."""
    total_steps: int
    planned_steps: int
    """Batches of this stage planned so far."""
    train_batch_size: int
    """Experiences of one batch."""
    repeat_times: int
    """Rollouts of one group."""
    planned_experiences: int
    inflight_rollouts: int
    """Rollouts of open groups that did not fail."""
    waiting: Collection[Waiting]
    """Experiences of this stage that may be planned."""
    oldest_waiting: int | None
    """The oldest weight version among them, or one older still; None if there are none."""

    def after(self, chosen: Sequence[Waiting]) -> PolicyView:
        """The view once `chosen` are planned as the next batch."""
        taken = {id(entry) for entry in chosen}
        return msgspec.structs.replace(
            self,
            planned_steps=self.planned_steps + 1,
            planned_experiences=self.planned_experiences + len(chosen),
            waiting=[entry for entry in self.waiting if id(entry) not in taken],
        )


class StalenessPolicy(Protocol):
    """Answers from the view alone, so that recovering is folding and a decision can be replayed."""

    def admit(self, view: PolicyView) -> int:
        """How many more groups may start now."""
        ...

    def select(self, view: PolicyView, size: int) -> Sequence[Waiting]:
        """At most `size` experiences for the next batch, in training order."""
        ...

    def evict(self, view: PolicyView) -> Sequence[UUID]:
        """Experiences that no later batch can hold."""
        ...
