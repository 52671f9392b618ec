"""Routes: archive, restore, remove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Final, TypeVar
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request, Response

from rftd.daemon.api.body import From, Remove, To, read
from rftd.daemon.api.commands import bounded, command, receipt_of, request_id
from rftd.daemon.api.parameters import Key, Name
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.operations import Done
from rftd.ops.errors import UsageError

KEEPING_TIMEOUT_S: Final = 3600.0
"""Checkpoints are copied, and read again to check the copy."""

B = TypeVar("B", bound=msgspec.Struct)


def router(services: Services) -> APIRouter:
    """The routes of an experiment's files."""
    routes = APIRouter(prefix="/v1/experiments", tags=["experiments"])
    operations = services.operations

    async def archive(id: UUID, body: To, event: UUID) -> Done:
        return await operations.archive(id, to=_absolute(body.to, "to"), request_id=event)

    async def restore(id: UUID, body: From, event: UUID) -> Done:
        return await operations.restore(id, source=_absolute(body.source, "source"), request_id=event)

    async def remove(id: UUID, body: Remove, event: UUID) -> Done:
        return await operations.remove(id, reason=body.reason, archive=body.archive, request_id=event)

    def add(verb: str, kind: type[B], default: B, work: Callable[[UUID, B, UUID], Awaitable[Done]]) -> None:
        routes.add_api_route(
            f"/{{name}}/{verb}",
            _route(services, kind, default, work),
            methods=["POST"],
            name=verb,
            summary=verb.capitalize(),
            **command(kind, required=False),
        )

    add("archive", To, To(), archive)
    add("restore", From, From(), restore)
    add("remove", Remove, Remove(), remove)
    return routes


def _route(
    services: Services, kind: type[B], default: B, work: Callable[[UUID, B, UUID], Awaitable[Done]]
) -> Callable[..., Awaitable[Response]]:
    async def route(name: Name, request: Request, key: Key = None) -> Response:
        body = await read(request, kind, default=default)
        id = await services.find(name)
        async with bounded(KEEPING_TIMEOUT_S):
            done = await work(id, body, request_id(key, services.ids))
        return respond(receipt_of(id, done), status=202)

    return route


def _absolute(path: str, field: str) -> str:
    plain = PurePosixPath(path).is_absolute() and "\0" not in path and ".." not in PurePosixPath(path).parts
    if path and not plain:
        raise UsageError(f"{path[:200]!r} is no absolute path", field=field, fix="give one of the daemon's machine")
    return path
