"""Several runs under one daemon at once: a fork beside its parent, and errors of both that may meet."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

from simulator.kinds.cut_logs import CutLogs
from simulator.kinds.kind import Kind
from simulator.kinds.moody_policies import MoodyPolicies
from simulator.kinds.slow_starts import SlowStarts
from simulator.kinds.strangers import Strangers

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

SLOTS = 2
OF_OUR_WORKERS = frozenset((SlowStarts.name, Strangers.name))
"""Kinds that are about workers that the daemon starts."""


class SeveralRuns(Kind):
    """The parent is forked early and both go on at the same time; in half of these worlds their policies raise.

    Of external workers there is one trainer, which dies beside the two.
    """

    name: ClassVar[str] = "a fork beside its parent"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """How many runs the daemon has under way at most.

        Never where the log is cut: what the owner asked for would be lost with it. Nor where the engine breaks the
        specification's promise that it is deterministic: then a fork has other weights, and `verify` says so.
        """
        if CutLogs.name in scenario.extras or (scenario.salted and scenario.shape.deterministic):
            return None
        from simulator.scenario import Strike

        scenario.fork_at_s = chance.uniform(2.0, 8.0)
        scenario.fork_step = chance.randint(0, 2)
        outside = chance.random() < 0.5 and not scenario.extras.keys() & OF_OUR_WORKERS
        if scenario.mode == "swarm" and (scenario.external or outside):
            scenario.external = True
            # Whoever takes its place may find two runs without a trainer, and the explorers in one of them.
            scenario.trainers = 1
            scenario.strikes.append(Strike("kill", "trainer", at_s=scenario.fork_at_s + chance.uniform(0.0, 8.0)))
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
