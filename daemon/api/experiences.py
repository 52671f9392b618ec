"""Routes: what rollouts left, by filter and one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import isfinite
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.body import Tag, read
from rftd.daemon.api.experience_view import ExperienceView, with_payload
from rftd.daemon.api.experiments import After, Key, Limit, Offset, bounded, request_id
from rftd.daemon.api.history import Int
from rftd.daemon.api.pages import ExperienceList
from rftd.daemon.api.place import show
from rftd.daemon.api.receipts import Receipt
from rftd.daemon.api.schema import answers, takes
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.ops.errors import UsageError
from rftd.storage.queries.experiences import ExperienceFilter, get_experience, list_experiences
from rftd.storage.queries.lengths import Lengths, lengths_of

Real = Annotated[float | None, Query(allow_inf_nan=False)]


def router(services: Services) -> APIRouter:
    """The routes of experiences."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["experiences"])

    @routes.get("/experiences", responses=answers(ExperienceList))
    async def experiences(
        name: str,
        first_step: Int = None,
        last_step: Int = None,
        min_reward: Real = None,
        max_reward: Real = None,
        min_staleness: Int = None,
        max_staleness: Int = None,
        stage: Int = None,
        state: str | None = None,
        order: str = "newest",
        limit: Limit = 50,
        offset: Offset = 0,
        after: After = None,
    ) -> Response:
        """Experiences that pass the filter; bounds are inclusive, staleness in versions."""
        where = ExperienceFilter(
            first_step=first_step,
            last_step=last_step,
            min_reward=min_reward,
            max_reward=max_reward,
            min_staleness_versions=min_staleness,
            max_staleness_versions=max_staleness,
            stage=stage,
            state=state,
        )
        id = await services.find(name, after)
        async with services.read() as connection:
            rows = await list_experiences(connection, id, where=where, order=order, limit=limit + 1, offset=offset)
        return respond(ExperienceList(items=rows[:limit], next=offset + limit if len(rows) > limit else None))

    @routes.get("/lengths", responses=answers(Lengths))
    async def lengths(name: str, stage: Int = None, after: After = None) -> Response:
        """Lengths of responses that were generated, trained and dropped, and whether the drops were biased."""
        id = await services.find(name, after)
        async with services.read() as connection:
            return respond(await lengths_of(connection, id, stage=stage))

    @routes.get("/experiences/{experience}", responses=answers(ExperienceView))
    async def experience(name: str, experience: UUID, tokens: bool = False, after: After = None) -> Response:
        """One experience; with `tokens` its ids, mask and log-probabilities too."""
        await services.find(name, after)
        async with services.read() as connection:
            row = await get_experience(connection, experience)
        return respond(await with_payload(services.log, row, tokens=tokens))

    routes.add_api_route(
        "/experiences/{experience}/prioritize",
        _prioritize(services),
        methods=["POST"],
        status_code=202,
        name="prioritize_experience",
        summary="Prioritize",
        responses=answers(Receipt, status=202),
        openapi_extra=takes(Tag, required=True),
    )
    return routes


def _prioritize(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: str, experience: UUID, request: Request, key: Key = None) -> Response:
        """Change the priority of an experience, and of its group with it: groups stay together in every order."""
        body = await read(request, Tag)
        if not isfinite(body.priority):
            raise UsageError("a priority is a finite number", field="priority", fix="send one")
        id, event = await services.find(name), request_id(key, services.ids)
        async with services.read() as connection:
            group = UUID((await get_experience(connection, experience)).group)
        async with bounded():
            position = await services.operations.tag(
                id, group, priority=body.priority, reason=body.reason, request_id=event
            )
        return respond(Receipt(id=str(id), event=str(event), position=show(position)), status=202)

    return route
