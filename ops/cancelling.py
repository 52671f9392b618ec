"""Cancellation that an error has taken the place of."""

from __future__ import annotations

import asyncio


def end_if_cancelled() -> None:
    """Raises CancelledError if this task was cancelled. Whoever goes on after an error of others calls it first.

    What is cancelled cleans up, and an error of that can take the place of the CancelledError (SQLAlchemy's of a
    connection in the middle of a statement, for one): the task would go on for ever, and whoever ended it would wait.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
