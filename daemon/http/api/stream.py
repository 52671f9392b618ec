"""The route of an experiment's page as a stream of server-sent events, read again only after new records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from rftd.daemon.http.api.routes import BEARER, REQUEST, Handler, asker_of, parameters_of, with_parameters
from rftd.daemon.http.api.schema import answers
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.experiments import ExperimentPage, page_of, with_moment
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import STREAM, After, Name
from rftd.daemon.http.views.wire import encode
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.cancelling import undisturbed
from rftd.storage.queries.books import Books
from rftd.streams.log.topics import Partition

# Each look may query the tables, and nobody reads faster.
INTERVAL_S: Final = 0.5
# Clients and proxies give up on a silent connection after 30 to 60 s.
KEEP_ALIVE_S: Final = 15.0
COUNTED_PER_S: Final = 5_000
"""Counting books costs a look at each experience: this many once a second, ten times as many every ten seconds."""
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


class EventStream(Response):
    """A response sending events as they come.

    Starlette's own class runs in an anyio task group, where each disconnecting client leaves a cycle of references: an
    exception, its traceback and a frame, and with them the connection and the unfinished page.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until their end, or until the client has gone."""
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send(send))
            leaving = tasks.create_task(_client_gone(receive))
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            leaving.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _client_gone(receive: Receive) -> None:
    """Returns once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def router(services: Services) -> APIRouter:
    """Returns the route of the live stream, documented as server-sent events."""
    routes = APIRouter()
    routes.add_api_route(
        STREAM,
        _stream(services),
        name="stream",
        tags=["events"],
        responses={
            **answers(ExperimentPage),
            200: {
                "description": "Server-sent events: `page` with an ExperimentPage whenever it changed, then `end`.",
                "content": {"text/event-stream": {"itemSchema": _EVENT}},
            },
        },
    )
    return routes


def _stream(services: Services) -> Handler:
    async def page(name: Name, after: After = None) -> None:
        """The experiment's page after every change, until the experiment has ended."""

    async def route(request: Request, name: str, after: str | None = None) -> Response:
        asker_of(request, AccessRole.READ)
        bearer_services = services.for_bearer(request.scope[BEARER])
        id = await bearer_services.find(name, after)
        # Before the stream begins: once headers are sent, a refusal could no longer be a status.
        bearer_services.check_follower()
        bearer_services.operations.looked(name)
        return EventStream(_follow(bearer_services, id))

    route.__doc__ = page.__doc__
    return with_parameters(route, [*parameters_of(page, STREAM), REQUEST])


async def _follow(services: Services, experiment: UUID) -> AsyncGenerator[bytes, None]:
    clock = services.clock
    live = LivePage(services, experiment)
    sent = b""
    sent_s = clock.monotonic_s()
    with services.follower():
        while True:
            # A disconnecting client cancels this at any moment.
            page = await undisturbed(live.look())
            body = sent if page is None else encode(page)
            if body != sent:
                sent = body
                sent_s = clock.monotonic_s()
                yield b"event: page\ndata: " + body + b"\n\n"
            elif clock.monotonic_s() - sent_s > KEEP_ALIVE_S:
                sent_s = clock.monotonic_s()
                yield b": still here\n\n"
            if page is not None and page.experiment.summary.state in ENDED:
                yield b"event: end\ndata: " + msgspec.json.encode(page.experiment.summary.state) + b"\n\n"
                return
            await clock.sleep(INTERVAL_S)


class LivePage:
    """One experiment's page for one following client, with the state of the last look."""

    def __init__(self, services: Services, experiment: UUID) -> None:
        self._services = services
        self._experiment = experiment
        self._last_standing: tuple[Mapping[Partition, int], str | None] | None = None
        self._state = ""
        self._books: Books | None = None
        self._counted_s = 0.0
        self._reused = False

    async def look(self) -> ExperimentPage | None:
        """Returns the page; None without new records since. After a change of state, its books are counted anew."""
        services = self._services
        now_s = self._services.clock.monotonic_s()
        standing = (dict(services.applied.positions), services.waiting(self._experiment))
        books = self._books
        if books is not None and (now_s - self._counted_s) * COUNTED_PER_S >= books.produced:
            books = None
        if standing == self._last_standing and (books is not None or not self._reused):
            return None
        async with services.read() as connection:
            page_now = partial(
                page_of,
                connection,
                self._experiment,
                services.curves,
                standing[1],
                memory=services.memory(self._experiment),
                trackers=await services.trackers(self._experiment),
                budgets=await services.budgets(connection, self._experiment),
            )
            page = await page_now(books=books)
            # The last page of an experiment is the one people keep: its books are counted anew, however recent the
            # others are.
            if books is not None and page.experiment.summary.state != self._state:
                books = None
                page = await page_now()
            page = await with_moment(services, connection, page)
        self._last_standing = standing
        self._state = page.experiment.summary.state
        self._reused = books is not None
        if books is None:
            self._books = page.experiment.books
            self._counted_s = now_s
        return page
