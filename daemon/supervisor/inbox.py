"""`Inbox`: what owners ask of a run under way. Whoever asks is answered, whatever becomes of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias
from uuid import UUID

from rftd.ops.errors import ConflictError, UnreachableError
from rftd.streams.envelope import Position
from rftd.streams.events.registry import Event
from rftd.streams.role import RoleLease

PLACES = 64
"""The most commands that wait at once; a caller beyond that is told to ask again."""


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises ConflictError if a command may not be carried out any more, whatever the run says to it."""


class Request(NamedTuple):
    """The id and key under which a command is appended; `confirm` is awaited under the lease that the command needs."""

    id: UUID
    key: UUID | None = None
    confirm: Confirm | None = None


class _Asked(NamedTuple):
    """One command, and who waits for its answer."""

    event: Event
    request: Request
    answer: asyncio.Future[Position]


class Inbox:
    """Commands in the order in which they came; `check` raises ConflictError for one that is illegal now."""

    def __init__(self, experiment: UUID, check: Callable[[Event], None]) -> None:
        self._experiment = experiment
        self._check = check
        self._asked: list[_Asked] = []
        self._closed = False

    async def ask(self, event: Event, request: Request) -> Position:
        """The position of the event once it was appended as the controller, and read back.

        A request may wait while another daemon has the run and answers who asks there: so it is confirmed in its turn.

        Raises ConflictError if it is illegal, UnreachableError if the run does not decide, or not any more.
        """
        if self._closed or len(self._asked) >= PLACES:
            # An illegal command is refused for good; a legal one that met a closed inbox may be asked again, so the
            # two answers differ.
            self._check(event)
            raise _elsewhere()
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(event, request, answer))
        return await answer

    async def obey(self, lease: RoleLease) -> None:
        """Carries out everything that was asked. Raises what the lease raises, after an answer to who waits."""
        while self._asked:
            # Taken out before the first await: `close` answers what is still in the list, so nothing is answered
            # twice.
            asked = self._asked.pop(0)
            if asked.answer.done():  # whoever asked has gone
                continue
            try:
                id, key, confirm = asked.request
                if confirm is not None:
                    # Asked in its turn, not when it came: meanwhile another daemon may have had the run and carried
                    # out the same key.
                    await confirm()
                self._check(asked.event)
                draft = lease.writer.draft(asked.event, experiment=self._experiment, id=id, correlation=key)
                position = (await lease.append([draft]))[0]
            except ConflictError as error:
                _refuse(asked, error)
            # A fence and a cancellation too: an HTTP request whose future is never set would hang until its client
            # gives up.
            except BaseException:
                _refuse(asked, _elsewhere())
                raise
            else:
                if not asked.answer.done():
                    asked.answer.set_result(position)

    def close(self) -> None:
        """Refuses what was asked and what will be; idempotent."""
        self._closed = True
        asked = self._asked
        self._asked = []
        for each in asked:
            try:
                self._check(each.event)
            except ConflictError as error:
                _refuse(each, error)
            else:
                _refuse(each, _elsewhere())


def _refuse(asked: _Asked, error: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)


def _elsewhere() -> UnreachableError:
    return UnreachableError("the run is being taken up anew", fix="ask again in a moment")
