"""Groups under way: which rollouts are leased to whom, and which are terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import OverRolloutError, StaleFlightError
from rftd.streams.codec import Decoded
from rftd.streams.events import experience, task
from rftd.streams.folds.ranges import ClosedGroups

GIVEN_UP: Final = frozenset({OverRolloutError.code, StaleFlightError.code})
"""Codes of groups that were closed although nothing was wrong with them: no sign that rollouts come to nothing."""

MINIMUMS: Final = 1024
"""Largest minimum of members that short groups are counted for, whatever number of failures a record claims."""


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


class GroupWindow(NamedTuple):
    """The last group that was begun in the stage's newest window."""

    number: int
    place: int
    version: int
    """The weights that it begins on."""


class Group(msgspec.Struct):
    """One open group. A rollout's first terminal event in the log's order is the one that counts."""

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

    def expects(self, rollout: int) -> bool:
        """False if the rollout has ended, or is known to be none of it: then nobody asked for an answer."""
        known = self.sequence < 0 or 0 <= rollout < self.repeat_times
        return known and rollout not in self.members and rollout not in self.failed

    def drop_beyond(self, repeat_times: int) -> None:
        """Drops answers that came before it was known how many rollouts it has, and are of none of them."""
        for rollout in [each for each in (*self.members, *self.failed) if each >= repeat_times]:
            self.members.pop(rollout, None)
            self.durations_ms.pop(rollout, None)
            self.failed.pop(rollout, None)

    def left_of(self, lease: Lease) -> tuple[int, ...]:
        """Rollouts of the lease without a terminal event."""
        return self._without_end(lease.rollouts)

    def _without_end(self, rollouts: Iterable[int]) -> tuple[int, ...]:
        if not self.members and not self.failed:
            return tuple(rollouts)
        return tuple(each for each in rollouts if each not in self.members and each not in self.failed)

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


