"""Groups under way: which rollouts are leased to whom, and which are terminal."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import OverRolloutError, StaleFlightError
from rftd.streams.events import experience, task
from rftd.streams.folds.group import Group, Lease, RolloutEnd
from rftd.streams.folds.ranges import ClosedGroups
from rftd.streams.folds.selection import Selection
from rftd.streams.log.codec import Decoded
from rftd.streams.log.writers import source_of

GIVEN_UP: Final = frozenset({OverRolloutError.code, StaleFlightError.code})
"""Codes of groups that were closed although nothing was wrong with them: no sign that rollouts come to nothing."""

MINIMUMS: Final = 1024
"""Largest minimum of members that short groups are counted for, whatever number of failures a record claims."""


class GroupWindow(NamedTuple):
    """The last group that was begun in the stage's newest window."""

    number: int
    place: int
    version: int
    """The weights that it begins on."""


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
    tokens: int = 0
    """Tokens of the members of closed groups, prompts and answers."""
    recent: list[tuple[int, int]] = []
    """The newest closed groups of one stage: the milliseconds that the members took, and their number."""
    closed_in_stage: int = 0
    """Groups of that stage that closed."""
    recent_stage: int = -1
    """That stage."""
    selection: Selection = msgspec.field(default_factory=Selection)
    """The rows that were drawn, and the rewards that decide which are drawn next."""
    _short: dict[int, int] = {}
    _short_stage: int = -1
    _closed: ClosedGroups = msgspec.field(default_factory=ClosedGroups)

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the tasks or experiences streams, task.retried, or tasks.drawn."""
        event = decoded.event
        match event:
            case experience.ExperienceProduced():
                self._produced(event, decoded)
            case task.TaskLeased():
                self._leased(event, decoded)
            case task.TasksOffered():
                task.note_offer(self.offers, event)
            case task.TasksDrawn():
                self.selection.draw(event)
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
        if event.lease not in group.holders:
            group.holders[event.lease] = source_of("explorer", event.worker)
            early = group.hand_out_early(event.lease) if group.early else ()
        else:
            early = ()
        self._hold(group, event, decoded, new=new)
        for rollout, end in early:
            self._settle(group, rollout, end)

    def _hold(self, group: Group, event: task.TaskLeased, decoded: Decoded, *, new: bool) -> None:
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
        member = task.Member(
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
        # At least 1: a sum of zero would read as "nothing is known".
        duration_ms = max(1, round(event.duration_s * 1000))
        self._answer(group, event.rollout, RolloutEnd(event.lease, decoded.head.source, member, duration_ms))

    def _failed(self, event: experience.RolloutFailed, decoded: Decoded) -> None:
        group = self._group(event.group, decoded)
        if group is None or not group.expects(event.rollout):
            return
        end = RolloutEnd(event.lease, decoded.head.source, code=event.code, reason=event.reason)
        self._answer(group, event.rollout, end)

    def _answer(self, group: Group, rollout: int, end: RolloutEnd) -> None:
        """Takes in the end of a rollout if the holder of its lease wrote it; before that lease is read nobody knows."""
        holder = group.holder(end.lease)
        if holder is None:
            group.note_early(rollout, end)
        elif holder == end.source:
            self._settle(group, rollout, end)

    def _settle(self, group: Group, rollout: int, end: RolloutEnd) -> None:
        failed_before = rollout in group.failed
        ended_before = failed_before or rollout in group.members
        group.settle(rollout, end)
        self.inflight_rollouts += failed_before - (end.member is None)
        if not ended_before:
            self._ended(group, rollout)

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
        self.tokens += sum(member.tokens for member in event.members)
        self._count_recent(event)
        self.selection.close(event)
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
