"""Route: what any one thing was made of, and what became of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response

from rftd.daemon.api.parameters import After
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.storage.lineage.finding import FORMS
from rftd.storage.lineage.graph import LineageGraph
from rftd.storage.lineage.walk import CHILDREN, DEPTH, lineage

MOST_CHILDREN: Final = 100_000
MOST_DEPTH: Final = 1000


def router(services: Services) -> APIRouter:
    """The route of lineage."""
    routes = APIRouter(prefix="/v1", tags=["lineage"])

    @routes.get("/lineage", responses=answers(LineageGraph))
    async def one(
        id: Annotated[str, Query(min_length=1, max_length=500, description=f"What: {FORMS}.")],
        direction: Literal["both", "up", "down"] = "both",
        depth: Annotated[int, Query(ge=0, le=MOST_DEPTH)] = DEPTH,
        children: Annotated[
            int, Query(ge=1, le=MOST_CHILDREN, description="Most of a kind below one thing.")
        ] = CHILDREN,
        after: After = None,
    ) -> Response:
        """What it was made of (`up`) and what became of it (`down`), as nodes and links."""
        async with services.read(after) as connection:
            return respond(await lineage(connection, id, direction=direction, depth=depth, children=children))

    return routes
