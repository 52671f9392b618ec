"""The daemon's question to itself: it is called ready once it answers like to anybody, not once it believes to."""

from __future__ import annotations

from typing import Final

import httpx

from rftd.ops.clock import Clock
from rftd.ops.errors import UnreachableError
from rftd.ops.logs import Logger

ASK_S: Final = 10.0
"""The time that one question gets; the next is a new connection."""
_PAUSE_S: Final = 0.2


async def own_readiness(client: httpx.AsyncClient, url: str, *, clock: Clock, logger: Logger) -> httpx.Response:
    """The answer of the daemon at `url`, which is in this process, to /readyz; it is asked until it answers.

    An answer that is late is no error: the machine was suspended, or has much else to do. Raises UnreachableError
    where nobody listens any more.
    """
    while True:
        try:
            return await client.get(f"{url}/readyz", timeout=ASK_S)
        except httpx.ConnectError as error:
            raise UnreachableError(
                f"the daemon does not answer itself: {error}", where=url, fix="see the lines above; start it again"
            ) from error
        except httpx.TransportError as error:
            logger.warning("daemon.slow", url=url, reason=str(error) or type(error).__name__, fix="it is asked again")
        await clock.sleep(_PAUSE_S)
