"""Experiments that are exported under way or at their end, and imported into an empty log: nothing is missing there."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.daemon.cli.verbs.verify import files_of
from rftd.ops.errors import RftdError
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.log.topics import TRUTH
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify
from simulator.kinds.foreigners import is_of_foreigner
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Move(msgspec.Struct, frozen=True):
    """When the experiment is exported, and with what."""

    records: int
    """So many records of truth are in the log, or it has ended before."""
    checkpoints: str
    """`newest`, `all` or `none`."""
    again: str
    """A second export of the same, imported over the first; empty: none."""


class Moved(Kind):
    """The copy in another log is held against its files: what the export left out is known there, all else is whole."""

    name: ClassVar[str] = "moved"
    share: ClassVar[float] = 0.2
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """Never of a log that is cut, whose rest need not fit together, nor of weights that are damaged on purpose.

        Where appends are limited they are smaller than those of an import.
        """
        if {"cut log", "small appends", "vanished weights"} & scenario.extras.keys():
            return None
        return Move(
            records=chance.choice([20, 60, 150, 1 << 30, 1 << 30]),
            checkpoints=chance.choice(["newest", "newest", "all", "none"]),
            again=chance.choice(["", "newest", "all"]),
        )

    def begin(self, world: World, plot: Move) -> None:
        """Plays it in a process of the world's own."""
        world.process.spawn(_play(world, plot))


async def _play(world: World, plot: Move) -> None:
    while not world.over(world.state) and _records(world) < plot.records:  # noqa: ASYNC110 nobody tells
        await asyncio.sleep(0.1)
    log = MemoryLog()
    home = world.root / "there"
    for number, checkpoints in enumerate(filter(None, (plot.checkpoints, plot.again))):
        file = world.root / f"{number}.rftd"
        try:
            await export_experiment(
                world.log, world.experiment, file, release="1", clock=world.clock, checkpoints=checkpoints
            )
            moves = [(str(world.root), str(home))]
            await import_experiment(log, file, home=home, clock=world.clock, moves=moves, verify=False)
        except (RftdError, OSError) as error:
            world.failures.append(f"moved: {checkpoints}: {error}")
            return
        report = await verify(log, look=files_of)
        findings = [finding for finding in report.findings if not is_of_foreigner(finding)]
        world.failures += [f"moved: {checkpoints}: {finding.rule}: {finding.what}" for finding in findings]
        world.chaos.hits[f"moved {checkpoints}"] += 1


def _records(world: World) -> int:
    heads = world.log.tail.heads
    return sum(heads[partition].next_offset for partition in TRUTH if partition in heads)
