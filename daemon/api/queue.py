"""Route: prioritize."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rftd.daemon.api.body import Prioritize, read
from rftd.daemon.api.commands import bounded, command, receipt_of, request_id
from rftd.daemon.api.parameters import Key, Name
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond


def router(services: Services) -> APIRouter:
    """The route of who goes first."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["experiments"])

    @routes.post("/prioritize", **command(Prioritize, required=True))
    async def prioritize(name: Name, request: Request, key: Key = None) -> Response:
        """Change the priority of an experiment: of those that wait for their turn, the highest goes first."""
        body = await read(request, Prioritize)
        id = await services.find(name)
        async with bounded():
            done = await services.operations.prioritize(
                id, priority=body.priority, reason=body.reason, request_id=request_id(key, services.ids)
            )
        return respond(receipt_of(id, done), status=202)

    return routes
