"""`DeadLetterService`: reads dead letters and writes the verdicts on them; each daemon has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.run.dlq.letter import Dead, DeadLetter, DeadLetterReceipt, State
from rftd.daemon.run.dlq.verdicts import dropped, refuse_record, retried
from rftd.daemon.run.operations import Operations
from rftd.daemon.run.registry import Entry, Registry
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, RftdError
from rftd.ops.metrics import Metrics
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.failed_tasks import failed_tasks
from rftd.streams.folds.failed_tasks import FailedTask, FailedTasks
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.letters import Letters, RecordPlace
from rftd.streams.log import topics
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

POLL_INTERVAL_S: Final = 15.0
"""Seconds between two looks for new records; only after new ones are the open dead letters counted again."""
_GAUGE_STREAMS: Final = frozenset({topics.TASKS, topics.DEADLETTERS, topics.EXPERIMENTS})
"""Streams whose new records can change the number of open dead letters."""

GiveOut = Callable[[FailedTask], Awaitable[KeyUse]]
"""Leases a failed task once more and returns the event recording the retry. Raises ConflictError."""


class DeadLetterService:
    """Reads dead letters, and records people's verdicts on them in the log: retries and drops.

    A retry overrides a drop, and a retried letter cannot be dropped. Of verdicts of a kind on one letter the first
    counts: their event id is derived from the letter's position.
    """

    def __init__(self, log: EventLog, writer: Writer, *, clock: Clock) -> None:
        """`log` is read for letters and verdicts; `writer` makes the records of verdicts; `clock` paces appends to a
        full log.
        """
        self._log = log
        self._writer = writer
        self._clock = clock
        self._letters = Letters()
        """Fold of the reported records, and of the verdicts on letters."""
        self.commands = self._letters.commands
        """Uses of request keys for drops, by which a repeated request finds its first record."""
        self._reading = asyncio.Lock()
        """Lock held by the one reader of the log."""

    async def dead(self, tasks: Sequence[FailedTask], experiments: Mapping[UUID, Entry]) -> list[Dead]:
        """Reads new letters and verdicts, and returns every dead letter, newest first; `tasks` are all tasks closed
        with failed rollouts.
        """
        await self.refresh()
        return gathered(self._letters, tasks, experiments)

    async def refresh(self) -> None:
        """Reads letters and verdicts up to the log's present end, one reader at a time."""
        async with self._reading:
            await self._letters.catch_up(self._log)

    async def retry(self, dead: Dead, give_out: GiveOut, *, by: str) -> DeadLetterReceipt:
        """Leases the failed task of a letter again by `give_out`, in the name of `by`, and returns the receipt; a
        letter retried before is left unchanged.

        Raises ConflictError, NotFoundError if a retry could have no effect.
        """
        id = dead.letter.id
        if dead.letter.state is State.RETRIED:
            return DeadLetterReceipt(id=id, state=State.RETRIED, already=True, position=None)
        if dead.task is None:
            raise await self.refusal(dead)
        # The task first, the note second: a crash in between leaves a leased task and a letter that looks open, and a
        # repeated retry finds the same event.
        use = await give_out(dead.task)
        note = retried(self._writer, dead.place, use.event, experiment=dead.task.experiment, by=by)
        await append_when_space(self._log, [note], clock=self._clock)
        return DeadLetterReceipt(id=id, state=State.RETRIED, already=False, position=str(use.position))

    async def refusal(self, dead: Dead) -> RftdError:
        """Returns the error for retrying a dead record."""
        return refuse_record(await record_at(self._log, dead.place), dead.place)

    def check_droppable(self, dead: Dead) -> None:
        """Raises ConflictError for a letter that was retried."""
        if dead.letter.state is State.RETRIED:
            raise ConflictError(f"{dead.letter.id} was retried, so it is not open", fix="see rftd dlq ls")

    async def drop(self, dead: Dead, *, by: str, reason: str, key: UUID) -> Position:
        """Records that `by` dropped the letter, and returns the record's position. Raises ConflictError
        after a retry.
        """
        self.check_droppable(dead)
        experiment = dead.task.experiment if dead.task is not None else None
        note = dropped(self._writer, dead.place, experiment=experiment, by=by, reason=reason, key=key)
        return (await append_when_space(self._log, [note], clock=self._clock))[0]


