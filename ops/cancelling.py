"""Cancellation hidden by another error, and work that continues despite a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
"""Type returned by the work."""


def end_if_cancelled() -> None:
    """Raises CancelledError if the current task was cancelled; for loops that continue after errors.

    Cancelled code cleans up, and an error of the clean-up can replace the CancelledError (for example SQLAlchemy's
    error for a connection in the middle of a statement): the task would continue for ever, with the canceller waiting.
    """
    # `cancelling` counts requests, and only `uncancel` (of a time-out or a task group) takes a request back: the count
    # still shows the cancellation when the exception is gone.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_UNDISTURBED: Final[set[asyncio.Future[Any]]] = set()
"""Running tasks whose callers may be gone: the loop itself keeps no task alive."""


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` to its end, even if the caller is cancelled meanwhile, and returns its result.

    A cancelled statement of SQLAlchemy costs the connection, to be replaced by the pool.
    """
    task = asyncio.ensure_future(work)
    _UNDISTURBED.add(task)
    task.add_done_callback(_UNDISTURBED.discard)
    return await asyncio.shield(task)
