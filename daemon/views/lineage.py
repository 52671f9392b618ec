"""The read of what any one thing was made of, and what became of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from rftd.daemon.views.route import After, Daemon, read
from rftd.storage.lineage.graph import CHILDREN, DEPTH, FORMS, LineageGraph

# Bounds of one answer, which is held in memory as a whole.
MOST_CHILDREN: Final = 100_000
MOST_DEPTH: Final = 1000


@read("/v1/lineage", LineageGraph, tag="lineage")
async def one(
    daemon: Daemon,
    id: Annotated[str, Meta(min_length=1, max_length=500, description=f"What: {FORMS}.")],
    direction: Literal["both", "up", "down"] = "both",
    depth: Annotated[int, Meta(ge=0, le=MOST_DEPTH)] = DEPTH,
    children: Annotated[int, Meta(ge=1, le=MOST_CHILDREN, description="Most of a kind below one thing.")] = CHILDREN,
    after: After = None,
) -> LineageGraph:
    """Everything that a thing was made of (`up`) and that became of it (`down`), as nodes and links."""
    from rftd.storage.lineage.walk import lineage

    async with daemon.read(after) as connection:
        return await lineage(connection, id, direction=direction, depth=depth, children=children)
