"""`rollout_of`: the tasks that a workflow starts by itself, whose exits stay within its rollout.

asyncio lets a SystemExit and a KeyboardInterrupt of any task out of its loop: every other rollout would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from rftd.workers.rollout.workflows.result import named
from rftd.workers.tasksets.task import Task

_TASK: Final[ContextVar[Task | None]] = ContextVar("task_of_rollout", default=None)
"""The task whose rollout is under way here, and in every asyncio task that it starts."""


@contextmanager
def rollout_of(task: Task) -> Iterator[None]:
    """Within the block, exits of asyncio tasks that are started there become RolloutErrors of this task's row."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_start)
    token = _TASK.set(task)
    try:
        yield
    finally:
        with suppress(ValueError):  # of a coroutine that is closed from outside, where the value never was
            _TASK.reset(token)


def _start(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    """An asyncio task as the loop makes it; its exits are contained if a rollout starts it."""
    task = _TASK.get()
    if task is not None and isinstance(coroutine, Coroutine):
        coroutine = _Contained(coroutine, task)
    return asyncio.Task(coroutine, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that raises a RolloutError where the one within it exits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], task: Task) -> None:
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
        self._coroutine = coroutine
        self._task = task

    def send(self, value: Any) -> Any:
        with self._contained():
            return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        with self._contained():
            return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except (SystemExit, KeyboardInterrupt) as error:
            raise named(error, self._task) from error
