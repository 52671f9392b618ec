"""`make_app`: the API as one ASGI application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.exceptions import HTTPException

from rftd.daemon.api import probes, routes, stream
from rftd.daemon.api.guard import Guard
from rftd.daemon.api.problem import answer, on_error
from rftd.daemon.api.readiness import readiness
from rftd.daemon.api.schema import install
from rftd.daemon.api.services import Applied, Services
from rftd.daemon.installed import installed_version
from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.operations import Operations
from rftd.daemon.patience import Troubles
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import RftdError, UsageError
from rftd.ops.health import Health
from rftd.ops.ids import Ids, SystemIds
from rftd.ops.metrics import Metrics
from rftd.ops.redaction import Secret
from rftd.streams.log import EventLog


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
    token: str | None = None,
    hosts: frozenset[str] = frozenset(),
    guard: DiskGuard | None = None,
    troubles: Troubles | None = None,
) -> FastAPI:
    """The API of a daemon.

    With a token every path but the probes wants it as a bearer. `hosts` are the names, beside `localhost` and IP
    addresses, under which the daemon is reached.
    """
    clock = clock or SystemClock()
    services = Services(
        operations=operations,
        engine=engine,
        log=log,
        applied=projector,
        health=health or readiness(log, engine, projector, guard, troubles),
        feed=feed or MetricsFeed(Metrics(version=installed_version())),
        clock=clock,
        ids=ids or SystemIds(clock),
        version=installed_version(),
    )
    app = FastAPI(
        title="rftd",
        version=services.version,
        description="Reinforcement fine-tuning of language models, with an event log as the single source of truth.",
        docs_url=None,
        redoc_url=None,
        # A missing slash is a wrong path, not a redirect that drops the body.
        redirect_slashes=False,
    )
    app.add_middleware(Guard, token=Secret(token) if token else None, hosts=hosts)
    # Starlette picks the handler of the nearest class, and treats the one of `Exception` apart: it runs outside of
    # all middleware and raises the error again for the server's log.
    for kind in (RftdError, HTTPException, DBAPIError, ExceptionGroup, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    declared = routes.declared_routes()
    app.include_router(routes.router(services, declared))
    for part in (stream, probes):
        app.include_router(part.router(services))
    install(app, declared)
    return app


async def _on_invalid(_request: Request, error: Exception) -> Response:
    """A parameter that is not what the document says."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    place = [str(part) for part in first.get("loc", ())]
    field = ".".join(place[1:]) or "request"
    given = repr(first.get("input"))[:80]
    return answer(UsageError(f"{given}: {first.get('msg', 'is wrong')}", field=field, fix="see GET /openapi.json"))
