"""One open group: who holds leases of it, and which of its rollouts are terminal."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from rftd.streams.events import task


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of a group that has neither expired nor been overtaken."""

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
    """When it was written; for display."""


class RolloutEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A terminal event of a rollout: an experience, or a failure."""

    lease: UUID
    """The lease that it answers."""
    source: str
    """Its writer."""
    member: task.Member | None = None
    """The experience; None if the rollout failed."""
    duration_ms: int = 0
    code: str = ""
    reason: str = ""


class Group(msgspec.Struct):
    """One open group. Of a rollout's terminal events the first one in the log that a lease's holder wrote counts."""

    id: UUID
    sequence: int = -1
    stage: int = -1
    row: int = -1
    epoch: int = -1
    repeat_times: int = 0
    attempts: int = 0
    """Leases so far, of any of its rollouts: the number of the last."""
    spent: dict[int, int] = {}
    """Leases that are attempts of a rollout, by rollout. Those that ended for a reason of their worker's are none."""
    lost_with: set[UUID] = set()
    """Workers that died with it while they held other groups too."""
    losses_alone: int = 0
    """Leases whose worker died while it held nothing else: these are attempts."""
    retry: bool = False
    """It takes the place of one that failed, on request."""
    min_version: int = 0
    pinned: bool = False
    window: int = -1
    place: int = -1
    leases: dict[UUID, Lease] = {}
    members: dict[int, task.Member] = {}
    failed: dict[int, tuple[str, str]] = {}
    expired: tuple[int, str] = (0, "")
    """The last lease that ended without it: its attempt, and why."""
    durations_ms: dict[int, int] = {}
    """The durations of its members, by rollout."""
    _counted: set[int] = set()
    """Leases that were counted, by number."""
    _over: set[UUID] = set()
    """Its leases that expired: one that comes again is none."""
    holders: dict[UUID, str] = {}
    """The source of the worker that each lease was given to, whether or not the lease is over."""
    early: dict[int, list[RolloutEnd]] = {}
    """Terminal events of leases that were not read yet, by rollout: those that lie before the one that counts."""

    @property
    def attempts_spent(self) -> int:
        """Leases that count against the task's bound, of the missing rollout that had most."""
        return max((self.spent.get(rollout, 0) for rollout in self.missing), default=0)

    @property
    def losses(self) -> int:
        """Workers that died with it while they held other groups too."""
        return len(self.lost_with)

    @property
    def under_way(self) -> set[int]:
        """Rollouts that are leased."""
        return set().union(*(lease.rollouts for lease in self.leases.values()))

    @property
    def missing(self) -> tuple[int, ...]:
        """Rollouts without a terminal event."""
        return self._without_end(range(self.repeat_times))

    def holder(self, lease: UUID) -> str | None:
        """The source of the worker that a lease of the group was given to; None if there was no such lease yet."""
        return self.holders.get(lease)

    def expects(self, rollout: int) -> bool:
        """False if the rollout has ended, or is known to be none of it: then nobody asked for an answer."""
        may_be_its = self.sequence < 0 or 0 <= rollout < self.repeat_times
        return may_be_its and rollout not in self.members and rollout not in self.failed

    def drop_beyond(self, repeat_times: int) -> None:
        """Drops ends that came before it was known how many rollouts it has, and are of none of them."""
        self.early = {rollout: ends for rollout, ends in self.early.items() if 0 <= rollout < repeat_times}

    def note_early(self, rollout: int, end: RolloutEnd) -> None:
        """Keeps the end of a rollout until its lease is read."""
        ends = self.early.setdefault(rollout, [])
        # Of one writer and lease the first: a transport may repeat it.
        if not any((earlier.lease, earlier.source) == (end.lease, end.source) for earlier in ends):
            ends.append(end)

    def hand_out_early(self, lease: UUID) -> list[tuple[int, RolloutEnd]]:
        """Takes out the ends that the lease's holder wrote: each comes before what counted for its rollout so far."""
        source = self.holder(lease)
        taken: list[tuple[int, RolloutEnd]] = []
        for rollout, ends in list(self.early.items()):
            index = next((at for at, end in enumerate(ends) if (end.lease, end.source) == (lease, source)), None)
            if index is not None:
                taken.append((rollout, ends[index]))
            # What another one wrote of this lease counts never, and what comes after the one that counts no more.
            kept = [end for end in ends[:index] if end.lease != lease]
            if kept:
                self.early[rollout] = kept
            else:
                del self.early[rollout]
        return taken

    def settle(self, rollout: int, end: RolloutEnd) -> None:
        """The rollout ended so, whatever was known of its end before."""
        self.members.pop(rollout, None)
        self.durations_ms.pop(rollout, None)
        self.failed.pop(rollout, None)
        if end.member is None:
            self.failed[rollout] = (end.code, end.reason)
        else:
            self.members[rollout] = end.member
            self.durations_ms[rollout] = end.duration_ms

    def left_of(self, lease: Lease) -> tuple[int, ...]:
        """Rollouts of the lease without a terminal event."""
        return self._without_end(lease.rollouts)

    def _without_end(self, rollouts: Iterable[int]) -> tuple[int, ...]:
        if not self.members and not self.failed:
            return tuple(rollouts)
        return tuple(rollout for rollout in rollouts if rollout not in self.members and rollout not in self.failed)

    @property
    def terminal(self) -> bool:
        """True if every rollout ended."""
        return len(self.members) + len(self.failed) >= self.repeat_times > 0

    @property
    def loose(self) -> bool:
        """True if it may have to be closed or leased: it ended, or a rollout that has not is not under way either."""
        if self.terminal or not self.leases:
            return True
        if any(len(lease.rollouts) == self.repeat_times for lease in self.leases.values()):
            return False
        return not self.under_way.issuperset(self.missing)
