"""Trainers that keep few weights: what they went on from is retired already when they are killed and go back to it."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import msgspec

from rftd.ops import limits
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class FewKept(Kind):
    """More steps between two checkpoints than versions that are kept, and a trainer that dies on the way."""

    name: ClassVar[str] = "far from a checkpoint"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """Changes the shape and adds kills; how many."""
        from simulator.scenario import Strike

        shape = msgspec.structs.replace(scenario.shape, steps=chance.randint(6, 8), save_interval=0)
        if shape.sync.sync_style not in ("fixed", "fully_async"):
            return None  # these keep as many as may be planned ahead
        scenario.shape = shape
        drawn = [
            Strike("kill", "trainer", point="weights.after_append", nth=chance.randint(6, 12))
            for _ in range(chance.randint(1, 2))
        ]
        scenario.strikes += drawn
        return len(drawn)

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Lowers what is kept to what the schedule needs."""
        world.chaos.hits[self.name] += 1
        return mock.patch.object(limits, "KEPT_WEIGHT_VERSIONS", 1)
