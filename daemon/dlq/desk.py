"""`Desk`: reads what was set aside and writes what was decided about it. One daemon has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from rftd.daemon.dlq.gathering import gathered
from rftd.daemon.dlq.letter import Dead, DeadLetterReceipt, State
from rftd.daemon.dlq.page import record_at
from rftd.daemon.dlq.verdicts import dropped, refuse_record, retried
from rftd.daemon.supervisor.registry import Entry
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError
from rftd.streams.codec import Writer
from rftd.streams.envelope import Position
from rftd.streams.folds.commands import Use
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.letters import Letters
from rftd.streams.log import EventLog
from rftd.streams.patience import append_when_space

GiveOut = Callable[[FailedTask], Awaitable[Use]]
"""Gives a failed task out once more, and tells which event says so. Raises ConflictError."""


class Desk:
    """Verdicts are idempotent: each follows from the place of its letter, and the first of a kind counts."""

    def __init__(self, log: EventLog, writer: Writer, *, clock: Clock) -> None:
        self._log = log
        self._writer = writer
        self._clock = clock
        self._letters = Letters()
        self.commands = self._letters.commands
        """The fold that tells which keys dropped a letter."""
        self._reading = asyncio.Lock()

    async def dead(self, tasks: Sequence[FailedTask], entries: Mapping[UUID, Entry]) -> list[Dead]:
        """Every dead letter, newest first; `tasks` are all that closed with failed rollouts."""
        await self.refresh()
        return gathered(self._letters, tasks, entries)

    async def refresh(self) -> None:
        """Reads the letters up to the log's present."""
        async with self._reading:
            await self._letters.catch_up(self._log)

    async def retry(self, dead: Dead, give_out: GiveOut, *, by: str) -> DeadLetterReceipt:
        """Lets it take effect after all. Raises ConflictError, NotFoundError where that is not sound."""
        id = dead.letter.id
        if dead.letter.state is State.RETRIED:
            return DeadLetterReceipt(id=id, state=State.RETRIED, already=True, position=None)
        if dead.task is None:
            raise refuse_record(await record_at(self._log, dead.place), dead.place)
        use = await give_out(dead.task)
        note = retried(self._writer, dead.place, use.event, experiment=dead.task.experiment, by=by)
        await append_when_space(self._log, [note], clock=self._clock)
        return DeadLetterReceipt(
            id=id, state=State.RETRIED, already=False, position=f"{use.position.partition}@{use.position.offset}"
        )

    async def drop(self, dead: Dead, *, by: str, reason: str, key: UUID) -> Position:
        """Takes it from the list of what is open. Raises ConflictError if it was retried."""
        if dead.letter.state is State.RETRIED:
            raise ConflictError(f"{dead.letter.id} was retried, so it is not open", fix="see rftd dlq ls")
        experiment = dead.task.experiment if dead.task is not None else None
        note = dropped(self._writer, dead.place, experiment=experiment, by=by, reason=reason, key=key)
        return (await append_when_space(self._log, [note], clock=self._clock))[0]
