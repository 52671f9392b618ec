"""The routes livez and readyz with their checks, and metrics; and `Gate`, answering until the API is ready."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.guard import with_headers
from rftd.daemon.http.api.problem import OtherFolderError, answer
from rftd.daemon.http.api.routes import ASKER, asker_of, respond
from rftd.daemon.http.api.schema import answers
from rftd.daemon.http.api.services import Applied, Services
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.serve.data_folder import FOLDER_HEADER
from rftd.daemon.serve.reconnecting import Troubles
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.health import CHECK_TIMEOUT_S, Finding, Health, Note, Verdict, finding_reason
from rftd.ops.metrics import CONTENT_TYPE, OPEN_CONTENT_TYPE
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.wal import HasWal

_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
"""Content of plain text in the OpenAPI document."""
_VERDICT: dict[int | str, dict[str, Any]] = answers(
    Verdict, text="The daemon is healthy: `ok`, or every check with `?verbose`.", besides=_TEXT
)
"""Answers of the probes in the OpenAPI document."""
_VERDICT[503] = {**_VERDICT[200], "description": "At least one check failed; the answer names it."}

Verbose = Annotated[str | None, Query(max_length=10, description="Every check as JSON, unless it is `0` or `false`.")]
"""Query parameter: whether to list every check as JSON."""


def router(services: Services) -> APIRouter:
    """Returns the routes polled by machines: livez and readyz with their checks, and metrics."""
    routes = APIRouter(tags=["probes"])

    @routes.get("/livez", responses=_VERDICT)
    async def livez(request: Request, verbose: Verbose = None) -> Response:
        """The verdict on the process: 200 unless it should be restarted. Reasons are shown to clients with a token."""
        return verdict_response(await services.health.live(), request, reasons=_is_known(request))

    @routes.get("/readyz", responses=_VERDICT)
    async def readyz(request: Request, verbose: Verbose = None) -> Response:
        """The verdict on the daemon's parts: 200 if requests can be served. Clients with a token see reasons."""
        return verdict_response(await services.health.ready(), request, reasons=_is_known(request))

    @routes.get("/metrics", responses={200: {"description": "Prometheus text.", "content": _TEXT}})
    async def metrics(request: Request) -> Response:
        """Every metric as Prometheus text, or as OpenMetrics with the traces of some rollouts, if requested."""
        asker_of(request, AccessRole.READ)
        is_open_requested = "application/openmetrics-text" in request.headers.get("accept", "")
        open_metrics = is_open_requested and services.scrape.names_traces
        text = await services.scrape.text(open_metrics=open_metrics)
        return Response(text, media_type=OPEN_CONTENT_TYPE if open_metrics else CONTENT_TYPE)

    return routes


def _is_known(request: Request) -> bool:
    """True if the guard saw a token of at least role read."""
    return request.scope[ASKER] is not None


def verdict_response(verdict: Verdict, request: Request, *, reasons: bool) -> Response:
    """Returns the response for a verdict: 200 or 503, as text, or as JSON with `?verbose`.

    Without `reasons` (names of hosts, paths and experiments), only the names of failing checks are included.
    """
    status = 200 if verdict.ok else 503
    if not reasons:
        checks = tuple(Finding(name=check.name, ok=check.ok, reason="") for check in verdict.checks)
        verdict = Verdict(ok=verdict.ok, checks=checks)
    verbose = request.query_params.get("verbose", "0") not in ("0", "false")
    if verbose:
        return respond(verdict, status=status)
    failing = [finding.name for finding in verdict.checks if not finding.ok and not finding.reason]
    lines = failing + [f"{finding.name}: {finding.reason}" for finding in verdict.checks if finding.reason]
    return Response("\n".join(["ok"] * verdict.ok + lines), status_code=status, media_type="text/plain")


HOLD_S: Final = 5.0
"""Longest time in seconds a request is held while the daemon starts: most starts take less than a second."""


