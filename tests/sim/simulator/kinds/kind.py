"""`Kind`: one kind of fault. Subclass it, give it a name and a share of the worlds, and add it to `KINDS`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Kind:
    """Does nothing; every method is one that a kind may have."""

    name: ClassVar[str]
    """The name under which `chaos.hits` counts it, and its draws lie in `Scenario.extras`."""
    share: ClassVar[float] = 0.1
    """The share of the worlds of `modes` that have it."""
    modes: ClassVar[tuple[str, ...]] = ("swarm",)
    oracles: ClassVar[tuple[Callable[[World], Iterator[str]], ...]] = ()
    """What must hold at the end of every world, with this kind or without: each yields what is wrong."""

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """What happens in this world, from `chance` alone; None for nothing. May change the scenario."""
        return True

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Patches that last as long as the world and its judgement. Entered before the experiment is submitted."""
        return nullcontext()

    def begin(self, world: World, plot: Any) -> None:
        """Starts what happens later: the experiment is submitted, and the first daemon is about to be started.

        Spawn on `world.process`; count what happened in `world.chaos.hits`; stop at `world.scenario.calm_s`.
        """

    async def judge(self, world: World, plot: Any) -> list[str]:
        """What is wrong at the end of a world with this kind, where only reading the log tells."""
        return []


def draw_kinds(kinds: tuple[Kind, ...], scenario: Scenario) -> None:
    """Adds to the scenario what these kinds do in it."""
    for kind in kinds:
        chance = random.Random(f"{kind.name} {scenario.seed}")
        if scenario.mode in kind.modes and chance.random() < kind.share:
            plot = kind.draw(scenario, chance)
            if plot is not None:
                scenario.extras[kind.name] = plot
