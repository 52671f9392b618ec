"""Routes: submit, list, get, fork, pause, resume, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, Protocol
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.body import Fork, Reason, Submit, read
from rftd.daemon.api.pages import ExperimentList, ExperimentPage, page_of
from rftd.daemon.api.parameters import After, Key, Limit, Name, Offset
from rftd.daemon.api.place import show
from rftd.daemon.api.receipts import ForkReceipt, Receipt, SubmitReceipt
from rftd.daemon.api.schema import answers, takes
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.operations import Done
from rftd.ops.errors import UsageError, WaitTimeoutError
from rftd.ops.ids import Ids, derive
from rftd.storage.names import resolve_experiment
from rftd.storage.queries.experiments import ExperimentSummary, get_summary, list_experiments
from rftd.streams.folds.spine import Status

_REQUESTS: Final = UUID("6f6e6520-6c6f-5f67-8001-726674640000")
"""Namespace of the keys that follow from one that is no UUID."""


COMMAND_TIMEOUT_S: Final = 120.0
"""A submission reads its datasets whole, to count and digest them."""


class _Transition(Protocol):
    async def __call__(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done: ...


def router(services: Services) -> APIRouter:
    """The routes of experiments."""
    routes = APIRouter(prefix="/v1/experiments", tags=["experiments"])

    @routes.post(
        "", status_code=202, responses=answers(SubmitReceipt, status=202), openapi_extra=takes(Submit, required=True)
    )
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
        status_code=202,
        name="fork",
        summary="Fork",
        responses=answers(ForkReceipt, status=202),
        openapi_extra=takes(Fork, required=True),
    )
    operations = services.operations
    for verb, transition in (("pause", operations.pause), ("resume", operations.resume), ("cancel", operations.cancel)):
        routes.add_api_route(
            f"/{{name}}/{verb}",
            _transition(services, transition),
            methods=["POST"],
            status_code=202,
            name=verb,
            summary=verb.capitalize(),
            responses=answers(Receipt, status=202),
            openapi_extra=takes(Reason, required=False),
        )
    return routes


def with_labels(body: Submit) -> dict[str, Any]:
    """The config with the request's labels over the file's."""
    own = body.config.get("labels")
    if not body.labels or not isinstance(own, dict | None):
        return body.config
    return {**body.config, "labels": {**(own or {}), **body.labels}}


@asynccontextmanager
async def bounded(timeout_s: float = COMMAND_TIMEOUT_S) -> AsyncIterator[None]:
    """Ends a command that takes too long. Raises WaitTimeoutError: it may or may not be in the log."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"the command was not in the log after {timeout_s:g} s", fix="send it again with the same Idempotency-Key"
        ) from error


def receipt_of(experiment: UUID, done: Done) -> Receipt:
    """What is answered to a command that took effect."""
    return Receipt(id=str(experiment), event=str(done.event), position=show(done.position))


def request_id(key: str | None, ids: Ids) -> UUID:
    """The key of a command as the log keeps it: itself if it is a UUID, one that follows from it, or a new one."""
    if key is None:
        return ids.new()
    if not key.strip():
        raise UsageError("an empty key", field="Idempotency-Key", fix="leave it out, or send a UUID")
    try:
        return UUID(key)
    except ValueError:
        return derive(_REQUESTS, key)


def _summary(services: Services) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, after: After = None) -> Response:
        """Its line of the list: for who asks often how far it is, and needs no page."""
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
