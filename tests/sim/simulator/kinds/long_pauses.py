"""Pauses of the owner that last until the workers are released, and what was released is taken up again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rftd.ops import limits
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentReleased, ExperimentResumed, ExperimentStarted
from rftd.streams.log import topics
from simulator.kinds.kind import Kind
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


def nothing_moves_while_released(world: World) -> Iterator[str]:
    """No batch is planned before what was released goes on, and every resume of what was released is queued."""
    released = False
    for decoded in effective(world, topics.EXPERIMENTS):
        if decoded.head.experiment != world.experiment:
            continue
        match decoded.event:
            case ExperimentReleased():
                released = True
            case ExperimentStarted():
                released = False
            case ExperimentResumed(queued=False) if released:
                yield f"a resume at {decoded.partition}@{decoded.offset} meets a release, and is not queued"
            case BatchPlanned() if released:
                yield f"step {decoded.event.step} was planned while the workers were released"


class LongPauses(Kind):
    """The owner pauses for longer than the workers are kept, and resumes; whatever else strikes meanwhile."""

    name: ClassVar[str] = "long pauses"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (nothing_moves_while_released,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The moments of one or two pauses and their ends, some of which come while the workers leave."""
        plot: list[tuple[float, float]] = []
        at_s = chance.uniform(0.5, min(scenario.calm_s, 8.0))
        for _ in range(chance.randint(1, 2)):
            for_s = limits.RELEASE_AFTER_S + chance.choice([chance.uniform(-1.0, 6.0), chance.uniform(5.0, 40.0)])
            plot.append((at_s, at_s + for_s))
            at_s += for_s + chance.uniform(5.0, 20.0)
        return plot

    def begin(self, world: World, plot: Any) -> None:
        """Spawns the owner's commands, and counts the releases."""
        from simulator.scenario import Command  # late: the scenario imports the kinds

        for at_s, until_s in plot:
            world.process.spawn(world.owner.order(Command("pause", at_s)))
            world.process.spawn(world.owner.order(Command("resume", until_s)))
        world.process.spawn(self._count(world))

    async def _count(self, world: World) -> None:
        """Counts how often the experiment was released, as far as it is seen from outside."""
        was = False
        while not world.over(world.state):
            await asyncio.sleep(0.5)
            world.observe()
            if world.state.spine.released and not was:
                world.chaos.hits[self.name] += 1
            was = world.state.spine.released
