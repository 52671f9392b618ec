"""Routes: dead letters, and what is decided about them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.body import Decide, read
from rftd.daemon.api.experiments import After, Limit, Offset, bounded
from rftd.daemon.api.schema import answers, takes
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.dlq.gathering import FORMS, listed, meant
from rftd.daemon.dlq.letter import Dead, DeadLetterList, DeadLetterPage, DeadLetterReceipt
from rftd.daemon.dlq.page import page_of
from rftd.ops.errors import UsageError
from rftd.storage.queries.failed_tasks import failed_tasks

MOST_CHARACTERS: Final = 1000
"""Of a reason, and of a name."""


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

    @routes.post(
        "/retry",
        status_code=202,
        responses=answers(DeadLetterReceipt, status=202),
        openapi_extra=takes(Decide, required=True),
    )
    async def retry(request: Request) -> Response:
        """Lets one take effect after all; asking twice is asking once."""
        body = _checked(await read(request, Decide))
        async with bounded():
            chosen = meant(await dead(), body.id)
            done = await services.operations.retry_dead_letter(chosen, by=body.by, reason=body.reason)
        return respond(done, status=202)

    @routes.post(
        "/drop",
        status_code=202,
        responses=answers(DeadLetterReceipt, status=202),
        openapi_extra=takes(Decide, required=True),
    )
    async def drop(request: Request) -> Response:
        """Takes one from the list of what is open, with a reason; asking twice is asking once."""
        body = _checked(await read(request, Decide))
        if not body.reason.strip():
            raise UsageError("no reason is given", field="reason", fix="say why it needs no more attention")
        async with bounded():
            chosen = meant(await dead(), body.id)
            done = await services.operations.drop_dead_letter(chosen, by=body.by, reason=body.reason)
        return respond(done, status=202)

    return routes


def _checked(body: Decide) -> Decide:
    for field in ("id", "reason", "by"):
        if len(getattr(body, field)) > MOST_CHARACTERS:
            raise UsageError(f"longer than {MOST_CHARACTERS} characters", field=field, fix="shorten it")
    return body
