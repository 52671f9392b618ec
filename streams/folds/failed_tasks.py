"""`FailedTasks`: groups closed with at least one failed rollout, a fold of `rftd.tasks` for readers without tables."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events import task
from rftd.streams.folds.letters import RecordPlace
from rftd.streams.log.effective import effective_records
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TASKS, TRUTH

STAGE_ENDED = "the stage ended"
"""Reason of groups closed with their stage: not a failure of their task."""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One lease of the task's group: attempt, worker, time and end."""

    attempt: int
    """Number of the lease among the leases of its group, from 1."""
    slot: int
    """Slot of the worker."""
    worker: str
    """Id of the worker."""
    leased_ns: int
    """Time of the lease, in nanoseconds since 1970."""
    ended: str
    """Reason of an end without completion; empty if the lease did not expire."""


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A group closed with failed rollouts; whether its members suffice depends on its stage."""

    experiment: UUID
    """Id of the experiment."""
    group: UUID
    """Id of the group."""
    stage: int
    """Index of the stage in the specification."""
    sequence: int
    """Position of the task in the dataset's order."""
    row: int
    """Row of the taskset."""
    epoch: int
    """Pass over the dataset, from 0."""
    members: int
    """Number of experiences."""
    failed: int
    """Number of failed rollouts."""
    code: str
    """Error code of the last failed rollout."""
    reason: str
    """Text of the last failed rollout's error, as recorded when the group closed."""
    closed_ns: int
    """Time of closing, in nanoseconds since 1970."""
    place: RecordPlace
    """Position of the group's group.closed."""
    tries: tuple[Try, ...] = ()
    """Leases of the task's group, in the order of their numbers."""


class FailedTasks:
    """All groups closed with failed rollouts, with their leases."""

    def __init__(self) -> None:
        self._closed: dict[UUID, tuple[task.GroupClosed, Decoded]] = {}
        """Closings with failed rollouts, by group, with their records."""
        self._leases: dict[UUID, dict[UUID, tuple[task.TaskLeased, int]]] = {}
        """Leases of each group, with the time of each."""
        self._ended: dict[UUID, str] = {}
        """Reason of each expired lease."""

    async def read(self, log: EventLog) -> list[FailedTask]:
        """Reads every record of `rftd.tasks`; returns the failed tasks closed before the call, newest first."""
        fences = FenceView()
        # Partitions are read one after the other while the run goes on: a group leased behind a partition already read
        # may close before a later one is. Leases of closings up to these heads are in the log now, and so are read.
        heads = await log.heads()
        for partition in (task_partition for task_partition in TRUTH if task_partition.stream == TASKS):
            end = heads[partition].next_offset if partition in heads else 0
            async for decoded in effective_records(log, partition, fences):
                if decoded.offset < end or not isinstance(decoded.event, task.GroupClosed):
                    self.apply(decoded)
        return self.found()

    def apply(self, decoded: Decoded) -> None:
        """Folds one effective event of leases, expiries and closed groups; events of other types change nothing."""
        match decoded.event:
            case task.TaskLeased() as event:
                self._leases.setdefault(event.group, {})[event.lease] = (event, decoded.head.time_ns)
            case task.TaskExpired() as event:
                self._ended[event.lease] = event.reason
            # Of a repeated close the first counts, as for every fold.
            case task.GroupClosed() as event if event.failed and event.reason != STAGE_ENDED:
                self._closed.setdefault(event.group, (event, decoded))
            case _:
                pass

    def found(self) -> list[FailedTask]:
        """Returns the failed tasks folded until now, newest first."""
        tasks = [self._failed_task(event, decoded) for event, decoded in self._closed.values()]
        return sorted(tasks, key=lambda failed_task: (failed_task.closed_ns, failed_task.place), reverse=True)

    def _failed_task(self, event: task.GroupClosed, decoded: Decoded) -> FailedTask:
        """Builds the failed task of a closing, with its leases in order."""
        leases = sorted(self._leases.get(event.group, {}).values(), key=lambda leased: leased[0].attempt)
        experiment = decoded.head.experiment
        last_lease = leases[-1][0] if leases else None
        assert experiment is not None, decoded.head
        return FailedTask(
            experiment=experiment,
            group=event.group,
            stage=event.stage,
            sequence=event.sequence,
            row=last_lease.row if last_lease else -1,
            epoch=last_lease.epoch if last_lease else -1,
            members=len(event.members),
            failed=event.failed,
            code=event.code,
            reason=event.reason,
            closed_ns=decoded.head.time_ns,
            place=RecordPlace(decoded.partition.stream, decoded.partition.number, decoded.offset),
            tries=tuple(
                Try(
                    attempt=lease.attempt,
                    slot=lease.slot,
                    worker=str(lease.worker),
                    leased_ns=at_ns,
                    ended=self._ended.get(lease.lease, ""),
                )
                for lease, at_ns in leases
            ),
        )
