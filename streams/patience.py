"""Appends that wait for space: a full disk stops progress, never loses what a worker holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.envelope import Draft, Position
from rftd.streams.log import EventLog

RETRY_FULL_S = 0.5


async def append_when_space(
    log: EventLog,
    drafts: Sequence[Draft],
    *,
    clock: Clock,
    on_full: Callable[[LogFullError], None] | None = None,
) -> list[Position]:
    """Positions of the drafts. While the log has no space the same drafts are tried again, without an end.

    `on_full` hears of each refusal, so that a person can. Every other error is raised.
    """
    while True:
        try:
            return await log.append(drafts)
        except LogFullError as error:
            if on_full is not None:
                on_full(error)
            await clock.sleep(RETRY_FULL_S)