class GroupFold(msgspec.Struct):
    """Every open group of an experiment, and where the next one begins."""

    open: dict[UUID, Group] = {}
    leases: dict[UUID, Lease] = {}
    """Leases under way, of open groups."""
    loose: set[UUID] = set()
    """Open groups that were leased, and that now may have to be closed or leased again: those alone are looked at."""
    to_close: int = 0
    """Open groups that were leased. Answers to a lease without effect open one that may never be."""
    inflight_rollouts: int = 0
    """Rollouts of those groups that did not fail."""
    load: dict[UUID, int] = {}
    """Rollouts of a worker's leases that have not ended, by worker."""
    alone: dict[UUID, UUID] = {}
    """Leases of which each is all that its worker has, and the worker."""
    next_sequence: dict[int, int] = {}
    """The dataset position, by stage."""
    offers: dict[int, task.TasksOffered] = {}
    """The largest offer of rows of a taskset that comes while its stage runs, by stage."""
    windows: dict[int, GroupWindow] = {}
    """The newest window, by stage, where the schedule has sync points."""
    last_error: tuple[str, str] = ("", "")
    """Code and reason of the last closed group that lacked a member."""
    recent: list[tuple[int, int]] = []
    """The newest closed groups of one stage: the milliseconds that the members took, and their number."""
    closed_in_stage: int = 0
    """Groups of that stage that closed."""
    recent_stage: int = -1
    """That stage."""
    _short: dict[int, int] = {}
    _short_stage: int = -1
    _closed: ClosedGroups = msgspec.field(default_factory=ClosedGroups)

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the tasks or experiences streams, or task.retried."""
        event = decoded.event
        match event:
            case experience.ExperienceProduced():
                self._produced(event, decoded)
            case task.TaskLeased():
                self._leased(event, decoded)
            case task.TasksOffered():
                task.note_offer(self.offers, event)
            case task.GroupClosed():
                self._close(event, decoded)
            case task.TaskExpired():
                self._expire(event)
            case task.TaskRetried():
                self._retried(event, decoded)
            case experience.RolloutFailed():
                self._failed(event, decoded)

    def offered_rows(self, stage: int) -> int:
        """The number of rows that were offered of a stage whose taskset comes while it runs."""
        return self.offers[stage].rows if stage in self.offers else 0

    def _group(self, id: UUID, decoded: Decoded) -> Group | None:
        group = self.open.get(id)
        if group is None and not self._closed.holds(decoded.head.experiment, id):
            group = self.open[id] = Group(id)
        return group

    def _leased(self, event: task.TaskLeased, decoded: Decoded) -> None:
        self.next_sequence[event.stage] = max(self.next_sequence.get(event.stage, 0), event.sequence + 1)
        if event.window >= 0:
            begun = GroupWindow(event.window, event.place, event.min_version)
            self.windows[event.stage] = max(begun, self.windows.get(event.stage, begun))
        group = self._group(event.group, decoded)
        if group is None:
            return
        new = self._begin(group, event)
        group.window, group.place = event.window, event.place
        if event.attempt >= group.attempts:  # leases of other slots are read in any order
            group.attempts = event.attempt
            group.min_version, group.pinned = event.min_version, event.pinned
        # By number: a lease that is repeated in the log is no second attempt.
        if event.attempt not in group._counted:
            group._counted.add(event.attempt)
            for rollout in event.rollouts if not event.reissue else ():
                group.spent[rollout] = group.spent.get(rollout, 0) + 1
        if event.lease in self.leases:
            return
        # Its expiry was read before: a transport may repeat the lease long after.
        if event.lease in group._over:
            self._place(group, new=new)
            return
        lease = Lease(
            id=event.lease,
            slot=event.slot,
            worker=event.worker,
            group=event.group,
            attempt=event.attempt,
            deadline_s=event.deadline_s,
            rollouts=event.rollouts,
            alone=event.alone,
            reissue=event.reissue,
            held_version=event.held_version,
            leased_ns=decoded.head.time_ns,
        )
        group.leases[event.lease] = self.leases[event.lease] = lease
        self._charge(lease.worker, len(group.left_of(lease)))
        if lease.alone:
            self.alone[lease.id] = lease.worker
        self._place(group, new=new)

    def _begin(self, group: Group, event: task.TaskLeased | task.TaskRetried) -> bool:
        """Its place and size are known from here on. True if they were not before."""
        new = group.sequence < 0
        if new:
            self.to_close += 1
            group.drop_beyond(event.repeat_times)
            self.inflight_rollouts += event.repeat_times - len(group.failed)
        group.sequence, group.stage = event.sequence, event.stage
        group.row, group.epoch = event.row, event.epoch
        group.repeat_times = event.repeat_times
        return new

    def _place(self, group: Group, *, new: bool = False) -> None:
        """Puts the group among the loose ones, or takes it from them."""
        if group.loose:
            self.loose.add(group.id)
        elif not new:
            self.loose.discard(group.id)

    def _drop(self, group: Group, lease: Lease) -> None:
        """The lease is over."""
        del self.leases[lease.id]
        if lease.alone:
            del self.alone[lease.id]
        if not group.terminal:
            self._charge(lease.worker, -len(group.left_of(lease)))

    def _charge(self, worker: UUID, rollouts: int) -> None:
        left = self.load.get(worker, 0) + rollouts
        if left:
            self.load[worker] = left
        else:
            self.load.pop(worker, None)

    def _ended(self, group: Group, rollout: int) -> None:
        """One of its rollouts is terminal."""
        # Every lease of it: a slow rollout may be under way at a second worker too, and the first answer ends both.
        for lease in group.leases.values():
            if rollout in lease.rollouts:
                self._charge(lease.worker, -1)
        if group.terminal:
            self.loose.add(group.id)
        elif self.loose and group.id in self.loose:
            self._place(group)

    def _retried(self, event: task.TaskRetried, decoded: Decoded) -> None:
        group = self._group(event.retry, decoded)
        if group is None:
            return
        new = self._begin(group, event)
        group.retry = True
        self._place(group, new=new)
        if not group.attempts:
            group.min_version, group.pinned = event.min_version, event.pinned

    def _expire(self, event: task.TaskExpired) -> None:
        # A lease lies before its end, in the same partition: one that is not here is over, or its group is closed.
        lease = self.leases.get(event.lease)
        if lease is None:
            return
        group = self.open[lease.group]
        self._drop(group, lease)
        del group.leases[event.lease]
        group._over.add(event.lease)
        self._place(group)
        group.expired = max(group.expired, (lease.attempt, event.reason))
        if event.worker_gone and lease.alone and not event.excused:
            group.losses_alone += 1
        elif event.worker_gone or event.excused:
            for rollout in lease.rollouts if not lease.reissue else ():
                group.spent[rollout] = group.spent.get(rollout, 0) - 1
            if not event.excused:
                group.lost_with.add(lease.worker)

    def _produced(self, event: experience.ExperienceProduced, decoded: Decoded) -> None:
        group = self._group(event.group, decoded)
        if group is None or not group.expects(event.rollout):
            return
        oldest, newest = experience.versions_of(event.spans)
        if group.sequence < 0:
            group.stage = event.stage
        # At least 1: a sum of zero would read as "nothing is known".
        group.durations_ms[event.rollout] = max(1, round(event.duration_s * 1000))
        group.members[event.rollout] = task.Member(
            event.experience,
            event.rollout,
            decoded.partition.number,
            decoded.offset,
            event.reward,
            event.priority,
            len(event.tokens),
            oldest,
            newest,
        )
        self._ended(group, event.rollout)

    def _failed(self, event: experience.RolloutFailed, decoded: Decoded) -> None:
        group = self._group(event.group, decoded)
        if group is None or not group.expects(event.rollout):
            return
        if group.sequence < 0:
            group.stage = event.stage
        group.failed[event.rollout] = (event.code, event.reason)
        self._ended(group, event.rollout)
        if group.sequence >= 0:
            self.inflight_rollouts -= 1

    def _close(self, event: task.GroupClosed, decoded: Decoded) -> None:
        # A close that is repeated in the log changes nothing: batches rest on the first.
        if not self._closed.first(decoded.head.experiment, event.group):
            return
        self.next_sequence[event.stage] = max(self.next_sequence.get(event.stage, 0), event.sequence + 1)
        group = self.open.pop(event.group, None)
        if group is not None and group.sequence >= 0:
            for lease in group.leases.values():
                self._drop(group, lease)
            self.to_close -= 1
            self.inflight_rollouts -= group.repeat_times - len(group.failed)
        self.loose.discard(event.group)
        self._count_recent(event)
        if event.code not in GIVEN_UP:
            self._count_short(event)

    @property
    def mean_duration_s(self) -> float | None:
        """Mean duration of a rollout over the newest closed groups; None if nothing is known."""
        members = sum(count for _, count in self.recent)
        return sum(busy_ms for busy_ms, _ in self.recent) / members / 1000 if members else None

    def _count_recent(self, event: task.GroupClosed) -> None:
        # Every close of an experiment is in one partition, so what is "recent", or "in a row" below, is given.
        if event.stage != self.recent_stage:
            self.recent_stage, self.closed_in_stage, self.recent = event.stage, 0, []
        self.closed_in_stage += 1
        if event.busy_ms:
            self.recent = [*self.recent[1 - limits.RECENT_GROUPS :], (event.busy_ms, len(event.members))]

    def short_in_a_row(self, stage: int, minimum: int) -> int:
        """Closed groups of the stage with fewer members than `minimum`, since its last one with as many."""
        return self._short.get(minimum, 0) if stage == self._short_stage else 0

    def _count_short(self, event: task.GroupClosed) -> None:
        if event.stage != self._short_stage:
            self._short_stage, self._short = event.stage, {}
        members = len(event.members)
        # Beyond its own size a group says nothing: no policy can ask for more members than were rolled out.
        for minimum in range(1, min(members + event.failed, MINIMUMS) + 1):
            self._short[minimum] = 0 if members >= minimum else self._short.get(minimum, 0) + 1
        if event.failed:
            self.last_error = (event.code, event.reason)