class Gate:
    """An ASGI application for the time until the API opens: live, not ready, and 503 with the reason for all other
    paths.

    Without a token only probes are answered, as later. Other requests are held for a moment: a client of a daemon about
    to be ready gets its answer. A request meant for the daemon of another folder is refused, before its token is
    checked and before it acts.
    """

    def __init__(self, *, hold_s: float = HOLD_S, folder: str = "", doorkeeper: Doorkeeper | None = None) -> None:
        self._hold_s = hold_s
        self._doorkeeper = doorkeeper or Doorkeeper(None)
        self._folder = folder
        self._settled = asyncio.Event()
        """Set once the gate is open, or once a missing part is known to need a person's action."""
        self._app: ASGIApp | None = None
        self._name = "daemon"
        self._error: RftdError = UnreachableError("it is starting", fix="ask again in a second")

    def wait_for(self, name: str, error: RftdError) -> None:
        """Makes /readyz report from now on that `name` is missing because of `error`."""
        self._name = name
        self._error = error
        self._settled.set()

    def open(self, app: ASGIApp) -> None:
        """Passes all requests to `app` from now on, including the ones held during the start."""
        self._app = app
        self._settled.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and Headers(scope=scope).get(FOLDER_HEADER, self._folder) != self._folder:
            await answer(OtherFolderError("this is the daemon of another data folder"))(scope, receive, send)
            return
        if self._app is None and scope["type"] == "http":
            send = with_headers(send)
            try:
                bearer = self._doorkeeper.bearer_of(scope)
            except RftdError as error:
                await answer(error)(scope, receive, send)
                return
            if scope["path"] not in ("/livez", "/readyz"):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hold_s):
                        await self._settled.wait()
            if self._app is None:
                await self._answer(Request(scope), reasons=bearer is not None)(scope, receive, send)
                return
        if self._app is not None:
            await self._app(scope, receive, send)

    def _answer(self, request: Request, *, reasons: bool) -> Response:
        error = self._error
        # Live although nothing works: an orchestrator's restart would only make the daemon wait anew.
        if request.url.path == "/livez":
            return verdict_response(Verdict(ok=True, checks=()), request, reasons=reasons)
        if request.url.path == "/readyz":
            finding = Finding(name=self._name, ok=False, reason=finding_reason(error))
            return verdict_response(Verdict(ok=False, checks=(finding,)), request, reasons=reasons)
        if not reasons:
            return answer(UnreachableError("the daemon is not ready", fix="ask again in a second"))
        missing = "" if self._name == "daemon" else f"its {self._name} is not there: "
        reason = f"the daemon is not ready, {missing}{error.what}"
        return answer(UnreachableError(reason, where=error.where, fix=error.fix or "see /readyz?verbose"))


_LOG_TIMEOUT_S: Final = 0.75 * CHECK_TIMEOUT_S
"""Longest wait in seconds for the log, shorter than the time-out of the whole check, which cannot give the reason."""


def readiness(
    log: EventLog,
    engine: AsyncEngine,
    applied: Applied,
    guard: DiskGuard | None = None,
    troubles: Troubles | None = None,
) -> Health:
    """Returns the checks of log, tables, projector, disk space, and permanently failing parts."""

    async def ask_log() -> str | None:
        try:
            async with asyncio.timeout(_LOG_TIMEOUT_S):
                await log.heads()
        except TimeoutError:
            fix = "see whether its brokers run and enough replicas are in sync, and the network to them"
            return finding_reason(
                log.failure or UnreachableError(f"the log does not answer within {_LOG_TIMEOUT_S:g} s", fix=fix)
            )
        return None if (failure := log.failure) is None else finding_reason(failure)

    async def ask_wal() -> str | None:
        blocked = log.blocked if isinstance(log, HasWal) else None
        # A note, not a failure: a growing write-ahead file needs a person's attention, but is no reason to take the
        # daemon out of service.
        return None if blocked is None else Note(blocked.told)

    async def ask_tables() -> str | None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1 FROM positions LIMIT 1"))
        return None

    async def ask_projector() -> str | None:
        return applied.last_error

    async def ask_guard() -> str | None:
        short = guard.shortage if guard is not None else None
        return None if short is None else f"{short.cause}: {short.reason}; fix: {short.fix}"

    async def ask_parts() -> str | None:
        return troubles.said() if troubles is not None else None

    health = Health()
    health.add("log", ask_log)
    health.add("wal", ask_wal)
    health.add("state", ask_tables)
    health.add("projector", ask_projector)
    health.add("disk", ask_guard)
    health.add("parts", ask_parts)
    return health
