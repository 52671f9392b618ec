"""`make_app`: the API as one ASGI application, behind `Guard`, which checks host, origin, token and size.

A daemon on a laptop answers whoever reaches its port, a web page in the user's browser too. So a request that names a
foreign origin is refused (a page that posts across sites), and so is one to a host name that is not ours (a name that a
stranger points at 127.0.0.1).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rftd.daemon.api import probes, routes, stream
from rftd.daemon.api.methods import Methods
from rftd.daemon.api.probes import readiness
from rftd.daemon.api.problem import ForbiddenError, RefusedError, TooLargeError, answer, on_error
from rftd.daemon.api.schema import install
from rftd.daemon.api.services import Applied, Services
from rftd.daemon.api.tally import Tally
from rftd.daemon.api.traced import Traced
from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.metrics_scrape import Scrape
from rftd.daemon.operations import Operations
from rftd.daemon.patience import Troubles
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.ops import limits
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import RftdError, UsageError
from rftd.ops.health import Health
from rftd.ops.ids import Ids, SystemIds
from rftd.ops.metrics import Metrics
from rftd.ops.redaction import Secret
from rftd.ops.releases import release_of
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.log import EventLog

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
"""Probes need no token; they tell nothing of an experiment."""


class Guard:
    """The ASGI layer around the app."""

    def __init__(self, app: ASGIApp, *, token: Secret | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            # Checked before the body is read: a stranger must not make the daemon hold four megabytes for each
            # refusal.
            headers = Headers(scope=scope)
            self._check(scope["path"], headers)
            body = await _within_size(headers, receive)
        except RftdError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)

    def _check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._serves(host):
            raise ForbiddenError(
                f"this daemon does not serve the host {host!r}", field="Host", fix="use its IP address"
            )
        origin = headers.get("origin")
        # Compared with the Host header, not with an address of ours: behind a proxy or a tunnel only the two agree.
        if origin is not None and urlsplit(origin).netloc != host:
            raise ForbiddenError(f"a page of {origin} may not use this daemon", field="Origin")
        if self._token is None or path in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        expected = self._token.reveal().encode()
        # In constant time, whatever the token's first wrong character is.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
            raise RefusedError(
                "no valid bearer token", field="Authorization", fix="set RFTD_TOKEN to the daemon's token"
            )

    def _serves(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name in self._hosts:
            return True
        try:
            # Any address passes: DNS rebinding, the attack that this stops, needs a name.
            ip_address(name)
        except ValueError:
            return False
        return True


async def _within_size(headers: Headers, receive: Receive) -> bytes:
    """The whole body. Raises TooLargeError as soon as it is known to be too large."""
    # A declared size saves reading; it may be missing (chunked) or a lie, so what arrives is counted too.
    declared = headers.get("content-length", "0")
    size = int(declared) if declared.isdigit() else 0
    body = bytearray()
    while size <= limits.REQUEST_SIZE_BYTES:
        message = await receive()
        if message["type"] != "http.request":  # what came so far may be valid, and is not what was meant
            raise UsageError("the body ended before its end", field="body", fix="send the whole request again")
        body += message.get("body", b"")
        size = max(size, len(body))
        if not message.get("more_body", False):
            break
    if size > limits.REQUEST_SIZE_BYTES:
        raise TooLargeError(
            f"a body of {size} bytes or more is over the limit of {limits.REQUEST_SIZE_BYTES}",
            fix="an experiment file names datasets by path; it does not hold them",
        )
    return bytes(body)


class _Replay:
    """Hands the body that was read to the app, then whatever comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body = self._body
        self._body = None
        return {"type": "http.request", "body": body, "more_body": False}


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
    tracer: Tracer | None = None,
    prices: Mapping[str, float] = MappingProxyType({}),
    daemon_log: Path | None = None,
) -> FastAPI:
    """The API of a daemon.

    With a token every path but the probes wants it as a bearer. `hosts` are the names, beside `localhost` and IP
    addresses, under which the daemon is reached; `prices` are dollars for an hour of an accelerator, by its kind.
    """
    clock = clock or SystemClock()
    feed = feed or MetricsFeed(Metrics(version=release_of("rftd")))
    services = Services(
        operations=operations,
        engine=engine,
        log=log,
        applied=projector,
        health=health or readiness(log, engine, projector, guard, troubles),
        scrape=Scrape(feed, log=log, engine=engine, applied=projector, clock=clock, tracer=tracer, prices=prices),
        clock=clock,
        ids=ids or SystemIds(clock),
        version=release_of("rftd"),
        daemon_log=daemon_log,
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
    app.add_middleware(Methods, served=app)
    if tracer is not None:
        app.add_middleware(Traced, tracer=tracer)
    app.add_middleware(Guard, token=Secret(token) if token else None, hosts=hosts)
    # Added last, so that it is around the guard: what that refuses is counted, too.
    app.add_middleware(Tally, requests=feed.metrics.http_requests)
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
