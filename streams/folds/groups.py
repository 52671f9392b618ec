"""`GroupFold`: open groups, the leases of their rollouts, and their finished or failed rollouts."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import OverRolloutError, StaleFlightError
from rftd.streams.events import experience, task
from rftd.streams.folds.group import Group, Lease, RolloutEnd
from rftd.streams.folds.processing import Processing
from rftd.streams.folds.ranges import ClosedGroups
from rftd.streams.folds.selection import Selection
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import source_of

GIVEN_UP: Final = frozenset({OverRolloutError.code, StaleFlightError.code})
"""Codes of groups closed early by a decision, such as a staleness bound: no sign of failing rollouts."""

MINIMUMS: Final = 1024
"""Maximum of the numbers of members for which consecutive short groups are counted."""


class GroupWindow(NamedTuple):
    """The group begun last in the newest window of a stage."""

    number: int
    """Number of the window."""
    place: int
    """Position of the group within the window, from 0."""
    version: int
    """The group's first weight version."""


class GroupFold(msgspec.Struct):
    """All open groups of an experiment, and the dataset position of the next group."""

    open: dict[UUID, Group] = {}
    """Open groups, by id."""
    leases: dict[UUID, Lease] = {}
    """Unfinished leases of open groups, by id."""
    processing: dict[UUID, UUID] = {}
    """Groups of the experience pipeline's unfinished leases, by lease."""
    loose: set[UUID] = set()
    """Leased open groups that may have to be closed or leased again: the only ones the dispatcher examines."""
    to_close: int = 0
    """Number of open groups ever leased; answers to a void lease may open a group that never was."""
    inflight_rollouts: int = 0
    """Number of rollouts of leased open groups, less the failed ones."""
    load: dict[UUID, int] = {}
    """Number of unfinished rollouts of a worker's leases, by worker."""
    alone: dict[UUID, UUID] = {}
    """Leases given to a worker without other work, with the worker."""
    next_sequence: dict[int, int] = {}
    """Dataset position of the next group, by stage."""
    offers: dict[int, task.TasksOffered] = {}
    """Largest offer of rows, by stage, for stages whose tasks arrive during the run."""
    windows: dict[int, GroupWindow] = {}
    """Group begun last in the newest window, by stage, for schedules with sync points."""
    last_error: tuple[str, str] = ("", "")
    """Code and reason of the last closed group without all its members."""
    tokens: int = 0
    """Tokens of the members of closed groups, prompts and answers."""
    recent: list[tuple[int, int]] = []
    """Newest closed groups of `recent_stage`: total milliseconds and number of their members."""
    closed_in_stage: int = 0
    """Number of groups closed in `recent_stage`."""
    recent_stage: int = -1
    """The stage of `recent`."""
    selection: Selection = msgspec.field(default_factory=Selection)
    """Rows drawn by selectors, and the rewards for their next draws."""
    _short: dict[int, int] = {}
    """Consecutive closed groups with fewer members than each minimum."""
    _short_stage: int = -1
    """Index of the stage of the groups counted in `_short`; -1 before the first count."""
    _closed: ClosedGroups = msgspec.field(default_factory=ClosedGroups)
    """Ids of closed groups."""

    def apply(self, decoded: Decoded) -> None:
        """Folds an event of the tasks or experiences streams, task.retried, or tasks.drawn."""
        event = decoded.event
        match event:
            case experience.ExperienceProduced():
                self._fold_experience(event, decoded)
            case task.TaskLeased():
                self._fold_lease(event, decoded)
            case task.TasksOffered():
                task.note_offer(self.offers, event)
            case task.TasksDrawn():
                self.selection.draw(event)
            case task.GroupClosed():
                self._fold_closing(event, decoded)
            case task.TaskExpired():
                self._expire(event)
            case task.TaskRetried():
                self._fold_retry(event, decoded)
            case experience.RolloutFailed():
                self._fold_failure(event, decoded)
            case task.GroupLeased() | experience.GroupProcessed():
                self._fold_processing(event, decoded)

    def offered_rows(self, stage: int) -> int:
        """Returns the number of tasks offered until now in a stage whose tasks arrive during the run."""
        return self.offers[stage].rows if stage in self.offers else 0

    def _open_group(self, id: UUID, decoded: Decoded) -> Group | None:
        """Returns the group with this id, opened if unknown; None for a closed group."""
        group = self.open.get(id)
        if group is None and not self._closed.holds(decoded.head.experiment, id):
            group = self.open[id] = Group(id)
        return group

    def _fold_lease(self, event: task.TaskLeased, decoded: Decoded) -> None:
        """Folds a lease of rollouts."""
        self.next_sequence[event.stage] = max(self.next_sequence.get(event.stage, 0), event.sequence + 1)
        if event.window >= 0:
            begun = GroupWindow(event.window, event.place, event.min_version)
            self.windows[event.stage] = max(begun, self.windows.get(event.stage, begun))
        group = self._open_group(event.group, decoded)
        if group is None:
            return
        new = self._begin(group, event)
        group.window, group.place = event.window, event.place
        if event.attempt >= group.attempts:  # leases of other slots are read in any order
            group.attempts = event.attempt
            group.min_version, group.pinned = event.min_version, event.pinned
        # By number: a lease repeated in the log is no second attempt.
        if event.attempt not in group._counted:
            group._counted.add(event.attempt)
            for rollout in event.rollouts if not event.reissue else ():
                group.spent[rollout] = group.spent.get(rollout, 0) + 1
        if event.lease not in group.holders:
            group.holders[event.lease] = source_of("explorer", event.worker)
            early = group.hand_out_early(event.lease) if group.early else ()
        else:
            early = ()
        self._add_lease(group, event, decoded, new=new)
        for rollout, end in early:
            self._count_end(group, rollout, end)

    def _add_lease(self, group: Group, event: task.TaskLeased, decoded: Decoded, *, new: bool) -> None:
        """Adds the lease to its group, unless it is known or has expired; `new`: the group's size was unknown
        before.
        """
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
        self._add_load(lease.worker, len(group.left_of(lease)))
        if lease.alone:
            self.alone[lease.id] = lease.worker
        self._place(group, new=new)

    def _begin(self, group: Group, event: task.TaskLeased | task.TaskRetried) -> bool:
        """Sets the group's sequence and size, known from here on. True if they were unknown before."""
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
        """Adds the group to the loose ones, or removes it from them."""
        if group.loose:
            self.loose.add(group.id)
        elif not new:
            self.loose.discard(group.id)

    def _drop(self, group: Group, lease: Lease) -> None:
        """Ends a lease."""
        del self.leases[lease.id]
        if lease.alone:
            del self.alone[lease.id]
        if not group.terminal:
            self._add_load(lease.worker, -len(group.left_of(lease)))

    def _add_load(self, worker: UUID, rollouts: int) -> None:
        """Adds rollouts to a worker's load, or subtracts them."""
        remaining = self.load.get(worker, 0) + rollouts
        if remaining:
            self.load[worker] = remaining
        else:
            self.load.pop(worker, None)

    def _ended(self, group: Group, rollout: int) -> None:
        """Updates the leases and the loose groups after a rollout's end."""
        # Every lease of the rollout: a slow one may be under way at a second worker too, and the first answer ends
        # both.
        for lease in group.leases.values():
            if rollout in lease.rollouts:
                self._add_load(lease.worker, -1)
        if group.terminal:
            self.loose.add(group.id)
        elif self.loose and group.id in self.loose:
            self._place(group)

    def _fold_retry(self, event: task.TaskRetried, decoded: Decoded) -> None:
        """Folds a retry: a new group in place of a failed one."""
        group = self._open_group(event.retry, decoded)
        if group is None:
            return
        new = self._begin(group, event)
        group.retry = True
        self._place(group, new=new)
        if not group.attempts:
            group.min_version, group.pinned = event.min_version, event.pinned

    def _expire(self, event: task.TaskExpired) -> None:
        # A lease lies before its end, in the same partition: an unknown one is over, or its group is closed.
        """Ends a lease without completion, and decides whether the lease counts as an attempt."""
        lease = self.leases.get(event.lease)
        if lease is None:
            if (processed := self.processing.pop(event.lease, None)) is not None:
                self._processing_of(self.open[processed]).expire(event.lease)
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

    def _fold_processing(self, event: task.GroupLeased | experience.GroupProcessed, decoded: Decoded) -> None:
        """Folds a lease or an answer of the experience pipeline."""
        group = self._open_group(event.group, decoded)
        if group is None:
            return
        processing = self._processing_of(group)
        if isinstance(event, task.GroupLeased):
            processing.lease(event)
        else:
            processing.answer(event, decoded.head.source)
        if event.lease in processing.leases:
            self.processing[event.lease] = group.id
        else:
            self.processing.pop(event.lease, None)

    def _processing_of(self, group: Group) -> Processing:
        """Returns the pipeline's work on a group, begun if new."""
        if group.processing is None:
            group.processing = Processing()
        return group.processing

    def _fold_experience(self, event: experience.ExperienceProduced, decoded: Decoded) -> None:
        """Folds an experience."""
        group = self._open_group(event.group, decoded)
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
        # At least 1: a sum of zero would mean "nothing is known".
        duration_ms = max(1, round(event.duration_s * 1000))
        self._answer(group, event.rollout, RolloutEnd(event.lease, decoded.head.source, member, duration_ms))

    def _fold_failure(self, event: experience.RolloutFailed, decoded: Decoded) -> None:
        """Folds a failed rollout."""
        group = self._open_group(event.group, decoded)
        if group is None or not group.expects(event.rollout):
            return
        end = RolloutEnd(event.lease, decoded.head.source, code=event.code, reason=event.reason)
        self._answer(group, event.rollout, end)

    def _answer(self, group: Group, rollout: int, end: RolloutEnd) -> None:
        """Counts a rollout's end written by the holder of its lease; before the lease is read, the end is kept as
        early.
        """
        holder = group.holder(end.lease)
        if holder is None:
            group.note_early(rollout, end)
        elif holder == end.source:
            self._count_end(group, rollout, end)

    def _count_end(self, group: Group, rollout: int, end: RolloutEnd) -> None:
        """Records the counting end of a rollout, which may replace an earlier choice."""
        failed_before = rollout in group.failed
        ended_before = failed_before or rollout in group.members
        group.settle(rollout, end)
        self.inflight_rollouts += failed_before - (end.member is None)
        if not ended_before:
            self._ended(group, rollout)

    def _fold_closing(self, event: task.GroupClosed, decoded: Decoded) -> None:
        # A close repeated in the log changes nothing: batches rest on the first.
        """Closes a group: ends the group's leases, and counts the group's tokens and rewards."""
        if not self._closed.first(decoded.head.experiment, event.group):
            return
        self.next_sequence[event.stage] = max(self.next_sequence.get(event.stage, 0), event.sequence + 1)
        group = self.open.pop(event.group, None)
        for lease_id in group.processing.leases if group is not None and group.processing is not None else ():
            del self.processing[lease_id]
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
        """Mean seconds of a rollout over the newest closed groups; None without any."""
        members = sum(count for _, count in self.recent)
        return sum(busy_ms for busy_ms, _ in self.recent) / members / 1000 if members else None

    def _count_recent(self, event: task.GroupClosed) -> None:
        # Every close of an experiment is in one partition, so "recent", and "in a row" below, have one meaning.
        """Adds a closed group to the newest ones of its stage."""
        if event.stage != self.recent_stage:
            self.recent_stage, self.closed_in_stage, self.recent = event.stage, 0, []
        self.closed_in_stage += 1
        if event.busy_ms:
            self.recent = [*self.recent[1 - limits.RECENT_GROUPS :], (event.busy_ms, len(event.members))]

    def short_in_a_row(self, stage: int, minimum: int) -> int:
        """Returns the number of groups closed with fewer than `minimum` members since the last one with enough."""
        return self._short.get(minimum, 0) if stage == self._short_stage else 0

    def _count_short(self, event: task.GroupClosed) -> None:
        """Counts consecutive groups with too few members, for each minimum up to the group's size."""
        if event.stage != self._short_stage:
            self._short_stage, self._short = event.stage, {}
        members = len(event.members)
        # Beyond its own size a group proves nothing: no policy can require more members than rollouts.
        for minimum in range(1, min(members + event.failed, MINIMUMS) + 1):
            self._short[minimum] = 0 if members >= minimum else self._short.get(minimum, 0) + 1
        if event.failed:
            self.last_error = (event.code, event.reason)
