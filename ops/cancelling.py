"""Cancellation: that an error has taken the place of, and that work does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


def end_if_cancelled() -> None:
    """Raises CancelledError if this task was cancelled. A loop that goes on after an error calls it first.

    Cancelled code cleans up, and an error of the clean-up can take the place of the CancelledError (SQLAlchemy's of a
    connection in the middle of a statement, for one): the task would go on for ever, and whoever ended it would wait.
    """
    # `cancelling` counts requests, and only `uncancel` (a time-out's, a task group's) takes one back: it still tells of
    # the cancellation when the exception is gone.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_UNDISTURBED: Final[set[asyncio.Future[Any]]] = set()
"""Work whose callers may be gone: the loop itself keeps no task alive."""


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which goes on to its end even if the caller is cancelled meanwhile.

    A statement of SQLAlchemy's that is cancelled costs its connection, which another one takes the place of.
    """
    task = asyncio.ensure_future(work)
    _UNDISTURBED.add(task)
    task.add_done_callback(_UNDISTURBED.discard)
    return await asyncio.shield(task)
