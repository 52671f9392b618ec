"""Routes of the reads and commands declared in `rftd.daemon.http.views`: parameters, keys, time-outs."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from msgspec import Meta

from rftd.daemon.http import views
from rftd.daemon.http.api.bodies import read_body
from rftd.daemon.http.api.file_response import BINARY, FileStream, file_response
from rftd.daemon.http.api.schema import answers, takes
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.commands import SubmitReceipt
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.problem import Problem
from rftd.daemon.http.views.route import CommandRoute, FileRoute, ReadRoute, Route, sent_name
from rftd.daemon.http.views.wire import encode
from rftd.daemon.run.consequence import Consequence, Rehearsed
from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.ops.errors import UsageError, WaitTimeoutError
from rftd.ops.ids import Ids, derive
from rftd.storage.files.checkpoint_file import OpenedFile
from rftd.streams.folds.spine import Status

_REQUESTS: Final = UUID("6f6e6520-6c6f-5f67-8001-726674640000")
"""Namespace of the UUIDs derived from idempotency keys that are not UUIDs, and from all keys of other askers than the
owner.
"""
_NOT_PARAMETERS: Final = frozenset({"daemon", "body", "key"})
"""Arguments of a declared function besides the parameters of the request."""
_LATE_NAMES: Final = {"Status": Status, "OpenedFile": OpenedFile}
"""Names imported by views only for type checkers, because every command line would pay for the import."""

_BYTES: Final = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
"""OpenAPI content of a binary response."""
_FILE_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    **answers(Problem),
    200: {"description": "The bytes of the file.", "content": _BYTES},
    206: {"description": "The range of bytes asked for by `Range`.", "content": _BYTES},
}
"""OpenAPI responses of a route that serves a file or a range of it."""

ASKER: Final = "rftd.asker"
"""Key of an ASGI scope holding the asker, set by the guard."""
BEARER: Final = "rftd.bearer"
"""Key of an ASGI scope holding the asker with the digest of its token, set by the guard."""
REQUEST: Final = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
"""Parameter of every route's function: the HTTP request."""
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Repeated with the same key, a request changes nothing.",
    ),
]
"""Header with the key of a command, under which it takes effect once."""

_DRY_RUN: Final = "dry_run"
"""Query parameter of every command: check without recording anything."""
DryRun = Annotated[
    bool,
    Query(description="Answer 200 with the consequence of the command, after all its checks, and record nothing."),
]
"""Query parameter of a command: check alone."""


Handler = Callable[..., Awaitable[Response]]
"""Function that answers a route."""


def declared_routes() -> list[Route[Any]]:
    """Returns every read and command, module by module of `rftd.daemon.http.views` in alphabetical order."""
    module_names = sorted(module.name for module in pkgutil.iter_modules(views.__path__))
    modules = [importlib.import_module(f"{views.__name__}.{module_name}") for module_name in module_names]
    return [route for module in modules for route in vars(module).values() if isinstance(route, Route)]


def router(services: Services, declared: list[Route[Any]]) -> APIRouter:
    """Returns the routes of the declared reads and commands."""
    routes = APIRouter()
    for route in declared:
        if isinstance(route, CommandRoute):
            routes.add_api_route(
                route.path,
                _command_handler(services, route),
                methods=["POST"],
                name=route.name,
                summary=route.summary,
                tags=[route.tag],
                status_code=_status_of(route),
                responses={
                    **answers(route.answer, status=_status_of(route)),
                    **({} if route.dry else answers(Consequence)),
                },
                openapi_extra=takes(route.body, required=not route.optional, file=route.of_file is not None),
            )
        elif isinstance(route, ReadRoute):
            routes.add_api_route(
                route.path,
                _read_handler(services, route),
                name=route.name,
                tags=[route.tag],
                responses=answers(route.answer),
            )
        elif isinstance(route, FileRoute):
            routes.add_api_route(
                route.path,
                _file_handler(services, route),
                name=route.name,
                tags=[route.tag],
                dependencies=[Depends(_role_check(route.role))],
                response_class=FileStream,
                responses=_FILE_ANSWERS,
            )
    return routes


def parameters_of(work: Callable[..., Any], path: str) -> list[inspect.Parameter]:
    """Returns a declared function's parameters in FastAPI's form: with the bounds of path and query."""
    hints = get_type_hints(work, {**work.__globals__, **_LATE_NAMES}, include_extras=True)
    return [
        parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            annotation=_named(name, _bounded_by(hints[name], Path if f"{{{name}}}" in path else Query)),
        )
        for name, parameter in inspect.signature(work).parameters.items()
        if name not in _NOT_PARAMETERS
    ]


def with_parameters(route: Handler, parameters: list[inspect.Parameter]) -> Handler:
    """Returns the route with these parameters instead of its written ones."""
    route.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return route


