"""`RoleLease`: ownership of a role: appends fences, and confirms each append by reading it back unfenced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError
from rftd.ops.ids import Ids
from rftd.streams.events.experiment import Fence, HeadRef
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import holder_source


class RoleLease:
    """One process's ownership of a role of an experiment, in all partitions to which the role writes."""

    def __init__(
        self,
        log: EventLog,
        follower: Follower,
        *,
        role: Role,
        partitions: Iterable[Partition],
        owner: UUID,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self.writer = writer
        self._log = log
        self._follower = follower
        self._role = role
        self._partitions = tuple(partitions)
        self._owner = owner
        self._clock = clock

    @classmethod
    async def acquire(
        cls,
        log: EventLog,
        follower: Follower,
        *,
        role: Role,
        partitions: Iterable[Partition],
        owner: UUID,
        clock: Clock,
        ids: Ids,
        again: bool = False,
    ) -> RoleLease:
        """Acquires the role by appending its fences and reading them back.

        The follower must cover the partitions and have caught up. Raises FencedError if a rival's fence came first;
        with `again` (a former owner), also if another owner has the role by now.
        """
        partitions = tuple(partitions)
        if again:
            _check_owner(follower, role, partitions, owner)
        # A single epoch for all partitions, above the epoch of each: a former owner's fence may have reached only a
        # part of them.
        epoch = 1 + max(follower.fences.epoch(partition, role) for partition in partitions)
        writer = Writer(source=holder_source(role.name, owner), clock=clock, ids=ids, role=role.name, epoch=epoch)
        heads = as_refs(await log.heads())
        drafts = [
            writer.draft(
                Fence(
                    role=role.name,
                    epoch=epoch,
                    previous=follower.fences.epoch(partition, role),
                    owner=owner,
                    heads=heads if number == 0 else (),  # in the first fence only: the whole log's heads are long
                ),
                experiment=role.experiment,
                partition=partition,
            )
            for number, partition in enumerate(partitions)
        ]
        lease = cls(log, follower, role=role, partitions=partitions, owner=owner, writer=writer, clock=clock)
        faults.point("fence.before_read_back")
        await lease.append(drafts)
        return lease

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends drafts and returns their positions once they were read back under this lease.

        Raises FencedError if a newer owner exists: the drafts then have no effect, and the process must stop.
        """
        if not drafts:
            return []
        positions = await append_when_space(self._log, drafts, clock=self._clock)
        # Acknowledgement is not enough: a rival's fence may lie below, and then these records have no effect.
        await self._follower.reach(positions)
        self.check()
        return positions

    async def confirm(self) -> None:
        """Raises FencedError unless this lease still holds according to the log's present end.

        To be called before changes a fence cannot undo, such as deleting files; the process may still be suspended
        between check and change.
        """
        await self._follower.catch_up()
        self.check()

    def check(self) -> None:
        """Raises FencedError if the follower has read a newer owner's fence."""
        _check_owner(self._follower, self._role, self._partitions, self._owner)


def _check_owner(follower: Follower, role: Role, partitions: Iterable[Partition], owner: UUID) -> None:
    """Raises FencedError if another process owns the role in one of these partitions."""
    for partition in partitions:
        if follower.fences.owner(partition, role) != owner:
            raise FencedError(
                f"role {role.name} has a newer owner, since epoch {follower.fences.epoch(partition, role)}",
                where=str(partition),
                fix="nothing to do: the newer process continues",
            )


def as_refs(heads: Heads) -> tuple[HeadRef, ...]:
    """Converts heads to the form stored in events, in a fixed order."""
    return tuple(
        HeadRef(partition.stream, partition.number, mark.next_offset, mark.chain)
        for partition, mark in sorted(heads.items())
    )
