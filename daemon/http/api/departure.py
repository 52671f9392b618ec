"""`client_gone`: the wait for the end of a client's connection, beside a long answer."""

from __future__ import annotations

from starlette.types import Receive


async def client_gone(receive: Receive) -> None:
    """Returns once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
