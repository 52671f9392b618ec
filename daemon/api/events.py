"""Routes: an experiment's events from the log, and its page as a live stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from rftd.daemon.api.event_pages import EventPage, EventPager, decode_cursor
from rftd.daemon.api.live_page import LivePage
from rftd.daemon.api.pages import ExperimentPage
from rftd.daemon.api.parameters import After, Limit, Name
from rftd.daemon.api.problem import BusyError
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import encode, respond
from rftd.streams.folds.spine import Status

STREAMS: Final = 64
"""Clients that follow experiments at once."""
INTERVAL_S: Final = 0.5
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["page", "end"]},
        "data": {
            "type": "string",
            "description": "Of `page` an ExperimentPage, of `end` the state in which the experiment ended.",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [{"$ref": "#/components/schemas/ExperimentPage"}, {"$ref": "#/components/schemas/Status"}]
            },
        },
    },
    "required": ["event", "data"],
}
KEEP_ALIVE_S: Final = 15.0
MAX_WAIT_S: Final = 30.0


def router(services: Services) -> APIRouter:
    """The routes of events."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["events"])
    places = _Places(STREAMS)

    @routes.get("/events", responses=answers(EventPage))
    async def events(
        name: Name,
        type: Annotated[list[str] | None, Query(description="A type, or the beginning of some: `experiment`.")] = None,
        after: Annotated[str | None, Query(description="`next` of an earlier page.")] = None,
        limit: Limit = 100,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Wait for a first event.")] = 0.0,
        full: Annotated[bool, Query(description="Long lists whole.")] = False,
    ) -> Response:
        """Events from the log, merged by time; arrays as their shape."""
        start = decode_cursor(after) if after else {}
        pager = EventPager(services.log, await services.find(name), types=tuple(type or ()), full=full)
        if wait_s <= 0:
            return respond(await pager.page(start, limit=limit))
        with places.one():
            return respond(await pager.follow(start, limit=limit, wait_s=wait_s))

    @routes.get(
        "/stream",
        responses={
            **answers(ExperimentPage),
            200: {
                "description": "Server-sent events: `page` with an ExperimentPage whenever it changed, then `end`.",
                "content": {"text/event-stream": {"itemSchema": _EVENT}},
            },
        },
    )
    async def stream(name: Name, after: After = None) -> Response:
        """The experiment's page whenever it changed, until the experiment has ended."""
        id = await services.find(name, after)
        places.check()
        return StreamingResponse(
            _follow(services, id, places), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    return routes


class _Places:
    """Places for followers; BusyError at once if all are taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def check(self) -> None:
        """Raises BusyError if no place is free."""
        if self._taken >= self._most:
            raise BusyError(f"{self._most} clients follow experiments already", fix="end another `rftd watch`")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Holds one place. Raises as `check`."""
        self.check()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


async def _follow(services: Services, experiment: UUID, places: _Places) -> AsyncIterator[bytes]:
    clock = services.clock
    live, sent, sent_s = LivePage(services, experiment), b"", clock.monotonic_s()
    with places.one():
        while True:
            page = await live.look()
            body = sent if page is None else encode(page)
            if body != sent:
                sent, sent_s = body, clock.monotonic_s()
                yield b"event: page\ndata: " + body + b"\n\n"
            elif clock.monotonic_s() - sent_s > KEEP_ALIVE_S:
                sent_s = clock.monotonic_s()
                yield b": still here\n\n"
            if page is not None and Status(page.experiment.summary.state).ended:
                yield b"event: end\ndata: " + msgspec.json.encode(page.experiment.summary.state) + b"\n\n"
                return
            await clock.sleep(INTERVAL_S)
