"""A copy of the log that is served beside it: it holds the same experiment, and may not touch its folder."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.storage.files.folder_owner import LogIdentity, read_owner
from rftd.streams.log.codec import decode_head
from rftd.streams.log.topics import TRUTH
from rftd.streams.memory import MemoryLog
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

ORIGINAL = LogIdentity(id="original", place="the original")
COPY = LogIdentity(id="copy", place="the copy")


class Twin(msgspec.Struct, frozen=True):
    """When the log is copied, and how long the copy is served."""

    steps: int
    """So many steps are executed when the copy is made, at least."""
    served_s: float
    down: bool
    """The original's processes are down meanwhile: nothing in the folder is younger than the copy."""


class TwoLogs(Kind):
    """The log is copied, and a second daemon serves the copy for a while, with workers of its own."""

    name: ClassVar[str] = "two logs"
    share: ClassVar[float] = 0.15

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """Never where the folder, and with it whose it is, is replaced or taken away.

        Nor beside a fork: a copy that is made before the fork's folder is there takes that folder.
        """
        if scenario.extras.keys() & {"cut log", "moved", "kept files", "bad disk", "folder put back"}:
            return None
        if scenario.fork_at_s is not None:
            return None
        return Twin(
            steps=chance.choice([0, 1, 2, 3]),
            served_s=chance.choice([5.0, 20.0, 60.0]),
            down=chance.random() < 0.7,
        )

    def begin(self, world: World, plot: Twin) -> None:
        """Gives the log its identity, and plays the rest in a process of the world's own."""
        world.machine.identity = ORIGINAL
        world.process.spawn(_play(world, plot))


async def _play(world: World, plot: Twin) -> None:
    while world.state.spine.furthest < plot.steps or not world.job.is_dir() or read_owner(world.job) is None:
        await asyncio.sleep(0.1)
        world.observe()
        if world.over(world.state) or world.loop.time() > world.scenario.calm_s:
            return
    from simulator.machine import Machine
    from simulator.network import Network, Weather

    if plot.down:
        world.machine.take_down()
    log = _copy_of(world.log)
    copied = _own_records(log, world)
    network = Network(world.loop, log, Weather(), seed=world.scenario.seed + 2)
    twin = Machine(world.loop, network, world.scenario, world.tell, seed=world.scenario.seed + 1)
    twin.identity = COPY
    world.tell("A COPY OF THE LOG is served")
    world.chaos.hits["two logs"] += 1
    twin.start_daemon()
    keeping = world.process.spawn(twin.keep())
    await asyncio.sleep(plot.served_s)
    keeping.cancel()
    twin.take_down()
    added = _own_records(log, world)[len(copied) :]
    if added:
        world.failures.append(f"two logs: the copy went on with the experiment: {', '.join(added[:5])}")
    if plot.down:
        world.machine.bring_up()


def _copy_of(log: MemoryLog) -> MemoryLog:
    there = MemoryLog()
    there._records = {partition: list(records) for partition, records in log._records.items()}
    there._starts = dict(log._starts)
    there._positions = dict(log._positions)
    there.tail.advance((), log.tail.heads)
    return there


def _own_records(log: MemoryLog, world: World) -> list[str]:
    """The types of the experiment's records of truth, one partition after the other."""
    heads = [decode_head(record) for partition in TRUTH for record in log.stored(partition, 0, 1 << 30)]
    return sorted(head.type for head in heads if head.experiment == world.experiment)
