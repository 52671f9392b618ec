"""Fences: ownership of roles, decided by the log alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.log.envelope import Head
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import holder_source

LEAP: Final = 1 << 20
"""Maximum number of epochs skipped by one fence, so that no fence exhausts the numbers."""


class Role(NamedTuple):
    """A role owned by one process at a time: controller, planner, dispatcher or trainer of one experiment."""

    experiment: UUID | None
    """The experiment; None for a role of the whole log."""
    name: str
    """Name of the role, such as `trainer`."""


class Owner(NamedTuple):
    """The owner of a role in a partition, by the last effective fence."""

    epoch: int
    """Number of the ownership, growing from owner to owner."""
    id: UUID
    """Id of the owning process."""
    source: str
    """The `source` of the holder's records."""


class FenceOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of one role in one partition, as written in snapshots."""

    stream: str
    """The partition's stream."""
    partition: int
    """The partition's number."""
    experiment: UUID | None
    """The role's experiment; None for a role of the whole log."""
    role: str
    """Name of the role."""
    epoch: int
    """Number of the ownership."""
    owner: UUID
    """Id of the owning process."""


class FenceView:
    """The owners of roles by partition, according to the records read until now.

    A fence has effect only if its `previous` is the role's epoch at its position, so of two rivals the first record
    wins. A record has effect only under the role owning its type (`rftd.streams.events.registry`), under the epoch of
    the role's last fence, and from the source of the fence's owner, the source of the fence included; a record of a
    type without an owner, only without a role. A pure fold of each partition alone.
    """

    def __init__(self, owners: Iterable[FenceOwner] = (), *, midway: bool = False) -> None:
        """Starts from `owners`. With `midway`, for reading from the middle of a log, any epoch is accepted before a
        role's first fence.
        """
        self._midway = midway
        self._owners: dict[tuple[Partition, Role], Owner] = {
            (Partition(line.stream, line.partition), Role(line.experiment, line.role)): _owner(
                line.role, line.epoch, line.owner
            )
            for line in owners
        }

    def owners(self) -> tuple[FenceOwner, ...]:
        """Returns the owner of each role in each partition, for a snapshot."""
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
        """Returns the role's epoch in a partition; 0 before its first fence."""
        owner = self._owners.get((partition, role))
        return owner.epoch if owner else 0

    def owner(self, partition: Partition, role: Role) -> UUID | None:
        """Returns the owner of the role in a partition; None before its first fence."""
        owner = self._owners.get((partition, role))
        return owner.id if owner else None

    def admit(self, partition: Partition, head: Head, event: Event) -> bool:
        """Returns whether a record takes effect, and applies effective fences. To be called once per
        record, in order.
        """
        if isinstance(event, Fence):
            return self._fenced(partition, head, event)
        definition = definition_of(type(event))
        # Without a lease: types without an owner, and commands, accepted by any daemon while no run is under way.
        if not head.role:
            return definition.commanded or not definition.owner
        if head.role != definition.owner:
            return False
        owner = self._owners.get((partition, Role(head.experiment, head.role)))
        if owner is None:
            return self._midway and head.epoch > 0
        return head.epoch == owner.epoch and head.source == owner.source

    def _fenced(self, partition: Partition, head: Head, event: Fence) -> bool:
        # The envelope routes, the event fences: a fence with two versions of its role or epoch has a foreign writer.
        """Applies a fence; returns False for one without effect, such as a rival's that came second."""
        if (event.role, event.epoch) != (head.role, head.epoch):
            return False
        role = Role(head.experiment, event.role)
        epoch = self.epoch(partition, role)
        # Two rivals read one epoch and write equal `previous`; after the first record, the second is outdated.
        if event.previous != epoch and (epoch or not self._midway):
            return False
        if not event.previous < event.epoch <= event.previous + LEAP:
            return False
        owner = _owner(event.role, event.epoch, event.owner)
        if head.source != owner.source:
            return False
        self._owners[partition, role] = owner
        return True


def _owner(role: str, epoch: int, id: UUID) -> Owner:
    """Returns the owner, with the source under which its records are written."""
    return Owner(epoch, id, holder_source(role, id))
