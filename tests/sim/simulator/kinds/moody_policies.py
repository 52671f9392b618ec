"""A third party's policy that raises for a while: its run pauses and goes on, and no daemon ends for it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from rftd.workers.control.policies.paced import Paced
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Mood(Exception):
    """What no policy should raise."""


class MoodyExit(SystemExit):
    """What `sys.exit` raises."""


class MoodyCancel(asyncio.CancelledError):
    """What a policy raises that waits for something of its own which is cancelled."""


class MoodyPolicies(Kind):
    """While it lasts, each question to the policy may raise: an exception, or what ends a program."""

    name: ClassVar[str] = "moody policy"
    share: ClassVar[float] = 0.2
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The question that raises, how often it does, and from when to when."""
        begin_s = chance.uniform(0.0, min(0.5 * scenario.calm_s, 10.0))
        end_s = begin_s + chance.uniform(0.5, 1.0) * min(scenario.calm_s - begin_s, 20.0)
        return chance.choice(("admit", "admit", "admit", "select", "evict")), chance.choice((0.3, 1.0)), begin_s, end_s

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Makes our own policies raise as somebody's may."""
        method, share, begin_s, end_s = plot
        chance = random.Random(f"moods {world.scenario.seed}")
        raised: tuple[type[BaseException], ...] = (Mood, Mood, MoodyExit, MoodyCancel)

        def moody(original: Any) -> Any:
            def asked(*args: Any, **options: Any) -> Any:
                if begin_s <= world.loop.time() < end_s and chance.random() < share:
                    world.chaos.hits[self.name] += 1
                    raise chance.choice(raised)(method)
                return original(*args, **options)

            return asked

        world.loop.errors.expected.append(": run.error: Mood")  # it became the trouble of its own run
        stack = ExitStack()
        stack.enter_context(mock.patch.object(Paced, method, moody(getattr(Paced, method))))
        return stack
