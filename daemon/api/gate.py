"""`Gate`: what answers while the daemon waits for its log or its database, and hands over to the API afterwards."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rftd.daemon.api.probes import verdict_response
from rftd.daemon.api.problem import answer
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.health import Finding, Verdict, said


class Gate:
    """An ASGI application: live, not ready, and 503 with the reason for everything else, until it is opened."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._name = "daemon"
        self._error: RftdError = UnreachableError("the daemon is starting", fix="ask again in a second")

    def wait_for(self, name: str, error: RftdError) -> None:
        """What /readyz says from now on: `name` is not there because of `error`."""
        self._name = name
        self._error = error

    def open(self, app: ASGIApp) -> None:
        """From now on `app` answers."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(Request(scope))(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        error = self._error
        if request.url.path == "/livez":
            return verdict_response(Verdict(ok=True, checks=()), request)
        if request.url.path == "/readyz":
            finding = Finding(name=self._name, ok=False, reason=said(error))
            return verdict_response(Verdict(ok=False, checks=(finding,)), request)
        return answer(
            UnreachableError(
                f"the daemon is not ready, its {self._name} is not there: {error.what}",
                where=error.where,
                fix=error.fix or "see /readyz?verbose",
            )
        )
