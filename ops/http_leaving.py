"""`Leaving`: the connections that a server is about to end, a few in each turn of its loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_ENDS: Final = 8
"""Connections that are ended in one turn of the loop."""


class Leaving:
    """The connections of one server that wait for their end.

    Hundreds of clients that came at once run into the same time-out at once: ending all of them in one turn would let
    everybody else wait.
    """

    def __init__(self) -> None:
        self._ends: Final[deque[Callable[[], None]]] = deque()

    def add(self, end: Callable[[], None]) -> None:
        """Calls `end` in a turn of the loop to come, after those that were added before."""
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._turn)
        self._ends.append(end)

    def _turn(self) -> None:
        for _ in range(min(_ENDS, len(self._ends))):
            self._ends.popleft()()
        if self._ends:
            asyncio.get_running_loop().call_soon(self._turn)
