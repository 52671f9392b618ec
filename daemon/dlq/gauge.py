"""How many dead letters are open, for the metrics."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.dlq.letter import State
from rftd.daemon.operations import Operations
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.metrics import Metrics
from rftd.storage.projector import Projector
from rftd.storage.queries.failed_tasks import failed_tasks
from rftd.streams import topics

LOOK_S: Final = 15.0
"""Between two looks; the tables are asked only if there is something new."""
_LOOKED_AT: Final = frozenset({topics.TASKS, topics.DEADLETTERS, topics.EXPERIMENTS})


async def watch_dead_letters(
    operations: Operations, engine: AsyncEngine, projector: Projector, metrics: Metrics, clock: Clock
) -> None:
    """Sets the gauge for as long as it is not cancelled; while log or tables do not answer it stays as it was."""
    seen: object = None
    while True:
        now = {place: next for place, next in projector.positions.items() if place.stream in _LOOKED_AT}
        if now != seen:
            try:
                async with engine.connect() as connection:
                    tasks = await failed_tasks(connection)
                dead = await operations.dead_letters(tasks)
            except (SQLAlchemyError, OSError, RftdError):
                end_if_cancelled()
            else:
                seen = now
                for kind in ("record", "task"):
                    still = sum(each.letter.kind == kind and each.letter.state is State.OPEN for each in dead)
                    metrics.dead_letters_open.labels(kind).set(still)
        await clock.sleep(LOOK_S)
