"""`Owner`: what the owner of an experiment wants of whichever daemon answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from simulator.scenario import Command

if TYPE_CHECKING:
    from simulator.world import World

ANSWER_S = 8.0
"""How long the owner waits before asking again."""


class Owner:
    """Asks again, with the same request id, until a daemon has answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.forking = world.scenario.fork_at_s is not None
        """True while the owner may still ask for a fork."""
        self.keeping = False
        """True while the owner may still archive, restore or remove it."""

    def begin(self) -> None:
        """Everything that the scenario has the owner do."""
        world = self._world
        for command in world.scenario.commands:
            world.process.spawn(self.order(command))
        for at_s in world.scenario.tags:
            world.process.spawn(self._tag(at_s))
        if self.forking:
            world.process.spawn(self._fork(world.scenario.fork_at_s or 0.0))

    async def order(self, command: Command) -> None:
        """Gives a command when it is time for it."""
        world = self._world
        await asyncio.sleep(max(0.0, command.at_s - world.loop.time()))
        request = derive(world.experiment, command.verb, round(command.at_s * 1e6))
        await self._ask(
            command.verb.upper(),
            lambda daemon: getattr(daemon, command.verb)(world.experiment, reason="asked", request_id=request),
            times=20,
        )

    async def _tag(self, at_s: float) -> None:
        """Another priority for some group that is still to be trained, as far as it is seen from outside."""
        world = self._world
        await asyncio.sleep(at_s)
        chance = random.Random(f"tag {at_s}")
        while not (found := self._groups(under_way=chance.random() < 0.2)):
            if world.over(world.state):
                return
            await asyncio.sleep(0.2)
        group = chance.choice(found)
        priority, request = round(chance.uniform(-9.0, 9.0), 2), derive(world.experiment, "tag", round(at_s * 1e6))
        done = await self._ask(
            f"TAG {group} {priority}",
            lambda daemon: daemon.tag(world.experiment, group, priority=priority, reason="asked", request_id=request),
            times=20,
        )
        world.chaos.hits["tag"] += done

    def _groups(self, *, under_way: bool) -> list[UUID]:
        """Those that are under way, or else those that wait or rest."""
        self._world.observe()
        state = self._world.state
        if under_way:
            return sorted(state.groups.open)
        entries = (*state.replay_buffer.waiting.values(), *state.replay_buffer.cooling.values())
        return sorted({entry.group.group for entry in entries})

    async def _fork(self, at_s: float) -> None:
        """Asks for a fork until there is one, or nothing that could be forked."""
        world = self._world
        await asyncio.sleep(at_s)
        total = sum(stage.total_steps for stage in world.spec.stages)
        at_step = min(world.scenario.fork_step, total - 1)
        while world.state.spine.furthest < at_step and not world.over(world.state):  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(1.0)
        done = await self._ask(
            f"FORK at step {at_step}",
            lambda daemon: daemon.fork(
                world.experiment,
                at_step=min(at_step, world.state.spine.furthest),
                overrides=(),
                name=f"{world.spec.name}-fork",
                labels={},
                request_id=derive(world.experiment, "fork"),
            ),
            times=60,
            refusals=True,
        )
        world.chaos.hits["fork"] += done
        self.forking = False

    async def _ask(
        self,
        what: str,
        work: Callable[[Supervisor], Coroutine[Any, Any, object]],
        *,
        times: int,
        refusals: bool = False,
    ) -> bool:
        """True once it is done; a refusal is an answer too, unless `refusals` are to be asked about again."""
        machine = self._world.machine
        for _ in range(times):
            daemons = [each for each in machine.daemons if each.running]
            if daemons:
                asked = daemons[-1].spawn(work(machine.daemons[daemons[-1]]))
                await asyncio.wait({asked}, timeout=ANSWER_S)
                if asked.done() and not asked.cancelled():
                    error = asked.exception()
                    self._world.tell(f"{what}: {error or 'done'}")
                    if error is None or (isinstance(error, ConflictError) and not refusals):
                        return error is None
            await asyncio.sleep(1.0)
        return False
