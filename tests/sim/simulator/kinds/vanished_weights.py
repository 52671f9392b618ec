"""Announced weights that somebody removes: the run ends all the same, on weights that are published again."""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from rftd.workers.weights.channel import Exported
from rftd.workers.weights.checkpoint import CheckpointChannel
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class VanishedWeights(Kind):
    """Some weights are damaged, or they or a file of them are gone: as they are announced, or at any time after."""

    name: ClassVar[str] = "vanished weights"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The publications whose weights vanish at once, counted from 0, and the moments at which others do."""
        at_once = {chance.randrange(8) for _ in range(chance.randint(1, 3))}
        later_s = sorted(chance.uniform(0.3, min(scenario.calm_s, 25.0)) for _ in range(chance.randint(0, 3)))
        return at_once, later_s

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Removes weights that no explorer has seen yet."""
        chance = random.Random(f"what of weights vanishes {world.scenario.seed}")
        publish = CheckpointChannel.publish
        count = 0

        def published(*args: Any, **options: Any) -> Exported:
            nonlocal count
            exported = publish(*args, **options)
            world.chaos.damaged.discard(Path(exported.path))
            if count in plot[0] and world.loop.time() < world.scenario.calm_s:
                self._remove(world, Path(exported.path), chance)
            count += 1
            return exported

        return mock.patch.object(CheckpointChannel, "publish", published)

    def begin(self, world: World, plot: Any) -> None:
        """Removes weights later, whether they were loaded by then or not."""
        for at_s in plot[1]:
            world.process.spawn(self._later(world, at_s))

    async def _later(self, world: World, at_s: float) -> None:
        await asyncio.sleep(at_s)
        world.observe()
        weights = world.state.weights
        chance = random.Random(f"which weights vanish {world.scenario.seed} {at_s}")
        if weights.standing:
            self._remove(world, Path(weights.published[chance.choice(weights.standing)].path), chance)

    def _remove(self, world: World, folder: Path, chance: random.Random) -> None:
        world.chaos.hits[self.name] += 1
        world.chaos.damaged.add(folder)
        world.tell(f"VANISH {folder.name}")
        files = sorted(folder.glob("*"))
        which = chance.random()
        if files and which < 0.3:
            chance.choice(files).unlink()
        elif files and which < 0.6:
            path = chance.choice(files)
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        else:
            shutil.rmtree(folder, ignore_errors=True)
