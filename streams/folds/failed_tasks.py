"""Failed tasks, of which too few rollouts succeeded: a fold of `rftd.tasks`, for whoever has no tables."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events import task
from rftd.streams.folds.letters import RecordPlace
from rftd.streams.log.codec import Decoded
from rftd.streams.log.effective import effective_records
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TASKS, TRUTH

STAGE_ENDED = "the stage ended"
"""The reason of a group that closed because nothing of its stage could be trained any more: no failure of its task."""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One lease of the task's group."""

    attempt: int
    slot: int
    worker: str
    leased_ns: int
    ended: str
    """Why it ended without completion; empty if it did not expire."""


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A group that closed with failed rollouts; whether its members suffice is its stage's to say."""

    experiment: UUID
    group: UUID
    stage: int
    sequence: int
    row: int
    epoch: int
    members: int
    failed: int
    code: str
    reason: str
    closed_ns: int
    place: RecordPlace
    """The place of its group.closed."""
    tries: tuple[Try, ...] = ()


class FailedTasks:
    """Every group that closed with failed rollouts, with its leases."""

    def __init__(self) -> None:
        self._closed: dict[UUID, tuple[task.GroupClosed, Decoded]] = {}
        self._leases: dict[UUID, dict[UUID, tuple[task.TaskLeased, int]]] = {}
        self._ended: dict[UUID, str] = {}

    async def read(self, log: EventLog) -> list[FailedTask]:
        """All of a log's, newest first. Reads every record of `rftd.tasks`."""
        fences = FenceView()
        for partition in (each for each in TRUTH if each.stream == TASKS):
            async for decoded in effective_records(log, partition, fences):
                self.apply(decoded)
        return self.found()

    def apply(self, decoded: Decoded) -> None:
        """Takes in one effective event."""
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
        """The tasks that were taken in, newest first."""
        tasks = [self._task(event, decoded) for event, decoded in self._closed.values()]
        return sorted(tasks, key=lambda each: (each.closed_ns, each.place), reverse=True)

    def _task(self, event: task.GroupClosed, decoded: Decoded) -> FailedTask:
        leases = sorted(self._leases.get(event.group, {}).values(), key=lambda entry: entry[0].attempt)
        experiment = decoded.head.experiment
        last = leases[-1][0] if leases else None
        assert experiment is not None, decoded.head
        return FailedTask(
            experiment=experiment,
            group=event.group,
            stage=event.stage,
            sequence=event.sequence,
            row=last.row if last else -1,
            epoch=last.epoch if last else -1,
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
