"""Waiting for what nothing announces: a plain value of another task, or what another process has done by now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""How long tests wait for what has to come. Only a failure takes that long, so it is long for the slowest machine."""


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Returns once the condition holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing tells of a plain value
            await asyncio.sleep(0.01)


def poll(
    condition: Callable[[], object], timeout_s: float = PATIENCE_S, *, told: Callable[[], object] = lambda: ""
) -> None:
    """Returns once the condition holds; AssertionError, with what `told` returns then, if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, told()
        time.sleep(0.02)
