"""Routes: what rollouts left, by filter and one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from fastapi import APIRouter, Request, Response

from rftd.daemon.api.body import Reason, Tag, read
from rftd.daemon.api.commands import bounded, command, receipt_of, request_id
from rftd.daemon.api.experience_view import ExperienceView, with_payload
from rftd.daemon.api.pages import ExperienceList
from rftd.daemon.api.parameters import After, ExperienceState, Int, Key, Limit, Name, Offset, Order, Real
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.storage.queries.experiences import ExperienceFilter, get_experience, list_experiences
from rftd.storage.queries.lengths import Lengths, lengths_of


def router(services: Services) -> APIRouter:
    """The routes of experiences."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["experiences"])

    @routes.get("/experiences", responses=answers(ExperienceList))
    async def experiences(
        name: Name,
        first_step: Int = None,
        last_step: Int = None,
        min_reward: Real = None,
        max_reward: Real = None,
        min_staleness: Int = None,
        max_staleness: Int = None,
        stage: Int = None,
        state: ExperienceState | None = None,
        order: Order = "newest",
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
    async def lengths(name: Name, stage: Int = None, after: After = None) -> Response:
        """Lengths of responses that were generated, trained and dropped, and whether the drops were biased."""
        id = await services.find(name, after)
        async with services.read() as connection:
            return respond(await lengths_of(connection, id, stage=stage))

    @routes.get("/experiences/{experience}", responses=answers(ExperienceView))
    async def experience(name: Name, experience: UUID, tokens: bool = False, after: After = None) -> Response:
        """One experience; with `tokens` its ids, mask and log-probabilities too."""
        await services.find(name, after)
        async with services.read() as connection:
            row = await get_experience(connection, experience)
        return respond(await with_payload(services.log, row, tokens=tokens))

    _add_commands(routes, services)
    return routes


def _add_commands(routes: APIRouter, services: Services) -> None:
    routes.add_api_route(
        "/experiences/{experience}/prioritize",
        _prioritize(services),
        methods=["POST"],
        name="prioritize_experience",
        summary="Prioritize",
        **command(Tag, required=True),
    )
    routes.add_api_route(
        "/experiences/{experience}/give-up",
        _give_up(services),
        methods=["POST"],
        name="give_up_experience",
        summary="Give up",
        **command(Reason, required=False),
    )


def _give_up(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, experience: UUID, request: Request, key: Key = None) -> Response:
        """Retire an experience whose payload is gone for good; a batch that it is in is abandoned, and made anew."""
        body = await read(request, Reason, default=Reason())
        id = await services.find(name)
        async with services.read() as connection:
            await get_experience(connection, experience)
        async with bounded():
            done = await services.operations.give_up(
                id, experience, reason=body.reason, request_id=request_id(key, services.ids)
            )
        return respond(receipt_of(id, done), status=202)

    return route


def _prioritize(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, experience: UUID, request: Request, key: Key = None) -> Response:
        """Change the priority of an experience, and of its group with it: groups stay together in every order."""
        body = await read(request, Tag)
        id = await services.find(name)
        async with services.read() as connection:
            group = UUID((await get_experience(connection, experience)).group)
        async with bounded():
            done = await services.operations.tag(
                id, group, priority=body.priority, reason=body.reason, request_id=request_id(key, services.ids)
            )
        return respond(receipt_of(id, done), status=202)

    return route
