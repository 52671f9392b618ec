"""Workflows on threads of their own (`concurrent_mode: multi-threading`): one that blocks holds up no other.

Each attempt gets a thread with an event loop. The model is asked on the explorer's loop, where the engine lives.
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


class EngineFromThreads:
    """A `RolloutEngine` for other threads than the one whose running loop it is made on."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    @property
    def version(self) -> tuple[int, int]:
        return self._engine.version

    @property
    def holds_schemas(self) -> bool:
        return isinstance(self._engine, SchemaEngine) and self._engine.holds_schemas

    async def generate(self, request: GenerationRequest) -> Generation:
        asked = asyncio.run_coroutine_threadsafe(self._engine.generate(request), self._loop)
        return await asyncio.wrap_future(asked)  # cancelling the one cancels the other

    async def load_weights(self, weights: WeightsRef) -> str:
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._engine.load_weights(weights), self._loop)
        )

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop))


async def on_own_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the work on a new thread, and returns or raises what it does.

    Cancelled, it cancels the work and waits for its end: work that blocks ends when it looks up. The thread is a
    daemon, so one that never does holds up no exit.
    """
    thread = _WorkThread(work)
    thread.start()
    try:
        await asyncio.wait({thread.result})
    except asyncio.CancelledError:
        thread.cancel()
        await asyncio.wait({thread.result})
        if not thread.result.cancelled():
            thread.result.exception()  # seen
        raise
    return thread.result.result()


async def on_daemon_thread(call: Callable[[], object]) -> object:
    """The call's result. A thread that never returns is left behind: it is a daemon, and holds up no exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def settle(value: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def work() -> None:
        value: object = None
        failure: Exception | None = None
        try:
            value = call()
        except BaseException as error:
            # A future refuses StopIteration, and what is no Exception would end the explorer in the place of the call:
            # an exit of code that the call runs, a cancelled future that it asks.
            plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            failure = error if plain else RuntimeError(f"{type(error).__name__}: {error}")  # type: ignore[assignment]
        # The loop may be gone by now, and with it whoever waited.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, failure)

    # Not of a pool, in which a call that never returns would keep a thread that others wait for.
    # In the caller's context, as asyncio's own threads: a span that is open is open there, too.
    target = contextvars.copy_context().run
    threading.Thread(target=target, args=(work,), name="call", daemon=True).start()
    return await done


class _WorkThread(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._outer, self._inner = asyncio.get_running_loop(), asyncio.new_event_loop()
        self.result: asyncio.Future[T] = self._outer.create_future()
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def start(self) -> None:
        target = contextvars.copy_context().run
        threading.Thread(target=target, args=(self._run,), name="workflow", daemon=True).start()

    def cancel(self) -> None:
        """Cancels the work at its next await, or before its first."""
        with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
            self._inner.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._inner)
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = self._inner.run_until_complete(self._cancellable())
        except BaseException as error:
            failure = error
        finally:
            self._inner.close()
        # The explorer's loop may be gone by now, and with it whoever waited.
        with contextlib.suppress(RuntimeError):
            self._outer.call_soon_threadsafe(self._settle, value, failure)

    async def _cancellable(self) -> T:
        self._task = asyncio.ensure_future(self._work())
        if self._cancelled:
            self._task.cancel()
        return await self._task

    def _settle(self, value: Any, failure: BaseException | None) -> None:
        if isinstance(failure, asyncio.CancelledError):
            self.result.cancel()
        elif failure is not None:
            self.result.set_exception(failure)
        else:
            self.result.set_result(value)
