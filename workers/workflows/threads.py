"""Workflows on separate threads (`concurrent_mode: multi-threading`): a blocking workflow delays no other.

Each attempt gets a thread with an event loop. Requests to the model run on the explorer's loop, where the engine lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest, RolloutEngine, SchemaEngine
from rftd.workers.weights.channel import WeightsRef

T = TypeVar("T")
"""Type of the work's result."""


class EngineFromThreads:
    """A `RolloutEngine` for calls from other threads; made on the engine's running loop."""

    def __init__(self, engine: RolloutEngine) -> None:
        """`engine` runs on the caller's loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        """Event loop of the engine."""

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use."""
        return self._engine.version

    @property
    def holds_schemas(self) -> bool:
        """True if the engine can constrain a response by a JSON schema."""
        return isinstance(self._engine, SchemaEngine) and self._engine.holds_schemas

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generates on the engine's event loop; see `RolloutEngine.generate`."""
        future = asyncio.run_coroutine_threadsafe(self._engine.generate(request), self._loop)
        return await asyncio.wrap_future(future)  # cancellation passes through

    async def load_weights(self, weights: WeightsRef) -> str:
        """Loads weights on the engine's event loop; see `RolloutEngine.load_weights`."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._engine.load_weights(weights), self._loop)
        )

    def stats(self) -> EngineStats:
        """Returns the engine's counters."""
        return self._engine.stats()

    async def close(self) -> None:
        """Closes the engine on its event loop."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop))


async def on_own_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine on a new thread, and returns its result or raises its error.

    A cancelled call cancels the coroutine and waits for its end: blocking work ends at its next await. The thread is a
    daemon, so work that never ends does not delay the process's exit.
    """
    thread = _WorkThread(work)
    thread.start()
    try:
        await asyncio.wait({thread.result})
    except asyncio.CancelledError:
        thread.cancel()
        await asyncio.wait({thread.result})
        if not thread.result.cancelled():
            thread.result.exception()  # retrieved, or asyncio would log it
        raise
    return thread.result.result()


async def on_daemon_thread(call: Callable[[], object]) -> object:
    """Returns the result of a blocking call on a new thread, abandoned if it never returns: a daemon delays no exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def settle(returned: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(returned)
        else:
            done.set_exception(error)

    def work() -> None:
        returned: object = None
        failure: Exception | None = None
        try:
            returned = call()
        except BaseException as error:
            # A future refuses StopIteration, and a BaseException would end the explorer instead of the call: an exit in
            # the called code, or a cancelled future awaited there.
            plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            failure = error if plain else RuntimeError(f"{type(error).__name__}: {error}")  # type: ignore[assignment]
        # The loop may be closed by now, together with the waiting caller.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, returned, failure)

    # Not from a pool, where a call that never returns would occupy a thread needed by others. In the caller's context,
    # as with asyncio's own threads: an active span stays active.
    target = contextvars.copy_context().run
    threading.Thread(target=target, args=(work,), name="call", daemon=True).start()
    return await done


class _WorkThread(Generic[T]):
    """A coroutine on a new thread with an event loop of its own."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """`work` makes the coroutine."""
        self._outer, self._inner = asyncio.get_running_loop(), asyncio.new_event_loop()
        self.result: asyncio.Future[T] = self._outer.create_future()
        """Result of the work, on the caller's loop."""
        self._work = work
        self._task: asyncio.Task[T] | None = None
        """Task of the work; None before its start."""
        self._cancelled = False
        """True after `cancel`."""

    def start(self) -> None:
        """Starts the thread."""
        target = contextvars.copy_context().run
        threading.Thread(target=target, args=(self._run_loop,), name="workflow", daemon=True).start()

    def cancel(self) -> None:
        """Cancels the work at its next await, or before its first."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended
            self._inner.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        """Cancels the work, on the thread's loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _run_loop(self) -> None:
        """Runs the work to its end; the body of the thread."""
        asyncio.set_event_loop(self._inner)
        returned: T | None = None
        failure: BaseException | None = None
        try:
            returned = self._inner.run_until_complete(self._cancellable())
        except BaseException as error:
            failure = error
        finally:
            self._inner.close()
        # The explorer's loop may be closed by now, together with the waiting caller.
        with contextlib.suppress(RuntimeError):
            self._outer.call_soon_threadsafe(self._set_result, returned, failure)

    async def _cancellable(self) -> T:
        """Awaits the work in a task, so that it can be cancelled."""
        self._task = asyncio.ensure_future(self._work())
        if self._cancelled:
            self._task.cancel()
        return await self._task

    def _set_result(self, returned: Any, failure: BaseException | None) -> None:
        """Sets the result, on the caller's loop."""
        if isinstance(failure, asyncio.CancelledError):
            self.result.cancel()
        elif failure is not None:
            self.result.set_exception(failure)
        else:
            self.result.set_result(returned)