async def watch_dead_letters(
    operations: Operations, engine: AsyncEngine, projector: Projector, metrics: Metrics, clock: Clock
) -> None:
    """Updates the metric of open dead letters until cancelled; an unreachable log or database leaves it unchanged."""
    counted_positions: object = None
    while True:
        positions = {
            partition: next for partition, next in projector.positions.items() if partition.stream in _GAUGE_STREAMS
        }
        if positions != counted_positions:
            try:
                async with engine.connect() as connection:
                    tasks = await failed_tasks(connection)
                letters = await operations.dead_letters(tasks)
            # The counted positions stay, so that the next look tries again without new records.
            except (SQLAlchemyError, OSError, RftdError):
                end_if_cancelled()
            else:
                counted_positions = positions
                for kind in ("record", "task"):
                    open_count = sum(
                        letter.letter.kind == kind and letter.letter.state is State.OPEN for letter in letters
                    )
                    metrics.dead_letters_open.labels(kind).set(open_count)
        await clock.sleep(POLL_INTERVAL_S)


async def dead_offline(log: EventLog) -> list[Dead]:
    """Returns every dead letter of a log without a daemon, newest first. Reads every record of three streams."""
    registry = Registry(log)
    letters = Letters()
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    await letters.catch_up(log)
    return gathered(letters, await FailedTasks().read(log), registry.entries)


def gathered(letters: Letters, tasks: Iterable[FailedTask], experiments: Mapping[UUID, Entry]) -> list[Dead]:
    """Returns every dead letter, records and failed tasks together, newest first."""
    letters_and_tasks = [*_dead_records(letters), *_dead_tasks(letters, tasks, experiments)]
    return sorted(letters_and_tasks, key=lambda dead: (dead.letter.found_ns, dead.place), reverse=True)


async def record_at(log: EventLog, record_place: RecordPlace) -> Record | None:
    """Returns the record at a position; None if the log has none there any more."""
    records = await log.read(Partition(record_place.stream, record_place.partition), record_place.offset, max_records=1)
    return records[0] if records and records[0].offset == record_place.offset else None


def _dead_records(letters: Letters) -> Iterator[Dead]:
    """Yields a dead letter for each record reported as unusable in this log."""
    for record_place, pointer in letters.letters.items():
        if record_place.offset < 0:  # from another log, whose experiment was imported without the record
            continue
        state, by, verdict, decided_ns = _verdict_of(letters, pointer.place)
        yield Dead(
            letter=DeadLetter(
                id=str(record_place),
                kind="record",
                state=state,
                experiment=None,
                task=None,
                group=None,
                attempts=0,
                code=pointer.code,
                reason=pointer.reason,
                found_ns=pointer.reported_ns,
                by=by,
                verdict=verdict,
                decided_ns=decided_ns,
            ),
            place=record_place,
            pointer=pointer,
        )


def _dead_tasks(letters: Letters, tasks: Iterable[FailedTask], experiments: Mapping[UUID, Entry]) -> Iterator[Dead]:
    """Yields a dead letter for each task with fewer members than its stage needs for training; skips tasks of unknown
    experiments.
    """
    for task in tasks:
        experiment = experiments.get(task.experiment)
        # A group with enough members was trained in spite of its failures and needs no decision.
        if experiment is None or task.members >= _members_needed(experiment, task):
            continue
        state, by, verdict, decided_ns = _verdict_of(letters, task.place)
        yield Dead(
            letter=DeadLetter(
                id=str(task.place),
                kind="task",
                state=state,
                experiment=str(task.experiment),
                task=f"{experiment.name}/task/{task.stage}.{task.sequence}",
                group=str(task.group),
                attempts=len(task.tries),
                code=task.code,
                reason=task.reason,
                found_ns=task.closed_ns,
                by=by,
                verdict=verdict,
                decided_ns=decided_ns,
            ),
            place=task.place,
            task=task,
        )


def _members_needed(experiment: Entry, task: FailedTask) -> int:
    """Returns the smallest number of members with which the task's group is trained; 0 for an unknown stage, and for an
    experiment without a specification.
    """
    stages = experiment.spine.spec.stages if experiment.spine.spec is not None else ()
    if not 0 <= task.stage < len(stages):
        return 0
    stage = stages[task.stage]
    return min(stage.policy.min_group_members, stage.algorithm.repeat_times)


def _verdict_of(letters: Letters, record_place: RecordPlace) -> tuple[State, str, str, int | None]:
    """Returns state, author, reason and time of the verdict on the letter at this position; `State.OPEN` without a
    verdict.
    """
    verdict = letters.verdicts.get(record_place)
    if verdict is None:
        return State.OPEN, "", "", None
    state = State.RETRIED if verdict.retried else State.DROPPED
    return state, verdict.by, verdict.reason, verdict.decided_ns
