"""Explorers that somebody starts elsewhere, with other rows than were accepted: they refuse, and that is all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from rftd.ops.errors import DataError
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import partition_of
from rftd.workers.rollout.explorer import Explorer
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


def their_own_affair(world: World) -> Iterator[str]:
    """No experiment pauses for what an explorer refuses that its daemon did not start."""
    if Strangers.name not in world.scenario.extras:
        return
    spine = partition_of(topics.EXPERIMENTS, world.experiment)
    for record in world.log.stored(spine, 0, 1 << 30):
        event = decode(record).event
        if isinstance(event, ExperimentPaused) and event.reason.startswith("its explorer refuses"):
            yield f"{spine}@{record.offset}: it paused for a stranger: {event.reason}"


class Strangers(Kind):
    """Each joins whatever is under way, takes leases, and leaves with an error at the first."""

    name: ClassVar[str] = "stranger"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (their_own_affair,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The moments at which they come; none where all workers are somebody else's: they are all there is."""
        if scenario.external:
            return None
        return sorted(chance.uniform(0.5, min(scenario.calm_s, 40.0)) for _ in range(chance.randint(1, 5)))

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Lets explorers elsewhere find another dataset than was accepted."""
        from simulator.machine import REMOTE

        original = Explorer.__init__

        def made(explorer: Explorer, member: Any, *more: Any, **named: Any) -> None:
            original(explorer, member, *more, **named)
            get = explorer._tasksets.get

            async def taskset(spec: Any, digest: str) -> Any:
                if member._process.host == REMOTE:
                    world.chaos.hits[self.name] += 1
                    raise DataError(f"taskset {spec.name!r} has another digest", fix="restore the file")
                return await get(spec, digest)

            explorer._tasksets.get = taskset  # type: ignore[method-assign]

        return mock.patch.object(Explorer, "__init__", made)

    def begin(self, world: World, plot: Any) -> None:
        """Spawns a task for each of them."""
        for number, at_s in enumerate(plot):
            world.process.spawn(self._come(world, at_s, number))

    async def _come(self, world: World, at_s: float, number: int) -> None:
        await asyncio.sleep(at_s)
        if not world.over(world.state) and not world.machine.down:
            world.machine.start_worker("explorer", world.scenario.shape.explorers + number)
