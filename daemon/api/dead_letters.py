"""Routes: dead letters, and what is decided about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.body import Decide, Drop, read
from rftd.daemon.api.commands import bounded, command, request_id
from rftd.daemon.api.parameters import After, Key, Limit, Offset
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.dlq.gathering import FORMS, listed, meant
from rftd.daemon.dlq.letter import Dead, DeadLetterList, DeadLetterPage, DeadLetterReceipt
from rftd.daemon.dlq.page import page_of
from rftd.storage.queries.failed_tasks import failed_tasks


def router(services: Services) -> APIRouter:
    """The routes of dead letters."""
    routes = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])

    async def dead(after: str | None = None) -> list[Dead]:
        async with services.read(after) as connection:
            tasks = await failed_tasks(connection)
        return await services.operations.dead_letters(tasks)

    @routes.get("", responses=answers(DeadLetterList))
    async def many(
        experiment: Annotated[str | None, Query(description="Only tasks of this one.")] = None,
        all: Annotated[bool, Query(description="Those that were retried or dropped too.")] = False,
        limit: Limit = 50,
        offset: Offset = 0,
        after: After = None,
    ) -> Response:
        """Records that no reader could use, and tasks of which too few rollouts succeeded; newest first."""
        id = await services.find(experiment, after) if experiment is not None else None
        return respond(listed(await dead(after), everything=all, experiment=id, limit=limit, offset=offset))

    @routes.get("/one", responses=answers(DeadLetterPage))
    async def one(
        id: Annotated[str, Query(min_length=1, max_length=500, description=f"Which: {FORMS}.")], after: After = None
    ) -> Response:
        """One of them with the record or the attempts behind it."""
        return respond(await page_of(services.log, meant(await dead(after), id)))

    @routes.post("/retry", **command(Decide, required=True, receipt=DeadLetterReceipt))
    async def retry(request: Request, key: Key = None) -> Response:
        """Lets one take effect after all; asking twice is asking once."""
        body = await read(request, Decide)
        async with bounded():
            chosen = meant(await dead(), body.id)
            done = await services.operations.retry_dead_letter(
                chosen, by=body.by, reason=body.reason, request_id=request_id(key, services.ids)
            )
        return respond(done, status=202)

    @routes.post("/drop", **command(Drop, required=True, receipt=DeadLetterReceipt))
    async def drop(request: Request, key: Key = None) -> Response:
        """Takes one from the list of what is open, with a reason; asking twice is asking once."""
        body = await read(request, Drop)
        async with bounded():
            chosen = meant(await dead(), body.id)
            done = await services.operations.drop_dead_letter(
                chosen, by=body.by, reason=body.reason, request_id=request_id(key, services.ids)
            )
        return respond(done, status=202)

    return routes
