"""Experiences that their owner gives up, whether they wait, rest or are planned: their batches are made anew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from rftd.ops.ids import derive
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


def given_up_is_gone(world: World) -> Iterator[str]:
    """What was given up is in no plan that stands and was made after that, and the books of all that ended balance."""
    for state in (world.state, world.fork_state):
        if state.replay_buffer.counts()["balance"]:
            yield f"the books of {state.experiment} do not balance: {state.replay_buffer.counts()}"
        late = [
            id
            for id in state.replay_buffer.given_up
            if id in state.replay_buffer.waiting or id in state.replay_buffer.cooling
        ]
        if late and world.over(state) and str(state.spine.status) == "completed":
            yield f"{late[0]} was given up and still waits"


class GivenUp(Kind):
    """The owner picks any experience that was not trained yet, once in a while one that is just being trained."""

    name: ClassVar[str] = "given up"
    share: ClassVar[float] = 0.2
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (given_up_is_gone,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The moments at which something is given up."""
        return sorted(chance.uniform(1.0, min(scenario.calm_s, 40.0)) for _ in range(chance.randint(1, 4)))

    def begin(self, world: World, plot: Any) -> None:
        """Spawns a task for each moment."""
        for at_s in plot:
            world.process.spawn(self._give_up(world, at_s))

    async def _give_up(self, world: World, at_s: float) -> None:
        await asyncio.sleep(at_s)
        chance = random.Random(f"what is given up {world.scenario.seed} {at_s}")
        while not (found := _open(world, planned=chance.random() < 0.6)):
            if world.over(world.state):
                return
            await asyncio.sleep(0.2)
        experience = chance.choice(found)
        request = derive(world.experiment, self.name, round(at_s * 1e6))
        done = await world.owner._ask(
            f"GIVE UP {experience}",
            lambda daemon: daemon.give_up(world.experiment, experience, reason="gone", request_id=request),
            times=20,
        )
        world.chaos.hits[self.name] += done


def _open(world: World, *, planned: bool) -> list[UUID]:
    """Experiences that nobody trained: of plans, or those that wait and rest."""
    world.observe()
    replay_buffer, spine = world.state.replay_buffer, world.state.spine
    if not planned:
        return sorted((*replay_buffer.waiting, *replay_buffer.cooling))
    plans = [plan.event for step, plan in spine.plans.items() if step > spine.furthest]
    return sorted({item.experience for plan in plans for item in plan.experiences})
