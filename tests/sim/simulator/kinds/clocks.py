"""Clocks that are set: by an hour, back or forward, or forward and then back, on one machine or on all."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

import msgspec

from rftd.workers.control.planner import Planner
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

HOUR_S: Final = 3600.0
ALLOWED_S: Final = 1.0
"""So much may a reading lag behind: a recorded one is seen a turn after it was made."""


class Jump(NamedTuple):
    """The wall clocks of the processes of a role (or of all) are set by so much."""

    at_s: float
    by_s: float
    role: str


class Clocks(Kind):
    """Wall clocks jump; the planner's rests and time-outs must go on as if they had not."""

    name = "clocks"
    share = 0.15

    def draw(self, scenario: Scenario, chance: random.Random) -> list[Jump]:
        """Which clocks are set when and by how much; half of these worlds reuse experiences that have to rest first."""
        jumps = []
        for _ in range(chance.randint(1, 3)):
            at_s = chance.uniform(0.5, scenario.calm_s)
            role = chance.choice(["", "daemon", "daemon", "trainer"])
            by_s = chance.choice([-HOUR_S, -HOUR_S, HOUR_S, -60.0, 60.0])
            jumps.append(Jump(at_s, by_s, role))
            if by_s > 0 and chance.random() < 0.7:
                jumps.append(Jump(at_s + chance.uniform(0.5, 5.0), -by_s, role))
        shape = scenario.shape
        if not shape.deterministic and shape.policy.max_uses != 1 and chance.random() < 0.5:
            rests = msgspec.structs.replace(shape.policy, cooldown_s=chance.choice([0.5, 3.0]))
            scenario.shape = msgspec.structs.replace(shape, policy=rests)
        return sorted(jumps)

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Sets what processes read, and notes every reading that a planner is given."""
        jumps: list[Jump] = plot
        kind = type(world.clock)  # what a machine is knows what a scenario is, so it cannot be imported here
        read, decide = kind.now_ns, Planner.decide
        watch = Watch(world)

        def jumped(clock: Any) -> int:
            now_s, process = world.loop.time(), world.loop.current
            role = "" if process is None else process.role
            moved_s = sum(each.by_s for each in jumps if each.at_s <= now_s and each.role in ("", role))
            return read(clock) + int(moved_s * 1e9)

        def deciding(planner: Planner, positions: Any, now_ns: int) -> Any:
            watch.note(planner, now_ns)
            return decide(planner, positions, now_ns)

        stack = ExitStack()
        stack.enter_context(mock.patch.object(kind, "now_ns", jumped))
        stack.enter_context(mock.patch.object(Planner, "decide", deciding))
        return stack

    def begin(self, world: World, plot: Any) -> None:
        """Says in the story when clocks are set."""
        for jump in plot:
            world.process.spawn(_tell(world, jump))


async def _tell(world: World, jump: Jump) -> None:
    await asyncio.sleep(jump.at_s)
    world.chaos.hits["clock set"] += 1
    world.tell(f"SET the clock of {jump.role or 'everybody'} by {jump.by_s:g} s")


class Watch:
    """Rule 9: from each recorded reading on, a planner's time passes as fast as time does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead: dict[Planner, float] = {}
        """Of each planner: the most by which a recorded reading was ahead of virtual time."""
        self._said = False

    def note(self, planner: Planner, now_ns: int) -> None:
        """Takes in a reading of its clock that a planner was given."""
        spine = planner._state.spine
        passed_s = self._world.loop.time()
        recorded_ns = max(spine.decided_at_ns, spine.stage_started_ns)
        if not recorded_ns:
            return
        behind_s = passed_s + self._ahead.get(planner, float("-inf")) - max(now_ns, recorded_ns) / 1e9
        if behind_s > ALLOWED_S and not self._said:
            self._said = True
            self._world.failures.append(
                f"clocks: at {passed_s:.1f} s a planner's clock is {behind_s:.1f} s behind what its decisions recorded"
            )
        self._ahead[planner] = max(self._ahead.get(planner, float("-inf")), recorded_ns / 1e9 - passed_s)
