"""Workers that are started late: what the one before left running has to end first, or the start itself hangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final
from unittest import mock

from rftd.daemon.run.supervisor.fleet import Fleet
from rftd.ops import limits
from rftd.ops.words import Words
from rftd.streams.folds.run_state import RunState
from rftd.workers.hosts.executor import Executor, Handle, WorkerOrder
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

DELAYS_S: Final = (0.0, 0.0, 0.3, 1.0, 3.0, 6.0)
HUNG_S: Final = 1e9
"""Longer than any world lasts: the start hangs."""
START_TIMEOUT_S: Final = 8.0
"""The daemon's patience with a start that hangs: worlds are short."""

Place = tuple[str, int]


class LateHandle:
    """A worker that has been ordered. It is started by a task of the daemon, and never if that ends before."""

    def __init__(self, begin: Callable[[], Handle], delay_s: float) -> None:
        self._begin = begin
        self._delay_s = delay_s
        self._handle: Handle | None = None
        self._given_up = False

    @property
    def pid(self) -> int | None:
        return None if self._handle is None else self._handle.pid

    @property
    def reason(self) -> str:
        return "" if self._handle is None else self._handle.reason

    @property
    def waits(self) -> Words | None:
        return None if self._handle is not None or self._delay_s == HUNG_S else Words("leftovers", "99 (engine)")

    def exit_code(self) -> int | None:
        if self._handle is None:
            return -1 if self._given_up else None
        return self._handle.exit_code()

    def terminate(self) -> None:
        self._given_up = True
        if self._handle is not None:
            self._handle.terminate()

    def kill(self) -> None:
        self._given_up = True
        if self._handle is not None:
            self._handle.kill()

    async def start(self) -> None:
        """Starts the worker after its delay, as the thread of an executor does."""
        await asyncio.sleep(self._delay_s)
        if not self._given_up:
            self._handle = self._begin()


class LateExecutor:
    """The executor of one fleet, whose workers start late. Their places are as exclusive as those of real ones."""

    def __init__(self, executor: Executor, world: World, chance: random.Random) -> None:
        self._executor = executor
        self._world = world
        self._chance = chance
        self._ordered: dict[Place, Handle] = {}
        self.adopt = executor.adopt
        self.lives = executor.lives
        self.clear = executor.clear
        self.host = executor.host

    def start(self, order: WorkerOrder) -> Handle:
        world = self._world
        place = (order.role, order.slot)
        before = self._ordered.get(place)
        if before is not None and before.exit_code() is None:
            world.failures.append(f"places: a second {order.role} was ordered for a place that has one")
            return before
        delay_s = self._chance.choice(DELAYS_S)
        if self._chance.random() < 0.05 and world.loop.time() < world.scenario.calm_s:
            delay_s = HUNG_S
        if delay_s:
            world.chaos.hits["hung start" if delay_s == HUNG_S else "slow start"] += 1
            world.tell(f"START of {order.role} {order.slot} takes {delay_s:g} s")
        late = LateHandle(lambda: self._executor.start(order), delay_s)
        self._ordered[place] = late
        daemon = world.loop.current
        assert daemon is not None
        daemon.spawn(late.start())
        return late


class SlowStarts(Kind):
    """Starts take up to seconds of the daemon's life, or for ever; meanwhile it decides, drains and is killed."""

    name: ClassVar[str] = "slow starts"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The chances of each start; external workers are started by nobody here."""
        return None if scenario.external else random.Random(chance.random())

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Gives each fleet such an executor, and less patience."""
        make = Fleet.__init__

        def made(fleet: Fleet, state: RunState, executor: Executor, *args: Any, **more: Any) -> None:
            late = LateExecutor(executor, world, plot)
            make(fleet, state, late, *args, start_timeout_s=START_TIMEOUT_S, **more)

        assert START_TIMEOUT_S < limits.WORKER_START_TIMEOUT_S
        return mock.patch.object(Fleet, "__init__", made)
