"""Fences: who may write as a role, decided by the log alone (rule 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

import msgspec

from rftd.streams.envelope import Head
from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import Event
from rftd.streams.topics import Partition


class Role(NamedTuple):
    """A leased role of one experiment."""

    experiment: UUID | None
    name: str


class Owner(NamedTuple):
    """Who holds a role in a partition, and under which epoch."""

    epoch: int
    id: UUID


class FenceOwner(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a `FenceView`, as a snapshot keeps it."""

    stream: str
    partition: int
    experiment: UUID | None
    role: str
    epoch: int
    owner: UUID


class FenceView:
    """The owners of roles, partition by partition, as the records read so far make them.

    A fence has effect only if its `previous` is the role's epoch at that place, so of two rivals the first record wins.
    A record of a role has effect only under an epoch that is not below the role's. A pure fold of each partition alone.
    """

    def __init__(self, owners: Iterable[FenceOwner] = ()) -> None:
        self._owners: dict[tuple[Partition, Role], Owner] = {
            (Partition(each.stream, each.partition), Role(each.experiment, each.role)): Owner(each.epoch, each.owner)
            for each in owners
        }

    def owners(self) -> tuple[FenceOwner, ...]:
        """All of it, for a snapshot."""
        return tuple(
            FenceOwner(
                stream=partition.stream,
                partition=partition.number,
                experiment=role.experiment,
                role=role.name,
                epoch=owner.epoch,
                owner=owner.id,
            )
            for (partition, role), owner in self._owners.items()
        )

    def epoch(self, partition: Partition, role: Role) -> int:
        """The role's epoch in this partition; 0 before its first fence."""
        owner = self._owners.get((partition, role))
        return owner.epoch if owner else 0

    def owner(self, partition: Partition, role: Role) -> UUID | None:
        """Who holds the role in this partition."""
        owner = self._owners.get((partition, role))
        return owner.id if owner else None

    def admit(self, partition: Partition, head: Head, event: Event) -> bool:
        """True if the record has an effect; a fence that does is taken in. Call it once for each record, in order."""
        if isinstance(event, Fence):
            role = Role(head.experiment, event.role)
            if event.previous != self.epoch(partition, role) or event.epoch <= event.previous:
                return False
            self._owners[partition, role] = Owner(event.epoch, event.owner)
            return True
        return not head.role or head.epoch >= self.epoch(partition, Role(head.experiment, head.role))
