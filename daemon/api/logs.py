"""Route: the log lines of an experiment's workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from rftd.daemon.api.log_lines import LogPage, since, tail
from rftd.daemon.api.parameters import Name
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UsageError
from rftd.storage.queries.experiments import job_dir_of


def router(services: Services) -> APIRouter:
    """The route of logs."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["logs"])

    @routes.get("/logs", responses=answers(LogPage))
    async def logs(
        name: Name,
        n: Annotated[int, Query(ge=1, le=10_000, description="The last so many lines.")] = 100,
        role: Annotated[str | None, Query(description="Only of `explorer` or `trainer`.")] = None,
        after: Annotated[str | None, Query(description="`next` of an earlier page, as JSON.", max_length=8192)] = None,
    ) -> Response:
        """Log lines of all workers, merged by time."""
        id = await services.find(name)
        async with services.read() as connection:
            folder = Path(await job_dir_of(connection, id)) / "log"
        if after is None:
            return respond(await asyncio.to_thread(tail, folder, lines=n, role=role))
        return respond(await asyncio.to_thread(since, folder, _places(after), role=role))

    return routes


def _places(text: str) -> dict[str, int]:
    try:
        places = json_decoder(dict[str, int]).decode(text)
    except (msgspec.DecodeError, RecursionError):
        places = {"": -1}
    if any(place < 0 for place in places.values()):
        raise UsageError("no place in log files", field="after", fix="use `next` of an earlier page, as JSON")
    return places
