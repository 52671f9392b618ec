"""`Group`: one open group, with its leases and its finished or failed rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from rftd.streams.events import task
from rftd.streams.folds.processing import Processing


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished lease of rollouts of a group."""

    id: UUID
    """Id of the lease, as given in its `task.leased`."""
    slot: int
    """Slot of the worker."""
    worker: UUID
    """Id of the worker."""
    group: UUID
    """Id of the leased group."""
    attempt: int
    """Number of the lease among the leases of its group, from 1."""
    deadline_s: float
    """Seconds without progress after which the lease expires."""
    rollouts: tuple[int, ...]
    """Numbers of the leased rollouts."""
    alone: bool = False
    """True if the worker had to be without other work."""
    reissue: bool = False
    """True for a second lease of slow rollouts."""
    held_version: int = -1
    """Weight version that the worker had loaded."""
    leased_ns: int = 0
    """Time of the lease's record; for display."""


class RolloutEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a rollout: an experience or a failure."""

    lease: UUID
    """The lease answered by the event."""
    source: str
    """The writer of the event."""
    member: task.Member | None = None
    """The experience; None for a failed rollout."""
    duration_ms: int = 0
    """Duration in milliseconds."""
    code: str = ""
    """Error code of a failed rollout; empty for an experience."""
    reason: str = ""
    """Text of the failure; empty for an experience."""


class Group(msgspec.Struct):
    """One open group. Of several ends of a rollout, the first in the log written by a lease's holder counts."""

    id: UUID
    """Id of the group, shared by all its leases and rollouts."""
    sequence: int = -1
    """Position of the group's task in the dataset's order."""
    stage: int = -1
    """Index of the stage; -1 before the first lease is read."""
    row: int = -1
    """Row of the task; -1 before the first lease is read."""
    epoch: int = -1
    """Epoch of the task; -1 before the first lease is read."""
    repeat_times: int = 0
    """Number of rollouts; 0 before the first lease is read."""
    attempts: int = 0
    """Number of leases until now, of any rollouts; also the number of the last lease."""
    spent: dict[int, int] = {}
    """Leases counted as attempts, by rollout; leases that ended through no fault of the task are not counted."""
    lost_with: set[UUID] = set()
    """Workers that died while holding this and other groups."""
    losses_alone: int = 0
    """Number of leases during which a worker died while holding nothing else; they count as attempts."""
    retry: bool = False
    """True if the group replaces a failed one at a person's request."""
    min_version: int = 0
    """Oldest weight version with which rollouts may begin."""
    pinned: bool = False
    """True if all rollouts must use exactly `min_version`."""
    window: int = -1
    """Number of the group's window, for schedules with sync points; -1 without windows."""
    place: int = -1
    """Position of the group within its window, from 0; -1 without windows."""
    leases: dict[UUID, Lease] = {}
    """Unfinished leases, by id."""
    members: dict[int, task.Member] = {}
    """Experiences by rollout number."""
    failed: dict[int, tuple[str, str]] = {}
    """Code and reason of failed rollouts, by number."""
    expired: tuple[int, str] = (0, "")
    """Attempt and reason of the last lease that ended without completing the group."""
    durations_ms: dict[int, int] = {}
    """The durations of its members, by rollout."""
    _counted: set[int] = set()
    """Attempts whose lease is folded already."""
    _over: set[UUID] = set()
    """Expired leases, so that a repeated lease record is ignored."""
    holders: dict[UUID, str] = {}
    """Source of the worker holding each lease, remembered after the lease's end."""
    processing: Processing | None = None
    """The experience pipeline's work on the group; None before its first lease."""
    early: dict[int, list[RolloutEnd]] = {}
    """Ends of rollouts read before their leases, by rollout; at most those before the counting one."""

    @property
    def attempts_spent(self) -> int:
        """Largest number of counted attempts of a missing rollout."""
        return max((self.spent.get(rollout, 0) for rollout in self.missing), default=0)

    @property
    def losses(self) -> int:
        """Number of workers that died while holding this and other groups."""
        return len(self.lost_with)

    @property
    def under_way(self) -> set[int]:
        """Rollouts of unfinished leases, including rollouts that have ended."""
        return set().union(*(lease.rollouts for lease in self.leases.values()))

    @property
    def missing(self) -> tuple[int, ...]:
        """Rollouts that have not ended, ascending."""
        return self._without_end(range(self.repeat_times))

    def holder(self, lease: UUID) -> str | None:
        """Returns the source of a lease's worker; None for an unknown lease."""
        return self.holders.get(lease)

    def expects(self, rollout: int) -> bool:
        """True unless the rollout has ended, or its number is beyond the group's size."""
        may_be_its = self.sequence < 0 or 0 <= rollout < self.repeat_times
        return may_be_its and rollout not in self.members and rollout not in self.failed

    def drop_beyond(self, repeat_times: int) -> None:
        """Drops early ends of rollouts with numbers of `repeat_times` or more, once the group's size is known."""
        self.early = {rollout: ends for rollout, ends in self.early.items() if 0 <= rollout < repeat_times}

    def note_early(self, rollout: int, end: RolloutEnd) -> None:
        """Stores the end of a rollout until its lease is read."""
        ends = self.early.setdefault(rollout, [])
        # For one writer and lease the first: a transport may repeat the record.
        if not any((earlier.lease, earlier.source) == (end.lease, end.source) for earlier in ends):
            ends.append(end)

    def hand_out_early(self, lease: UUID) -> list[tuple[int, RolloutEnd]]:
        """Removes and returns the ends written by the holder of a lease just read."""
        source = self.holder(lease)
        early_ends: list[tuple[int, RolloutEnd]] = []
        for rollout, ends in list(self.early.items()):
            index = next((at for at, end in enumerate(ends) if (end.lease, end.source) == (lease, source)), None)
            if index is not None:
                early_ends.append((rollout, ends[index]))
            # Ends of this lease by other writers never count, and ends after the counting one no longer do.
            remaining = [end for end in ends[:index] if end.lease != lease]
            if remaining:
                self.early[rollout] = remaining
            else:
                del self.early[rollout]
        return early_ends

    def settle(self, rollout: int, end: RolloutEnd) -> None:
        """Records the end of a rollout as the counting one, replacing an earlier choice."""
        self.members.pop(rollout, None)
        self.durations_ms.pop(rollout, None)
        self.failed.pop(rollout, None)
        if end.member is None:
            self.failed[rollout] = (end.code, end.reason)
        else:
            self.members[rollout] = end.member
            self.durations_ms[rollout] = end.duration_ms

    def left_of(self, lease: Lease) -> tuple[int, ...]:
        """Returns the lease's rollouts that have not ended."""
        return self._without_end(lease.rollouts)

    def _without_end(self, rollouts: Iterable[int]) -> tuple[int, ...]:
        """Returns the rollouts that have neither a member nor a failure."""
        if not self.members and not self.failed:
            return tuple(rollouts)
        return tuple(rollout for rollout in rollouts if rollout not in self.members and rollout not in self.failed)

    @property
    def terminal(self) -> bool:
        """True if every rollout has ended."""
        return len(self.members) + len(self.failed) >= self.repeat_times > 0

    @property
    def loose(self) -> bool:
        """True if the group may have to be closed or leased: all rollouts ended, or an unfinished one is in
        no lease.
        """
        if self.terminal or not self.leases:
            return True
        if any(len(lease.rollouts) == self.repeat_times for lease in self.leases.values()):
            return False
        return not self.under_way.issuperset(self.missing)
