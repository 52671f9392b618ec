"""Logs of which an append takes a few records: what is decided in a turn, thousands at times, is appended in parts."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from rftd.ops import limits
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class SmallAppends(Kind):
    """The bound is so low that nearly every turn is over it; whoever dies between two parts leaves a prefix."""

    name: ClassVar[str] = "small appends"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The most records of an append."""
        return chance.choice((1, 2, 3, 5))

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Lowers the bound, for all who append and for the log."""
        world.chaos.hits[self.name] += 1
        return mock.patch.object(limits, "APPEND_RECORDS", plot)
