"""`make_app`: the API as one ASGI application, counted and traced, behind `Guard`, the check of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import Counter
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rftd.daemon.http.api import (
    agents,
    changes,
    login,
    pages,
    probes,
    record_pages,
    routes,
    run_pages,
    stream,
    studio_pages,
    system_pages,
)
from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.file_response import BINARY
from rftd.daemon.http.api.guard import Guard
from rftd.daemon.http.api.methods import Methods
from rftd.daemon.http.api.probes import readiness
from rftd.daemon.http.api.problem import answer, on_error
from rftd.daemon.http.api.schema import install
from rftd.daemon.http.api.services import Applied, NoAbilities, Services, no_alerts
from rftd.daemon.http.views.alerts import AlertList
from rftd.daemon.http.views.route import MachineAbilities
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.run.operations import Operations
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.recomputing import Recomputations
from rftd.daemon.serve.reconnecting import Troubles
from rftd.daemon.text.texts import Texts
from rftd.daemon.text.trials import Trials
from rftd.daemon.text.word_files import WordFiles
from rftd.daemon.text.word_index import WordIndex
from rftd.daemon.text.word_tables import WordTables
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import RftdError, UsageError
from rftd.ops.health import Health
from rftd.ops.ids import Ids, SystemIds
from rftd.ops.metrics import Metrics
from rftd.ops.releases import release_of
from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import parsed
from rftd.ops.tracing.tracer import SpanKind, Tracer
from rftd.streams.log.log import EventLog
from rftd.workers.hosts.environment import WorkerEnvironment

PROBES: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths polled by machines every few seconds: no trace begins with them."""

COMMANDS: Final = "/v1/experiments"
"""Prefix of every path with requests changing an experiment: all such requests except GET are traced."""

GZIP_BYTES: Final = 2048
"""Size of the smallest answer compressed for clients accepting gzip."""

GZIP_LEVEL: Final = 4
"""Level of compression: a third of the time of the usual 9, for a few percent more bytes."""

NO_ROUTE: Final = "none"
"""Label of requests without a route, or refused earlier: their paths are arbitrary text from clients."""


GZIP: Final[dict[str, Any]] = {
    "minimum_size": GZIP_BYTES,
    "compresslevel": GZIP_LEVEL,
    # Weights hardly get smaller, and a range is one of the bytes of the file.
    "exclude_content_types": (*DEFAULT_EXCLUDED_CONTENT_TYPES, BINARY),
}
"""Arguments of the middleware that compresses answers."""


class NotedAnswer:
    """A `send` for one request that records the status of the answer."""

    def __init__(self, send: Send) -> None:
        """`send` sends the answer to the client."""
        self._send = send
        self.status = 500
        """HTTP status; 500 for a request whose handler raised before answering."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        await self._send(message)


class Traced:
    """Middleware creating spans, inside the guard: unauthenticated clients cannot cause spans."""

    def __init__(self, app: ASGIApp, *, tracer: Tracer) -> None:
        """`app` answers the requests, `tracer` makes the spans."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = parsed(Headers(scope=scope).get("traceparent"))
        began_ns = self._tracer.now_ns()
        method = names.http_method(scope["method"])
        looked_at = caller is not None or scope["path"] not in PROBES
        # A command is rare, and its event is in its trace: a pause must not be missed.
        always = caller is None and method != "GET" and scope["path"].startswith(COMMANDS)
        span = self._tracer.begin(method, SpanKind.SERVER, parent=caller, always=always) if looked_at else None
        answer = NotedAnswer(send)
        try:
            if span is None:
                await self._app(scope, receive, answer)
            else:
                with span.active():
                    await self._app(scope, receive, answer)
        finally:
            if span is None and answer.status >= 500:
                # An error is traced regardless of sampling; spans below it are not.
                span = self._tracer.always(method, SpanKind.SERVER, parent=caller)
                span.start_ns = began_ns
            if span is not None:
                # The router writes the route into the scope; the scope's `path` contains names of experiments.
                route = getattr(scope.get("route"), "path", None)
                span.name = method if route is None else f"{method} {route}"
                span.attributes[names.HTTP_METHOD] = method
                span.attributes[names.HTTP_STATUS] = answer.status
                if route is not None:
                    span.attributes[names.HTTP_ROUTE] = route
                if answer.status >= 500:
                    span.fail(str(answer.status))
                span.end()


class Tally:
    """Middleware counting requests, around the app and its guard."""

    def __init__(self, app: ASGIApp, *, requests: Counter) -> None:
        """`app` answers the requests, `requests` counts them."""
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = NotedAnswer(send)
        try:
            await self._app(scope, receive, answer)
        finally:
            # The router writes the route into the scope; the scope's `path` contains names of experiments.
            path = getattr(scope.get("route"), "path", NO_ROUTE)
            self._requests.labels(path, str(answer.status)).inc()


