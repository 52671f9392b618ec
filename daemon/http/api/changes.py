"""The route of changes: the ids of experiments with new records, as server-sent events, for pages open in a browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from rftd.daemon.http.api.live_page import INTERVAL_S
from rftd.daemon.http.api.routes import BEARER, asker_of
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.api.stream import KEEP_ALIVE_S, EventStream
from rftd.daemon.trust.asker import AccessRole

CHANGES: Final = "/v1/stream"
"""Path of the route of changes, an endless stream of server-sent events."""


def router(services: Services) -> APIRouter:
    """Returns the route of changes: `changed` events with a JSON list of ids; null after a connection, for all."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(CHANGES)
    async def changes(request: Request) -> Response:
        """The ids of experiments with new records, at most twice a second: a sign to read again what is shown."""
        asker_of(request, AccessRole.READ)
        bearer_services = services.for_bearer(request.scope[BEARER])
        bearer_services.check_follower()
        return EventStream(_follow(bearer_services))

    return routes


async def _follow(services: Services) -> AsyncGenerator[bytes, None]:
    clock = services.clock
    counts = dict(services.applied.applied_counts)
    sent_s = clock.monotonic_s()
    with services.follower():
        yield _event(None)
        while True:
            await clock.sleep(INTERVAL_S)
            before = counts
            counts = dict(services.applied.applied_counts)
            ids = [str(id) for id, count in counts.items() if id is not None and before.get(id) != count]
            if ids:
                sent_s = clock.monotonic_s()
                yield _event(ids)
            elif clock.monotonic_s() - sent_s > KEEP_ALIVE_S:
                sent_s = clock.monotonic_s()
                yield b": still here\n\n"


def _event(ids: list[str] | None) -> bytes:
    return b"event: changed\ndata: " + msgspec.json.encode(ids) + b"\n\n"
