"""The daemon's check of its own readiness: ready means answering requests, not believing to be ready."""

from __future__ import annotations

from typing import Final

import httpx

from rftd.ops.clock import Clock
from rftd.ops.errors import UnreachableError
from rftd.ops.logs import Logger

ASK_S: Final = 10.0
"""Time-out of one check; the next check uses a new connection."""
_PAUSE_S: Final = 0.2
"""Seconds between two checks."""


async def own_readiness(client: httpx.AsyncClient, url: str, *, clock: Clock, logger: Logger) -> httpx.Response:
    """Requests /readyz from the daemon in this process until there is an answer, and returns it.

    A late answer is not an error: the machine was suspended, or is busy. Raises UnreachableError if nobody listens any
    more.
    """
    while True:
        try:
            return await client.get(f"{url}/readyz", timeout=ASK_S)
        except httpx.ConnectError as error:
            raise UnreachableError(
                f"the daemon does not answer itself: {error}", where=url, fix="see the lines above; start it again"
            ) from error
        except httpx.TransportError as error:
            logger.warning(
                "daemon.slow", url=url, reason=str(error) or type(error).__name__, fix="the check is repeated"
            )
        await clock.sleep(_PAUSE_S)
