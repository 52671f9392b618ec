"""The callers that wait for responses: one caller for one response, or one for several, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engine import Generation
from rftd.workers.rollout.engines.torch.running import Running


class Waiter(Protocol):
    """Takes what its requests end with, on the event loop."""

    def take(self, running: Running, result: Generation | RolloutError) -> None:
        """The end of one of its requests."""
        ...


class Single:
    """Waits for one response."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def take(self, running: Running, result: Generation | RolloutError) -> None:
        # The caller was cancelled after the decode thread had finished the request.
        if self.response.done():
            return
        if isinstance(result, Generation):
            self.response.set_result(result)
        else:
            self.response.set_exception(result)


class Several:
    """Implements `Answers` for requests that were made together."""

    def __init__(self) -> None:
        self._numbers: dict[Running, int] = {}
        self._done: list[tuple[int, Generation | RolloutError]] = []
        self._more: asyncio.Future[None] | None = None

    def expect(self, number: int, running: Running) -> None:
        """The request of this number is on its way."""
        self._numbers[running] = number

    def refuse(self, number: int, error: RolloutError) -> None:
        """The request of this number can never run."""
        self._done.append((number, error))

    def take(self, running: Running, result: Generation | RolloutError) -> None:
        self._done.append((self._numbers.pop(running), result))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        if not self._done and self._numbers:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        done = self._done
        self._done = []
        return done
