"""Cancellation hidden by another error, and work that continues despite a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


def end_if_cancelled() -> None:
    """Raises CancelledError if this task was cancelled. A loop that continues after errors must call it first.

    Cancelled code cleans up, and an error of the clean-up can replace the CancelledError (for example SQLAlchemy's
    error for a connection in the middle of a statement): the task would continue for ever, and its canceller would
    wait.
    """
    # `cancelling` counts requests, and only `uncancel` (of a time-out or a task group) takes one back: it still reports
    # the cancellation when the exception is gone.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_UNDISTURBED: Final[set[asyncio.Future[Any]]] = set()
"""Running tasks whose callers may be gone: the loop itself keeps no task alive."""


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`, which runs to its end even if the caller is cancelled meanwhile.

    A cancelled statement of SQLAlchemy costs its connection, which the pool must then replace.
    """
    task = asyncio.ensure_future(work)
    _UNDISTURBED.add(task)
    task.add_done_callback(_UNDISTURBED.discard)
    return await asyncio.shield(task)
