"""Appends that wait for space: a full disk stops progress, never loses what a worker holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog

RETRY_FULL_S = 0.5


async def append_when_space(
    log: EventLog,
    drafts: Sequence[Draft],
    *,
    clock: Clock,
    on_full: Callable[[LogFullError], None] | None = None,
) -> list[Position]:
    """Positions of the drafts. While the log has no space the same drafts are tried again, without an end.

    However many there are: what one append cannot take is appended in parts, one after the other. An append is no
    transaction anyway, so a crash between two parts leaves what a crash within one may leave: a prefix.
    `on_full` hears of each refusal, so that a person can. Every other error is raised.
    """
    positions: list[Position] = []
    for part in parts(drafts):
        positions += await _append(log, part, clock, on_full)
    return positions


def parts(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """The drafts in order, cut into what one append takes."""
    start = size_bytes = 0
    for index, draft in enumerate(drafts):
        full = index - start >= limits.APPEND_RECORDS or size_bytes + draft.size_bytes > limits.APPEND_SIZE_BYTES
        if index > start and full:
            yield drafts[start:index]
            start = index
            size_bytes = 0
        size_bytes += draft.size_bytes
    if start < len(drafts):
        yield drafts[start:]


async def _append(
    log: EventLog, drafts: Sequence[Draft], clock: Clock, on_full: Callable[[LogFullError], None] | None
) -> list[Position]:
    while True:
        try:
            return await log.append(drafts)
        except LogFullError as error:
            if on_full is not None:
                on_full(error)
            # The same drafts with the same ids: a part of them may have landed (rule 4 of the log's contract).
            await clock.sleep(RETRY_FULL_S)
