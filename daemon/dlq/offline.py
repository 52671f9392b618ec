"""Dead letters of a log without a daemon. Reads every record of three streams."""

from __future__ import annotations

from rftd.daemon.dlq.gathering import gathered
from rftd.daemon.dlq.letter import Dead
from rftd.daemon.supervisor.registry import Registry
from rftd.streams.folds.failed_tasks import FailedTasks
from rftd.streams.folds.letters import Letters
from rftd.streams.log import EventLog


async def dead_offline(log: EventLog) -> list[Dead]:
    """Every dead letter of the log, newest first."""
    registry, letters = Registry(log), Letters()
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    await letters.catch_up(log)
    return gathered(letters, await FailedTasks().read(log), registry.entries)
