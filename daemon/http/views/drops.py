"""Rollouts that were not trained: dropped, failed, given up; by reason, with lengths and examples."""

from __future__ import annotations

from rftd.daemon.http.views.route import After, Daemon, Int, Name, read
from rftd.storage.queries.drops import Drops, drops_of


@read("/v1/experiments/{name}/drops", Drops, tag="experiences")
async def drops(daemon: Daemon, name: Name, stage: Int = None, after: After = None) -> Drops:
    """Rollouts that were not trained, by reason: count, share, lengths against those trained, and examples."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        return await drops_of(connection, id, stage=stage)
