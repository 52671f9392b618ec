"""`rollout_of`: confines exits in a workflow's own tasks and callbacks to their rollout.

asyncio lets a SystemExit and a KeyboardInterrupt of any task and any callback out of its loop: every other rollout
would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

from rftd.ops.errors import RolloutError
from rftd.ops.logs import logger
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import named


class OwnRollout:
    """One rollout, together with every asyncio task and callback started by it."""

    def __init__(self, task: Task) -> None:
        """Belongs to the asyncio task of the caller."""
        self.task = task
        self.exit: RolloutError | None = None
        """Error for an exit of a callback, because of which the rollout was cancelled; None without one."""
        self._attempt = asyncio.current_task()
        """Asyncio task of the rollout."""
        self._cancelled = False
        """True if `end` cancelled the rollout."""
        self._over = False
        """True once the rollout has ended."""

    def end(self, error: RolloutError) -> None:
        """Cancels the rollout for an exit of a callback; a rollout already over is not affected."""
        if self._over:
            logger().warning("workflow.exit_ignored", where=error.where, reason=error.what)
        elif self.exit is None and self._attempt is not None:
            self.exit = error
            self._cancelled = self._attempt.cancel()

    def leave(self) -> None:
        """Withdraws the cancellation made by `end`, but no cancellation by others."""
        self._over = True
        if self._cancelled and self._attempt is not None:
            self._attempt.uncancel()


_ROLLOUT: Final[ContextVar[OwnRollout | None]] = ContextVar("own_rollout", default=None)
"""The rollout of the running code; None outside of rollouts."""
_CALLBACK_TYPES: Final = (FunctionType, MethodType, BuiltinFunctionType, partial)
"""Types of the callbacks scheduled by workflows; asyncio's tasks use types of their own."""


@contextmanager
def rollout_of(task: Task) -> Iterator[OwnRollout]:
    """Turns exits of asyncio tasks started within the block into RolloutErrors of this task's row.

    An exit of a callback scheduled within the block cancels the block; `OwnRollout.exit` has the reason.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_start_task)
        _contain_callbacks(loop)
    rollout = OwnRollout(task)
    token = _ROLLOUT.set(rollout)
    try:
        yield rollout
    finally:
        rollout.leave()
        with suppress(ValueError):  # a coroutine closed from outside, in another context
            _ROLLOUT.reset(token)


def _start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    """Makes an asyncio task as the loop does, and contains its exits if a rollout starts it."""
    rollout = _ROLLOUT.get()
    if rollout is not None and isinstance(coroutine, Coroutine):
        coroutine = _ContainedCoroutine(coroutine, rollout.task)
    return asyncio.Task(coroutine, loop=loop, **options)


def _contain_callbacks(loop: asyncio.AbstractEventLoop) -> None:
    """Makes the loop contain the callbacks scheduled by rollouts, immediate or timed."""
    call_soon = loop.call_soon
    call_soon_threadsafe = loop.call_soon_threadsafe
    call_at = loop.call_at

    def contained_soon(callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        return call_soon(_contain_exits(callback, context), *args, context=context)

    def contained_threadsafe(
        callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return call_soon_threadsafe(_contain_exits(callback, context), *args, context=context)

    def contained_at(
        when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return call_at(when, _contain_exits(callback, context), *args, context=context)

    patched: Any = loop
    patched.call_soon = contained_soon
    patched.call_soon_threadsafe = contained_threadsafe
    patched.call_at = contained_at


def _contain_exits(callback: Callable[..., Any], context: Context | None) -> Callable[..., Any]:
    """Returns the callback unchanged, or, if scheduled by a rollout, wrapped so that its exit ends the rollout."""
    rollout = _ROLLOUT.get() if context is None else context.get(_ROLLOUT)
    if rollout is None or not isinstance(callback, _CALLBACK_TYPES):
        return callback

    def calling(*args: Any) -> Any:
        try:
            return callback(*args)
        except (SystemExit, KeyboardInterrupt) as error:
            rollout.end(named(error, rollout.task))

    return calling


class _ContainedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine that raises a RolloutError where the wrapped coroutine exits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], task: Task) -> None:
        """Wraps `coroutine`; exits become errors of `task`."""
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
        self._coroutine = coroutine
        self._task = task

    def send(self, sent: Any) -> Any:
        """Continues the coroutine with a value."""
        with self._contain_exits():
            return self._coroutine.send(sent)

    def throw(self, *error: Any) -> Any:
        """Continues the coroutine with an exception."""
        with self._contain_exits():
            return self._coroutine.throw(*error)

    def close(self) -> None:
        """Closes the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    @contextmanager
    def _contain_exits(self) -> Iterator[None]:
        try:
            yield
        except (SystemExit, KeyboardInterrupt) as error:
            raise named(error, self._task) from error
