"""One open group: the holders of its leases, and its terminal rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from rftd.streams.events import task


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of a group, neither expired nor overtaken, with worker, slot, rollouts and deadline."""

    id: UUID
    slot: int
    worker: UUID
    group: UUID
    attempt: int
    deadline_s: float
    rollouts: tuple[int, ...]
    alone: bool = False
    reissue: bool = False
    held_version: int = -1
    leased_ns: int = 0
    """Time of the lease's record; for display."""


class RolloutEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A terminal event of a rollout: an experience, or a failure."""

    lease: UUID
    """The lease answered by the event."""
    source: str
    """The writer of the event."""
    member: task.Member | None = None
    """The experience; None for a failed rollout."""
    duration_ms: int = 0
    code: str = ""
    reason: str = ""


class Group(msgspec.Struct):
    """One open group. Of a rollout's terminal events, the first in the log by a lease's holder counts."""

    id: UUID
    sequence: int = -1
    stage: int = -1
    row: int = -1
    epoch: int = -1
    repeat_times: int = 0
    attempts: int = 0
    """Number of leases so far, of any of its rollouts: the number of the last."""
    spent: dict[int, int] = {}
    """Leases counted as attempts, by rollout. Leases ended for a reason of their worker are not counted."""
    lost_with: set[UUID] = set()
    """Workers lost while holding other groups, too."""
    losses_alone: int = 0
    """Leases whose worker died while holding nothing else: counted as attempts."""
    retry: bool = False
    """True if it replaces a failed group, on request."""
    min_version: int = 0
    pinned: bool = False
    window: int = -1
    place: int = -1
    leases: dict[UUID, Lease] = {}
    members: dict[int, task.Member] = {}
    failed: dict[int, tuple[str, str]] = {}
    expired: tuple[int, str] = (0, "")
    """The last lease ended without completing the group: its attempt, and the reason."""
    durations_ms: dict[int, int] = {}
    """The durations of its members, by rollout."""
    _counted: set[int] = set()
    """Leases already counted, by number."""
    _over: set[UUID] = set()
    """Its expired leases: a repeated lease is not counted as one."""
    holders: dict[UUID, str] = {}
    """The source of each lease's worker, even after the lease's end."""
    early: dict[int, list[RolloutEnd]] = {}
    """Terminal events read before their leases, by rollout: those below the counting one."""

    @property
    def attempts_spent(self) -> int:
        """Number of leases counted against the task's bound, maximum over the missing rollouts."""
        return max((self.spent.get(rollout, 0) for rollout in self.missing), default=0)

    @property
    def losses(self) -> int:
        """Number of workers lost with it while holding other groups, too."""
        return len(self.lost_with)

    @property
    def under_way(self) -> set[int]:
        """Rollouts of the group's present leases, finished ones included."""
        return set().union(*(lease.rollouts for lease in self.leases.values()))

    @property
    def missing(self) -> tuple[int, ...]:
        """Rollouts of the group without a terminal event, ascending."""
        return self._without_end(range(self.repeat_times))

    def holder(self, lease: UUID) -> str | None:
        """Returns the source of a lease's worker; None for an unknown lease."""
        return self.holders.get(lease)

    def expects(self, rollout: int) -> bool:
        """False if the rollout has ended, or is known not to belong to the group: its answer was not requested."""
        may_be_its = self.sequence < 0 or 0 <= rollout < self.repeat_times
        return may_be_its and rollout not in self.members and rollout not in self.failed

    def drop_beyond(self, repeat_times: int) -> None:
        """Drops early ends with an invalid rollout number, once the number of rollouts is known."""
        self.early = {rollout: ends for rollout, ends in self.early.items() if 0 <= rollout < repeat_times}

    def note_early(self, rollout: int, end: RolloutEnd) -> None:
        """Keeps the end of a rollout until its lease is read."""
        ends = self.early.setdefault(rollout, [])
        # For one writer and lease the first: a transport may repeat the record.
        if not any((earlier.lease, earlier.source) == (end.lease, end.source) for earlier in ends):
            ends.append(end)

    def hand_out_early(self, lease: UUID) -> list[tuple[int, RolloutEnd]]:
        """Removes and returns the ends written by the lease's holder: each precedes the rollout's counting end."""
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
        """Sets the end of a rollout, replacing any known end."""
        self.members.pop(rollout, None)
        self.durations_ms.pop(rollout, None)
        self.failed.pop(rollout, None)
        if end.member is None:
            self.failed[rollout] = (end.code, end.reason)
        else:
            self.members[rollout] = end.member
            self.durations_ms[rollout] = end.duration_ms

    def left_of(self, lease: Lease) -> tuple[int, ...]:
        """Returns the lease's rollouts without a terminal event."""
        return self._without_end(lease.rollouts)

    def _without_end(self, rollouts: Iterable[int]) -> tuple[int, ...]:
        if not self.members and not self.failed:
            return tuple(rollouts)
        return tuple(rollout for rollout in rollouts if rollout not in self.members and rollout not in self.failed)

    @property
    def terminal(self) -> bool:
        """True if every rollout has ended, by an experience or a failure."""
        return len(self.members) + len(self.failed) >= self.repeat_times > 0

    @property
    def loose(self) -> bool:
        """True if it may have to be closed or leased: it has ended, or a rollout has neither ended nor is under way."""
        if self.terminal or not self.leases:
            return True
        if any(len(lease.rollouts) == self.repeat_times for lease in self.leases.values()):
            return False
        return not self.under_way.issuperset(self.missing)