def make_app(
    *,
    operations: Operations,
    log: EventLog,
    engine: AsyncEngine,
    projector: Applied,
    feed: MetricsFeed | None = None,
    health: Health | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    doorkeeper: Doorkeeper | None = None,
    guard: DiskGuard | None = None,
    troubles: Troubles | None = None,
    tracer: Tracer | None = None,
    prices: Mapping[str, float] = MappingProxyType({}),
    daemon_log: Path | None = None,
    words: Path | None = None,
    environment: WorkerEnvironment | None = None,
    recomputations: Recomputations | None = None,
    alerts: Callable[[], AlertList] = no_alerts,
    abilities: MachineAbilities | None = None,
    further: Sequence[Callable[[Services], APIRouter]] = (),
) -> FastAPI:
    """Returns the API of a daemon as one application.

    Without a `doorkeeper` everybody is the owner, as with `--unsafe-allow-unauthenticated`; `prices` are dollars per
    hour of an accelerator, by kind; `words` is the folder of word indices beside SQLite, None: in memory. `environment`
    builds the variables of tried rollouts; `alerts` lists alerts, `abilities` checks engines and sandboxes; `further`
    make routers added after those of the API.
    """
    clock = clock or SystemClock()
    ids = ids or SystemIds(clock)
    doorkeeper = doorkeeper or Doorkeeper(None)
    feed = feed or MetricsFeed(Metrics(version=release_of("rftd")))
    services = Services(
        operations=operations,
        engine=engine,
        log=log,
        applied=projector,
        health=health or readiness(log, engine, projector, guard, troubles),
        scrape=Scrape(feed, log=log, engine=engine, applied=projector, clock=clock, tracer=tracer, prices=prices),
        clock=clock,
        ids=ids,
        version=release_of("rftd"),
        daemon_log=daemon_log,
        texts=Texts(clock),
        words=WordIndex(WordTables(engine) if engine.dialect.name == "postgresql" else WordFiles(words), clock),
        trials=Trials(ids, environment),
        recomputations=recomputations,
        alerts=alerts,
        abilities=abilities or NoAbilities(),
        keyring=doorkeeper.keyring,
    )
    doorkeeper.refused = feed.metrics.http_refused
    app = FastAPI(
        title="rftd",
        version=services.version,
        description="Reinforcement fine-tuning of language models, with an event log as the single source of truth.",
        docs_url=None,
        redoc_url=None,
        # A missing slash is a wrong path, not a redirect losing the body.
        redirect_slashes=False,
    )
    _add_middleware(app, doorkeeper, feed, tracer)
    _add_error_handlers(app)
    _add_routes(app, services, further)
    return app


def _add_middleware(app: FastAPI, doorkeeper: Doorkeeper, feed: MetricsFeed, tracer: Tracer | None) -> None:
    """Adds compression, methods, spans, the guard and the count of requests, from the inside out."""
    # The innermost, so that spans and counts are those of the answer; event streams are left as they are.
    app.add_middleware(GZipMiddleware, **GZIP)
    app.add_middleware(Methods, served=app)
    if tracer is not None:
        app.add_middleware(Traced, tracer=tracer)
    app.add_middleware(Guard, doorkeeper=doorkeeper, uses=doorkeeper.uses)
    # Added last, and so around the guard: its refusals are counted, too.
    app.add_middleware(Tally, requests=feed.metrics.http_requests)


def _add_error_handlers(app: FastAPI) -> None:
    """Registers the answers to errors and to invalid parameters."""
    # Starlette picks the handler of the nearest class, and treats the one of `Exception` specially: outside of all
    # middleware, raising the error again for the server's log.
    for kind in (RftdError, HTTPException, DBAPIError, PoolTimeoutError, ExceptionGroup, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)


def _add_routes(app: FastAPI, services: Services, further: Sequence[Callable[[Services], APIRouter]]) -> None:
    """Adds every route to `app`: reads, commands, streams, pages, probes, texts for agents, the login and the `further`
    ones.
    """
    declared = routes.declared_routes()
    app.include_router(routes.router(services, declared))
    for module in (stream, changes, pages, run_pages, record_pages, system_pages, studio_pages, probes):
        app.include_router(module.router(services))
    app.include_router(agents.router(declared, services.version))
    app.include_router(login.router(services.keyring))
    for make_router in further:
        app.include_router(make_router(services))
    install(app, declared)


async def _on_invalid_parameter(_request: Request, error: Exception) -> Response:
    """Answers a parameter that does not match the API's document."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    location = [str(key) for key in first.get("loc", ())]
    field = ".".join(location[1:]) or "request"
    shown_input = repr(first.get("input"))[:80]
    return answer(
        UsageError(f"{shown_input}: {first.get('msg', 'is wrong')}", field=field, fix="see GET /openapi.json")
    )
