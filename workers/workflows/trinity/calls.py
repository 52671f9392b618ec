"""`RolloutThread`: a class on a thread with an event loop of its own, calling the model on the rollout's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rftd.ops.errors import RolloutError
from rftd.workers.workflows.threads import on_own_thread

T = TypeVar("T")


class RolloutThread:
    """The calls of one rollout between its event loop and the thread of its class. Made on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[Future[Any]] = set()
        self._over = False

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on a new thread and returns its result; a cancelled rollout cancels its open calls."""
        running = asyncio.ensure_future(on_own_thread(work))
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            # The calls first: the thread may block in one, and hears of its cancellation only afterwards.
            self.end()
            running.cancel()
            await asyncio.wait({running})
            raise
        finally:
            self.end()
        return running.result()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the rollout's loop, and blocks the calling thread until its end."""
        return self._begun(work).result()

    async def here(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the rollout's loop, from a coroutine of the thread."""
        return await asyncio.wrap_future(self._begun(work))

    def end(self) -> None:
        """Cancels all open calls; further ones raise RolloutError."""
        self._over = True
        for call in list(self._open):
            call.cancel()

    def _begun(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._over:
            work.close()
            raise RolloutError("the rollout is over", fix="make all calls before run() returns")
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._open.add(call)
        call.add_done_callback(self._open.discard)
        if self._over:
            call.cancel()  # `end` ran on the other thread before the call was among the open ones
        return call
