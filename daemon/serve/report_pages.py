"""Routes of reports: a run, a group of rollouts, or several runs, as one HTML file to share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.http.api.pages import RunName
from rftd.daemon.http.api.routes import BEARER, asker_of
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.client.answer import Answer, Parameter
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.connection import DaemonConnection
from rftd.daemon.http.client.report import group_report_of, report_of, runs_report_of
from rftd.daemon.http.views.comparison import MOST_COMPARED
from rftd.daemon.http.views.route import NAME_CHARACTERS, ReadRoute
from rftd.daemon.http.views.wire import encode
from rftd.daemon.trust.asker import AccessRole

R = TypeVar("R", bound=msgspec.Struct)
"""Struct answered by a read."""
_UNSAFE: Final = re.compile(r"[^\w.-]+", re.ASCII)
"""Characters left out of the name of a file."""
GroupId = Annotated[str | None, Query(max_length=100, pattern=r"^[0-9a-fA-F-]*$")]
"""Id of a group in a request."""
Names = Annotated[list[str], Query(max_length=MOST_COMPARED)]
"""Names of several runs in a request."""


class OwnConnection:
    """Reads of the daemon by the daemon itself, for a report made in a thread: with the rights of the asker."""

    def __init__(self, services: Services, url: str) -> None:
        """Remembers the running loop, where the reads are carried out; `url` is the address shown in the report."""
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.url = url

    async def ask(self, read: ReadRoute[R], *, wait_s: float = 0.0, **parameters: Parameter) -> Answer[R]:
        """See `DaemonConnection.ask`; blocks the calling thread, and so needs no loop there."""
        assert not wait_s
        self._services.asker.check_role(read.role)
        set_parameters = {name: parameter for name, parameter in parameters.items() if parameter is not None}
        reading = cast(Any, read.work(self._services, **set_parameters))
        view = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        return Answer(encode(view), read.answer, status=200, url=self.url)


class OwnClient(Client):
    """The blocking client over an `OwnConnection`."""

    def __init__(self, connection: OwnConnection) -> None:
        self.connection = cast(DaemonConnection, connection)


def router(services: Services) -> APIRouter:
    """Returns the routes of reports; the API's document does not have them: they are for people."""
    routes = APIRouter(include_in_schema=False)
    # A report reads and draws for a second: one at a time, for all askers.
    making = asyncio.Lock()

    async def made(request: Request, name: str, report: Callable[[Client], str]) -> Response:
        asker_of(request, AccessRole.READ)
        async with making:
            connection = OwnConnection(services.for_bearer(request.scope[BEARER]), str(request.base_url).rstrip("/"))
            text = await asyncio.to_thread(report, OwnClient(connection))
        plain = _UNSAFE.sub("-", name)[:80] or "report"
        disposition = f"attachment; filename=\"{plain}.html\"; filename*=UTF-8''{quote(name[:200], safe='')}.html"
        headers = {"Content-Disposition": disposition, "Cache-Control": "private, no-store"}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    clock = services.clock
    version = services.version

    @routes.get("/runs/{name}/report")
    async def of_run(request: Request, name: RunName, group: GroupId = None) -> Response:
        """One run, or one group of its rollouts, as a file without scripts and requests."""
        if group:
            return await made(
                request,
                f"group-{group[:8]}",
                lambda own: group_report_of(own, name, group, clock=clock, version=version),
            )
        return await made(request, name, lambda own: report_of(own, name, clock=clock, version=version))

    @routes.get("/report")
    async def of_runs(
        request: Request, name: Annotated[list[str], Query(min_length=1, max_length=MOST_COMPARED)]
    ) -> Response:
        """Several runs side by side as a file without scripts and requests."""
        names = [text[:NAME_CHARACTERS] for text in name]
        return await made(request, "comparison", lambda own: runs_report_of(own, names, clock=clock, version=version))

    return routes
