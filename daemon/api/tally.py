"""`Tally`: counts requests by the path of their route and the status of their answer."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_ROUTE: Final = "none"
"""The label of requests that no route took, or that were refused before: their paths are what strangers write."""


class Tally:
    """A layer around the app and its guard."""

    def __init__(self, app: ASGIApp, *, requests: Counter) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # of a request whose handler raised before it answered

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # The router writes the route that it chose into the scope, whose `path` holds names of experiments.
            path = getattr(scope.get("route"), "path", NO_ROUTE)
            self._requests.labels(path, str(status)).inc()