def respond_to(request: Request, body: bytes) -> Response:
    """Returns the JSON answer to a read with its ETag; 304 without a body if the client has it already."""
    etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    tags = {tag.strip() for tag in request.headers.get("If-None-Match", "").split(",")}
    if etag in tags:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def respond(answer: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a JSON response with the given answer in its form on the wire."""
    return Response(encode(answer), status_code=status, media_type="application/json", headers=headers)


def asker_of(request: Request, needed: AccessRole) -> Asker:
    """Returns the asker authenticated by the guard. Raises NotAllowedError for a role below `needed`."""
    asker: Asker = request.scope[ASKER]
    asker.check_role(needed)
    return asker


def request_id(key: str | None, ids: Ids, asker: Asker) -> UUID:
    """Returns the key of a command for the log: a given UUID, one derived from a given text, or a new one.

    Keys of different askers never collide: the answer to a repeated key reveals its earlier use to nobody else.
    """
    if key is None:
        return ids.new()
    if not key.strip():
        raise UsageError("an empty key", field="Idempotency-Key", fix="leave it out, or send a UUID")
    try:
        asker_key = UUID(key)
    except ValueError:
        asker_key = derive(_REQUESTS, key)
    return asker_key if asker.is_owner else derive(_REQUESTS, asker.name, str(asker_key))


def _read_handler(services: Services, read: ReadRoute[Any]) -> Handler:
    async def route(request: Request, **parameters: Any) -> Response:
        asker_of(request, read.role)
        bearer_services = services.for_bearer(request.scope[BEARER])
        answer = await read.work(bearer_services, **parameters)
        if read.is_look:
            bearer_services.operations.looked(parameters["name"])
        if isinstance(answer, ExperimentPage):
            return respond_to(request, services.pages.body_of(UUID(answer.experiment.summary.id), answer))
        return respond_to(request, encode(answer))

    route.__doc__ = read.text
    return with_parameters(route, [*parameters_of(read.work, read.path), REQUEST])


def _role_check(role: AccessRole) -> Callable[[Request], Awaitable[None]]:
    """Returns a dependency that refuses smaller roles before any parameter is judged."""

    async def check(request: Request) -> None:
        asker_of(request, role)

    return check


def _file_handler(services: Services, download: FileRoute) -> Handler:
    async def route(request: Request, **parameters: Any) -> Response:
        file: Any = await download.work(services.for_bearer(request.scope[BEARER]), **parameters)
        return file_response(request, file)

    route.__doc__ = download.text
    return with_parameters(route, [*parameters_of(download.work, download.path), REQUEST])


def _command_handler(services: Services, command: CommandRoute[Any, Any]) -> Handler:
    async def route(request: Request, key: str | None = None, dry_run: bool = False, **parameters: Any) -> Response:
        asker = asker_of(request, command.role)
        bearer_services = services.for_bearer(request.scope[BEARER])
        _check_query(request, parameters, *(() if command.dry else (_DRY_RUN,)))
        body = await read_body(request, command)
        if dry_run:
            with body.lines():
                async with _within(command.timeout_s):
                    return respond(await _rehearsed(command, bearer_services, body.value, parameters))
        if command.submits:
            bearer_services.take_submission()
        # Without a key each request gets a fresh one, so that two equal requests without a key are two commands.
        keys = [] if command.dry else [request_id(key, services.ids, asker)]
        with body.lines():
            async with _within(command.timeout_s):
                receipt = await command.work(bearer_services, body.value, *keys, **parameters)
        location = f"/v1/experiments/{receipt.id}" if isinstance(receipt, SubmitReceipt) else None
        return respond(receipt, status=_status_of(command), headers={"Location": location} if location else None)

    extra_parameters = [REQUEST]
    if not command.dry:
        extra_parameters.append(inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, annotation=Key, default=None))
        extra_parameters.append(
            inspect.Parameter(_DRY_RUN, inspect.Parameter.KEYWORD_ONLY, annotation=DryRun, default=False)
        )
    route.__doc__ = command.text
    return with_parameters(route, [*parameters_of(command.work, command.path), *extra_parameters])


async def _rehearsed(
    command: CommandRoute[Any, Any], services: Services, body: Any, parameters: Mapping[str, Any]
) -> Consequence:
    """Carries a command out up to its first append, and returns the consequence. Raises the command's errors."""
    try:
        await command.work(services.rehearsing(), body, UUID(int=0), **parameters)
    except Rehearsed as rehearsed:
        return rehearsed.consequence
    raise AssertionError(f"the dry run of {command.path} was a command")


def _status_of(command: CommandRoute[Any, Any]) -> int:
    # 202, not 200: the command is in the log, and takes effect afterwards.
    return 200 if command.dry else 202


def _check_query(request: Request, parameters: Mapping[str, Any], *more: str) -> None:
    """Refuses an unknown parameter of a command: it might be one meant to prevent the command's effect."""
    for name in request.query_params:
        if name not in parameters and name not in more:
            raise UsageError("no such parameter", field=name[:200], fix="see GET /openapi.json")


def _named(name: str, hint: Any) -> Any:
    """Returns the annotation of a parameter; `from_`, whose name is a word of Python, is `from` in requests."""
    return Annotated[hint, Query(alias=sent_name(name))] if sent_name(name) != name else hint


def _bounded_by(hint: Any, field: Callable[..., Any]) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    plain, *metas = get_args(hint)
    [meta] = [annotation for annotation in metas if isinstance(annotation, Meta)]
    bounds = {name: getattr(meta, name) for name in ("ge", "le", "min_length", "max_length", "pattern", "description")}
    set_bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[plain, field(**set_bounds, **(meta.extra or {}))]


@asynccontextmanager
async def _within(timeout_s: float) -> AsyncIterator[None]:
    """Ends a command after its time-out. Raises WaitTimeoutError: the command may or may not be in the log."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"the command was not in the log after {timeout_s:g} s", fix="send it again with the same Idempotency-Key"
        ) from error
