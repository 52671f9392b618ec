"""The routes livez, readyz, with their checks, and metrics; and `Gate`, which answers until the API is there."""

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
from rftd.daemon.serve.patience import Troubles
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.health import CHECK_TIMEOUT_S, Finding, Health, Note, Verdict, finding_reason
from rftd.ops.metrics import CONTENT_TYPE, OPEN_CONTENT_TYPE
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.wal import HasWal

_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_VERDICT: dict[int | str, dict[str, Any]] = answers(
    Verdict, text="All is well: `ok`, or every check if `?verbose` is given.", besides=_TEXT
)
_VERDICT[503] = {**_VERDICT[200], "description": "At least one check failed; the answer names it."}

Verbose = Annotated[str | None, Query(max_length=10, description="Every check as JSON, unless it is `0` or `false`.")]


def router(services: Services) -> APIRouter:
    """The routes that machines ask."""
    routes = APIRouter(tags=["probes"])

    @routes.get("/livez", responses=_VERDICT)
    async def livez(request: Request, verbose: Verbose = None) -> Response:
        """The verdict on the process: 200 if it should go on as it is. Reasons are for askers with a token."""
        return verdict_response(await services.health.live(), request, reasons=_is_known(request))

    @routes.get("/readyz", responses=_VERDICT)
    async def readyz(request: Request, verbose: Verbose = None) -> Response:
        """The verdict on its parts: 200 if requests can be served. Reasons are for askers with a token."""
        return verdict_response(await services.health.ready(), request, reasons=_is_known(request))

    @routes.get("/metrics", responses={200: {"description": "Prometheus text.", "content": _TEXT}})
    async def metrics(request: Request) -> Response:
        """Every metric; as OpenMetrics, with the traces of some rollouts, if that is asked for and there are any."""
        asker_of(request, AccessRole.READ)
        wanted = "application/openmetrics-text" in request.headers.get("accept", "")
        open_metrics = wanted and services.scrape.names_traces
        text = await services.scrape.text(open_metrics=open_metrics)
        return Response(text, media_type=OPEN_CONTENT_TYPE if open_metrics else CONTENT_TYPE)

    return routes


def _is_known(request: Request) -> bool:
    """True if the guard saw a token of role read at least."""
    return request.scope[ASKER] is not None


def verdict_response(verdict: Verdict, request: Request, *, reasons: bool) -> Response:
    """The answer that tells of a verdict: 200 or 503, in text, or as JSON if the request asks `?verbose`.

    Without `reasons`, which name hosts, paths and experiments, it only names the checks that fail.
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
"""The longest that a request is kept while the daemon only starts: most starts take less than a second."""


class Gate:
    """An ASGI application: live, not ready, and 503 with the reason for everything else, until it is opened.

    Without a token only probes are answered, as later. What is no probe is kept for a moment: whoever asks a daemon
    that is about to be ready gets its answer. A request that is meant for the daemon of another folder is refused,
    before its token is looked at and before it acts.
    """

    def __init__(self, *, hold_s: float = HOLD_S, folder: str = "", doorkeeper: Doorkeeper | None = None) -> None:
        self._hold_s = hold_s
        self._doorkeeper = doorkeeper or Doorkeeper(None)
        self._folder = folder
        self._settled = asyncio.Event()
        """Set once it is open, or once it is known that somebody has to bring what is missing."""
        self._app: ASGIApp | None = None
        self._name = "daemon"
        self._error: RftdError = UnreachableError("it is starting", fix="ask again in a second")

    def wait_for(self, name: str, error: RftdError) -> None:
        """Lets /readyz say from now on that `name` is not there because of `error`."""
        self._name = name
        self._error = error
        self._settled.set()

    def open(self, app: ASGIApp) -> None:
        """Lets `app` answer from now on."""
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
        # Live although nothing works: an orchestrator that restarts the daemon would only make it wait anew.
        if request.url.path == "/livez":
            return verdict_response(Verdict(ok=True, checks=()), request, reasons=reasons)
        if request.url.path == "/readyz":
            finding = Finding(name=self._name, ok=False, reason=finding_reason(error))
            return verdict_response(Verdict(ok=False, checks=(finding,)), request, reasons=reasons)
        if not reasons:
            return answer(UnreachableError("the daemon is not ready", fix="ask again in a second"))
        missing = "" if self._name == "daemon" else f"its {self._name} is not there: "
        what = f"the daemon is not ready, {missing}{error.what}"
        return answer(UnreachableError(what, where=error.where, fix=error.fix or "see /readyz?verbose"))


_LOG_TIMEOUT_S: Final = 0.75 * CHECK_TIMEOUT_S
"""The longest wait for the log, within the time-out of the check as a whole, which cannot say why."""


def readiness(
    log: EventLog,
    engine: AsyncEngine,
    applied: Applied,
    guard: DiskGuard | None = None,
    troubles: Troubles | None = None,
) -> Health:
    """The log answers, the tables answer, the projector is not stuck, there is space, and no part fails for ever."""

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
        # A note and no failure: a write-ahead file that grows is for people to see, and no reason to take the daemon
        # out of service.
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
