"""Route: what each role of an experiment does or waits for."""

from __future__ import annotations

from fastapi import APIRouter, Response

from rftd.daemon.api.parameters import After, Name
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.daemon.why.wait import Why


def router(services: Services) -> APIRouter:
    """The route of waits."""
    routes = APIRouter(prefix="/v1/experiments/{name}", tags=["experiments"])

    @routes.get("/why", responses=answers(Why))
    async def why(name: Name, after: After = None) -> Response:
        """What each role does or waits for, since when, for whom, and what would unblock it; worst first."""
        id = await services.find(name, after)
        return respond(await services.operations.why(id))

    return routes
