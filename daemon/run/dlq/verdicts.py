"""Retry and drop: the rules for each kind of dead letter, and the events recording them."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from rftd.ops.errors import CodecError, ConflictError, NotFoundError
from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.task import TaskRetried
from rftd.streams.events.worker import RecordDropped, RecordRetried
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.letters import HOME, RecordPlace
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import decode_ours
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.spec.schedule import has_windows

_LEASED_STREAMS: Final = frozenset({topics.EXPERIMENTS, topics.TASKS, topics.WEIGHTS, topics.CHECKPOINTS})
"""Streams written under leases: a record repeated there later would contradict decisions made meanwhile."""


def task_retried(state: RunState, task: FailedTask, *, by: str, reason: str) -> TaskRetried:
    """Builds the event leasing a failed task once more, with rollouts on the newest weights, requested by `by`."""
    stage = state.spine.stage_spec()
    newest = state.weights.newest(state.spine)
    return TaskRetried(
        group=task.group,
        retry=derive(task.group, "retry"),
        stage=task.stage,
        sequence=task.sequence,
        row=task.row,
        epoch=task.epoch,
        repeat_times=task.members + task.failed,
        # On the newest weights: experiences on the first attempt's weights might be too stale for training.
        min_version=newest.version if newest is not None else state.spine.first_version,
        pinned=has_windows(stage.synchronizer),
        by=by,
        reason=reason,
    )


def check_retry(state: RunState, event: TaskRetried) -> None:
    """Raises ConflictError if every experience of a retried task would be too old to train."""
    spine = state.spine
    if spine.status not in (Status.RUNNING, Status.PAUSED):
        raise ConflictError(f"its experiment is {spine.status}", fix="fork it, or submit a new one")
    if spine.stage != event.stage or spine.stage_completed or spine.planned >= spine.last_version:
        raise ConflictError(
            f"stage {event.stage} has ended: none of its experiences can be trained",
            fix="drop it with rftd dlq drop, or fork the experiment at an earlier step",
        )


def refuse_record(record: Record | None, record_place: RecordPlace) -> ConflictError | NotFoundError:
    """Returns the error for retrying a dead record: readers use every record they can read, so a retry has
    no effect.
    """
    drop = "drop it with rftd dlq drop"
    if record is None:
        return NotFoundError(f"the log no longer has a record at {record_place}", fix=drop)
    if record_place.stream in _LEASED_STREAMS:
        return ConflictError(
            f"{record_place.stream} is written by roles that decide on what they read; a record of it that takes "
            "effect late would contradict what was decided since",
            where=str(record_place),
            fix=drop,
        )
    try:
        decode_ours(record)
    except CodecError as error:
        return ConflictError(
            f"it cannot be read: {error.what}", where=str(record_place), fix=f"let its writer repeat it; {drop}"
        )
    return ConflictError(
        "it can be read, so its readers have processed it already",
        where=str(record_place),
        fix=f"if only the tables could not, make them anew with rftd rebuild; {drop}",
    )


def retried(writer: Writer, record_place: RecordPlace, event: UUID, *, experiment: UUID | None, by: str) -> Draft:
    """Builds the record noting a retry by the person `by`; `event` is the retry's own event. A second note has no
    effect.
    """
    note = RecordRetried(
        stream=record_place.stream, partition=record_place.partition, offset=record_place.offset, event=event, by=by
    )
    return writer.draft(
        note, experiment=experiment, partition=HOME, id=derive(NAMESPACE, "retried note", *record_place)
    )


def dropped_id(record_place: RecordPlace) -> UUID:
    """Returns the event id of the drop's note, independent of the author."""
    return derive(NAMESPACE, "dropped note", *record_place)


def dropped(
    writer: Writer, record_place: RecordPlace, *, experiment: UUID | None, by: str, reason: str, key: UUID
) -> Draft:
    """Builds the record noting that `by` dropped the letter for `reason`. A second note has no effect."""
    note = RecordDropped(
        stream=record_place.stream, partition=record_place.partition, offset=record_place.offset, reason=reason, by=by
    )
    return writer.draft(note, experiment=experiment, partition=HOME, id=dropped_id(record_place), correlation=key)
