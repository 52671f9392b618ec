"""Routes of the reads and commands that `rftd.daemon.http.views` declares: parameters, keys, longest times."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from msgspec import Meta

from rftd.daemon.http import views
from rftd.daemon.http.api.bodies import read_body
from rftd.daemon.http.api.schema import answers, takes
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.commands import SubmitReceipt
from rftd.daemon.http.views.route import CommandRoute, ReadRoute, Route
from rftd.daemon.http.views.wire import encode
from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.ops.errors import UsageError, WaitTimeoutError
from rftd.ops.ids import Ids, derive
from rftd.streams.folds.spine import Status

_REQUESTS: Final = UUID("6f6e6520-6c6f-5f67-8001-726674640000")
"""The namespace in which a key that is no UUID becomes one."""
_GIVEN: Final = frozenset({"daemon", "body", "key"})
"""Arguments that a declared function is given beside the parameters of the request."""
_LATE: Final = {"Status": Status}
"""Names that views import for type checkers only, since every command line would pay for the import."""

ASKER: Final = "rftd.asker"
"""The key of an ASGI scope under which the guard leaves the asker."""
BEARER: Final = "rftd.bearer"
"""The key under which it leaves the asker with the digest of its token."""
REQUEST: Final = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Repeated with the same key, a request changes nothing.",
    ),
]


Handler = Callable[..., Awaitable[Response]]


def declared_routes() -> list[Route[Any]]:
    """Every read and command, module by module of `rftd.daemon.http.views` in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(views.__path__))
    modules = [importlib.import_module(f"{views.__name__}.{name}") for name in names]
    return [each for module in modules for each in vars(module).values() if isinstance(each, Route)]


def router(services: Services, declared: list[Route[Any]]) -> APIRouter:
    """The routes of what is declared."""
    routes = APIRouter()
    for each in declared:
        if isinstance(each, CommandRoute):
            routes.add_api_route(
                each.path,
                _commanded(services, each),
                methods=["POST"],
                name=each.name,
                summary=each.summary,
                tags=[each.tag],
                status_code=_status_of(each),
                responses=answers(each.answer, status=_status_of(each)),
                openapi_extra=takes(each.body, required=not each.optional, file=each.of_file is not None),
            )
        elif isinstance(each, ReadRoute):
            routes.add_api_route(
                each.path, _asked(services, each), name=each.name, tags=[each.tag], responses=answers(each.answer)
            )
    return routes


def parameters_of(work: Callable[..., Any], path: str) -> list[inspect.Parameter]:
    """The parameters of a declared function as FastAPI reads them: bounds of the path's, and of the query's."""
    hints = get_type_hints(work, {**work.__globals__, **_LATE}, include_extras=True)
    return [
        parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            annotation=_bounded_by(hints[name], Path if f"{{{name}}}" in path else Query),
        )
        for name, parameter in inspect.signature(work).parameters.items()
        if name not in _GIVEN
    ]


def with_parameters(route: Handler, parameters: list[inspect.Parameter]) -> Handler:
    """The route, with these parameters instead of those that it is written with."""
    route.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return route


def respond(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The value as a JSON answer."""
    return Response(encode(value), status_code=status, media_type="application/json", headers=headers)


def asker_of(request: Request, needed: AccessRole) -> Asker:
    """The asker that the guard saw. Raises NotAllowedError if its role is smaller than the one that is needed."""
    asker: Asker = request.scope[ASKER]
    asker.check_role(needed)
    return asker


def request_id(key: str | None, ids: Ids, asker: Asker) -> UUID:
    """The key of a command as the log keeps it: itself if it is a UUID, one that follows from it, or a new one.

    Keys of different askers never meet: an answer to a repeated key tells nobody else what it was used for.
    """
    if key is None:
        return ids.new()
    if not key.strip():
        raise UsageError("an empty key", field="Idempotency-Key", fix="leave it out, or send a UUID")
    try:
        own = UUID(key)
    except ValueError:
        own = derive(_REQUESTS, key)
    return own if asker.is_owner else derive(_REQUESTS, asker.name, str(own))


def _asked(services: Services, read: ReadRoute[Any]) -> Handler:
    async def route(request: Request, **parameters: Any) -> Response:
        asker_of(request, read.role)
        mine = services.for_bearer(request.scope[BEARER])
        answer = await read.work(mine, **parameters)
        if read.is_look:
            mine.operations.looked(parameters["name"])
        return respond(answer)

    route.__doc__ = read.text
    return with_parameters(route, [*parameters_of(read.work, read.path), REQUEST])


def _commanded(services: Services, command: CommandRoute[Any, Any]) -> Handler:
    async def route(request: Request, key: str | None = None, **parameters: Any) -> Response:
        asker = asker_of(request, command.role)
        mine = services.for_bearer(request.scope[BEARER])
        _check_query(request, parameters)
        body = await read_body(request, command)
        if command.submits:
            mine.take_submission()
        # Without a key each request gets a fresh one, so that two equal requests without a key are two commands.
        keys = [] if command.dry else [request_id(key, services.ids, asker)]
        with body.lines():
            async with _within(command.timeout_s):
                receipt = await command.work(mine, body.value, *keys, **parameters)
        location = f"/v1/experiments/{receipt.id}" if isinstance(receipt, SubmitReceipt) else None
        return respond(receipt, status=_status_of(command), headers={"Location": location} if location else None)

    own = [REQUEST]
    if not command.dry:
        own.append(inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, annotation=Key, default=None))
    route.__doc__ = command.text
    return with_parameters(route, [*parameters_of(command.work, command.path), *own])


def _status_of(command: CommandRoute[Any, Any]) -> int:
    # 202, not 200: the command is in the log, and what it asks for happens after that.
    return 200 if command.dry else 202


def _check_query(request: Request, known: Mapping[str, Any]) -> None:
    """Refuses a parameter that a command does not know: it may be the one for which it should have done nothing."""
    for name in request.query_params:
        if name not in known:
            raise UsageError("no such parameter", field=name[:200], fix="see GET /openapi.json")


def _bounded_by(hint: Any, field: Callable[..., Any]) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    plain, *metas = get_args(hint)
    [meta] = [each for each in metas if isinstance(each, Meta)]
    bounds = {name: getattr(meta, name) for name in ("ge", "le", "min_length", "max_length", "pattern", "description")}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[plain, field(**given, **(meta.extra or {}))]


@asynccontextmanager
async def _within(timeout_s: float) -> AsyncIterator[None]:
    """Ends a command that takes too long. Raises WaitTimeoutError: it may or may not be in the log."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"the command was not in the log after {timeout_s:g} s", fix="send it again with the same Idempotency-Key"
        ) from error
