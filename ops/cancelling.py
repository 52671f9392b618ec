"""Cancellation that an error has taken the place of."""

from __future__ import annotations

import asyncio


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
