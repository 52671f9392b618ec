"""The route of an experiment's page as a stream of server-sent events: the page once, then what is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from rftd.daemon.http.api.departure import client_gone
from rftd.daemon.http.api.live_page import INTERVAL_S, Broadcast, LivePages
from rftd.daemon.http.api.routes import BEARER, REQUEST, Handler, asker_of, parameters_of, with_parameters
from rftd.daemon.http.api.schema import answers
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import STREAM, After, Name
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.cancelling import undisturbed

# Clients and proxies give up on a silent connection after 30 to 60 s.
KEEP_ALIVE_S: Final = 15.0
"""Seconds of silence after which a comment is sent to a listener."""
LAST_EVENT_ID: Final = "Last-Event-ID"
"""Header of a listener that comes back: the id of the last event received."""
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["page", "change", "end"]},
        "id": {"type": "string", "description": "The state of the page, for Last-Event-ID after an interruption."},
        "data": {
            "type": "string",
            "description": (
                "Of `page` an ExperimentPage. Of `change` an object: `set` has new parts by name, those of the field "
                "`experiment` as `experiment.FIELD`; `ends` has lists with a new end: `drop` elements at the beginning "
                "go, the first `from` of the others stay, and `items` follow. Of `end` the state in which the "
                "experiment ended."
            ),
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/ExperimentPage"},
                    {"type": "object", "required": ["set", "ends"]},
                    {"$ref": "#/components/schemas/Status"},
                ]
            },
        },
    },
    "required": ["event", "data"],
}
"""JSON Schema of one server-sent event."""


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
            leaving = tasks.create_task(client_gone(receive))
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            leaving.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
                "description": "Server-sent events: `page` once, `change` after each change, then `end`.",
                "content": {"text/event-stream": {"itemSchema": _EVENT}},
            },
        },
    )
    return routes


def _stream(services: Services) -> Handler:
    pages = LivePages()

    async def page(name: Name, after: After = None) -> None:
        """The experiment's page, then its new parts after every change, until the experiment has ended.

        A listener that comes back with `Last-Event-ID`, even to a restarted daemon, gets only what is new.
        """

    async def route(request: Request, name: str, after: str | None = None) -> Response:
        asker_of(request, AccessRole.READ)
        bearer_services = services.for_bearer(request.scope[BEARER])
        id = await bearer_services.find(name, after)
        # Before the stream begins: once headers are sent, a refusal could no longer be a status.
        bearer_services.check_follower()
        bearer_services.operations.looked(name)
        # The listener's own rights end at the door: all listeners of a run read the same page.
        broadcast = pages.of(services, id)
        return EventStream(_follow(bearer_services, broadcast, request.headers.get(LAST_EVENT_ID, "")))

    route.__doc__ = page.__doc__
    return with_parameters(route, [*parameters_of(page, STREAM), REQUEST])


async def _follow(services: Services, broadcast: Broadcast, last_event_id: str) -> AsyncGenerator[bytes, None]:
    clock = services.clock
    number = 0
    id = last_event_id
    sent_s = clock.monotonic_s()
    with services.follower():
        while True:
            # A disconnecting client cancels this at any moment.
            version = await undisturbed(broadcast.newest())
            event = version.event_after(number, id)
            number = version.number
            id = version.id
            if event is not None:
                sent_s = clock.monotonic_s()
                yield event
            elif clock.monotonic_s() - sent_s > KEEP_ALIVE_S:
                sent_s = clock.monotonic_s()
                yield b": still here\n\n"
            if version.state in ENDED:
                yield b"event: end\ndata: " + msgspec.json.encode(version.state) + b"\n\n"
                return
            await clock.sleep(INTERVAL_S)
