"""Appends waiting for disk space: a full disk delays a worker's records, and loses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog

RETRY_FULL_S = 0.5
"""Pause before an append to a full log is tried again."""


async def append_when_space(
    log: EventLog,
    drafts: Sequence[Draft],
    *,
    clock: Clock,
    on_full: Callable[[LogFullError], None] | None = None,
) -> list[Position]:
    """Appends the drafts and returns their positions, retrying for as long as the log has no space.

    Drafts beyond the limits of an append are appended in parts, one after the other. An append is no transaction
    anyway: a crash between two parts leaves a prefix, as a crash within an append may. `on_full` is called with each
    refusal, to inform a person. Every other error is raised.
    """
    positions: list[Position] = []
    for chunk in parts(drafts):
        positions += await _append(log, chunk, clock, on_full)
    return positions


def parts(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Yields the drafts in order, cut to the limits of one append."""
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
    """Appends drafts, again and again while the log is full; `on_full` is called each time."""
    while True:
        try:
            return await log.append(drafts)
        except LogFullError as error:
            if on_full is not None:
                on_full(error)
            # The same drafts with the same ids: a part of them may have landed (rule 4 of the log's contract).
            await clock.sleep(RETRY_FULL_S)
