"""Routes: submit, list, get, fork, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.body import Fork, Reason, Submit, read
from rftd.daemon.api.commands import bounded, command, receipt_of, request_id
from rftd.daemon.api.pages import ExperimentList, ExperimentPage, page_of
from rftd.daemon.api.parameters import After, Key, Limit, Name, Offset
from rftd.daemon.api.place import show
from rftd.daemon.api.receipts import ForkReceipt, SubmitReceipt
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.operations import Done
from rftd.storage.names import resolve_experiment
from rftd.storage.queries.experiments import ExperimentSummary, get_summary, list_experiments
from rftd.streams.folds.spine import Status


class _Transition(Protocol):
    async def __call__(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done: ...


def router(services: Services) -> APIRouter:
    """The routes of experiments."""
    routes = APIRouter(prefix="/v1/experiments", tags=["experiments"])

    @routes.post("", **command(Submit, required=True, receipt=SubmitReceipt))
    async def submit(request: Request, key: Key = None) -> Response:
        """Hand in an experiment. It is validated, and in the log when this answers."""
        body = await read(request, Submit)
        config = with_labels(body)
        async with bounded():
            accepted = await services.operations.submit(config, request_id=request_id(key, services.ids))
        receipt = SubmitReceipt(
            id=str(accepted.experiment),
            name=accepted.name,
            event=str(accepted.event),
            position=show(accepted.position),
            warnings=list(accepted.warnings),
        )
        return respond(receipt, status=202, headers={"Location": f"/v1/experiments/{accepted.experiment}"})

    @routes.get("", responses=answers(ExperimentList))
    async def listed(
        state: Annotated[list[Status] | None, Query(description="Only those in one of these states.")] = None,
        removed: Annotated[bool, Query(description="Also those that were removed.")] = False,
        limit: Limit = 50,
        offset: Offset = 0,
        after: After = None,
    ) -> Response:
        """Experiments, newest first."""
        async with services.read(after) as connection:
            states = tuple(each.value for each in state or ())
            rows = await list_experiments(connection, states=states, removed=removed, limit=limit + 1, offset=offset)
        return respond(ExperimentList(items=rows[:limit], next=offset + limit if len(rows) > limit else None))

    @routes.get("/{name}", responses=answers(ExperimentPage))
    async def one(name: Name, after: After = None) -> Response:
        """Everything about one experiment, by its name, `name@2`, its id or a unique beginning of its id."""
        async with services.read(after) as connection:
            id = await resolve_experiment(connection, name)
            return respond(await page_of(connection, id, services.curves, services.waiting(id)))

    routes.add_api_route("/{name}/summary", _summary(services), name="summary", responses=answers(ExperimentSummary))
    routes.add_api_route(
        "/{name}/fork",
        _fork(services),
        methods=["POST"],
        name="fork",
        summary="Fork",
        **command(Fork, required=True, receipt=ForkReceipt),
    )
    operations = services.operations
    for verb, transition in (("pause", operations.pause), ("resume", operations.resume), ("cancel", operations.cancel)):
        routes.add_api_route(
            f"/{{name}}/{verb}",
            _transition(services, transition),
            methods=["POST"],
            name=verb,
            summary=verb.capitalize(),
            **command(Reason, required=False),
        )
    return routes


def with_labels(body: Submit) -> dict[str, Any]:
    """The config with the request's labels over the file's."""
    own = body.config.get("labels")
    if not body.labels or not isinstance(own, dict | None):
        return body.config
    return {**body.config, "labels": {**(own or {}), **body.labels}}


def _summary(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, after: After = None) -> Response:
        """Answers one line of the list of experiments, for whoever asks often how far this one is and needs no page."""
        async with services.read(after) as connection:
            return respond(await get_summary(connection, await resolve_experiment(connection, name)))

    return route


def _fork(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, request: Request, key: Key = None) -> Response:
        """A new experiment that shares this one's history up to a step and goes on from there, with changes."""
        body = await read(request, Fork)
        id = await services.find(name)
        async with bounded():
            forked = await services.operations.fork(
                id,
                at_step=body.at_step,
                overrides=body.set,
                name=body.name,
                labels=body.labels,
                request_id=request_id(key, services.ids),
            )
        receipt = ForkReceipt(
            id=str(forked.experiment),
            name=forked.name,
            event=str(forked.event),
            position=show(forked.position),
            warnings=list(forked.warnings),
            parent=str(forked.parent),
            at_step=forked.at_step,
        )
        return respond(receipt, status=202, headers={"Location": f"/v1/experiments/{forked.experiment}"})

    return route


def _transition(services: Services, transition: _Transition) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, request: Request, key: Key = None) -> Response:
        body = await read(request, Reason, default=Reason())
        id = await services.find(name)
        async with bounded():
            done = await transition(id, reason=body.reason, request_id=request_id(key, services.ids))
        return respond(receipt_of(id, done), status=202)

    return route
