"""`Methods`: HEAD is answered as GET without its body, and OPTIONS with the methods of the path."""

from __future__ import annotations

from typing import Final

from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_GET: Final = "GET"


class Methods:
    """The innermost layer around the app: whoever may not ask for a path learns nothing of its methods either."""

    def __init__(self, app: ASGIApp, *, router: Router) -> None:
        self._app = app
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["type"] == "http" else ""
        if method not in ("HEAD", "OPTIONS") or not (allowed := self._allowed(scope)):
            await self._app(scope, receive, send)
        elif method == "OPTIONS":
            headers = [(b"allow", ", ".join(allowed).encode())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        elif _GET in allowed:
            await self._app({**scope, "method": _GET}, receive, _Headless(send))
        else:
            await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> list[str]:
        """The methods of all routes of the path, in order; none if there is no such path."""
        own: set[str] = set()
        for route in self._router.routes:
            matched, _ = route.matches({**scope, "method": _GET})
            if matched is not Match.NONE:
                own |= getattr(route, "methods", None) or set()
        return sorted({*own, "OPTIONS", *({"HEAD"} if _GET in own else ())}) if own else []


class _Headless:
    """Sends the head of an answer; an endless one is ended with it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            await self._send(message)
        elif not self._ended:
            self._ended = True
            await self._send({"type": "http.response.body", "body": b""})
