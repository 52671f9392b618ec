"""Several runs under one daemon at once: a fork beside its parent, and errors of both that may meet."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

from simulator.kinds.kind import Kind
from simulator.kinds.moody_policies import MoodyPolicies

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

SLOTS = 2


class SeveralRuns(Kind):
    """The parent is forked early and both go on at the same time; in half of these worlds their policies raise."""

    name: ClassVar[str] = "a fork beside its parent"
    share: ClassVar[float] = 0.075
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """How many runs the daemon has under way at most."""
        scenario.fork_at_s = chance.uniform(2.0, 8.0)
        scenario.fork_step = chance.randint(0, 2)
        moods = MoodyPolicies()
        if chance.random() < 0.5 and moods.name not in scenario.extras:
            scenario.extras[moods.name] = moods.draw(scenario, chance)
        return SLOTS

    def begin(self, world: World, plot: Any) -> None:
        """Counts the worlds in which both were under way at once."""
        world.process.spawn(self._look(world))

    async def _look(self, world: World) -> None:
        while world.loop.time() < world.scenario.calm_s:
            await asyncio.sleep(0.5)
            if any(len(supervisor.runs) == SLOTS for supervisor in world.machine.daemons.values()):
                world.chaos.hits[self.name] += 1
                return


def slots_of(scenario: Scenario) -> int:
    """How many experiments a daemon of this world runs at once."""
    return int(scenario.extras.get(SeveralRuns.name, 1))
