"""Disks that are full, read-only or failing for a while, under everybody: the run goes on once they are well again."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import msgspec

from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.log.topics import EXPERIMENTS
from simulator.kinds.kind import Kind
from simulator.loop import PROCESS
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Outage(msgspec.Struct, frozen=True):
    """What a disk answers instead of writing, and when."""

    number: int
    """The `errno` of every refusal."""
    at_s: float
    for_s: float
    share: float
    """The share of the operations that fail."""
    seed: int


def unpaused(world: World) -> Iterator[str]:
    """A full disk is waited for: nobody has to resume what it held up."""
    for decoded in effective(world, EXPERIMENTS):
        if isinstance(decoded.event, ExperimentPaused) and os.strerror(errno.ENOSPC) in decoded.event.reason:
            yield f"the experiment was paused: {decoded.event.reason}"


class BadDisks(Kind):
    """Writing fails in every process: what was half written must mislead nobody afterwards."""

    name: ClassVar[str] = "bad disk"
    share: ClassVar[float] = 0.12
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (unpaused,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """One outage, which is over before the calm. Never with moves, whose own files lie on the same disk."""
        if "moved" in scenario.extras:
            return None
        at_s = chance.uniform(0.5, scenario.calm_s * 0.8)
        return Outage(
            number=chance.choice([errno.ENOSPC, errno.ENOSPC, errno.EIO, errno.EROFS]),
            at_s=at_s,
            for_s=min(chance.choice([0.5, 3.0, 20.0]), scenario.calm_s - at_s),
            share=chance.choice([1.0, 1.0, 0.3]),
            seed=chance.randrange(1 << 30),
        )

    def around(self, world: World, plot: Outage) -> AbstractContextManager[Any]:
        """Everybody's writing passes here."""
        return _failing(world, plot)


@contextmanager
def _failing(world: World, plot: Outage) -> Iterator[None]:
    chance = random.Random(plot.seed)
    world.loop.errors.expected.append(" in refuse line ")

    def refuse(path: object) -> None:
        process = PROCESS.get(None)
        now_s = world.loop.time()
        if process is None or process is world.process or not plot.at_s <= now_s < plot.at_s + plot.for_s:
            return
        if chance.random() < plot.share:
            world.chaos.hits[f"bad disk {errno.errorcode[plot.number]}"] += 1
            raise OSError(plot.number, os.strerror(plot.number), path)

    def named(call: Callable[..., Any]) -> Callable[..., Any]:
        def passed(path: Any, *args: Any, **options: Any) -> Any:
            refuse(path)
            return call(path, *args, **options)

        return passed

    def opening(call: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode).isdisjoint("wax+"):
                refuse(path)
            return call(path, mode, *args, **options)

        return opened

    with ExitStack() as stack:
        for name in ("fsync", "mkdir", "replace", "rename", "link"):
            stack.enter_context(mock.patch.object(os, name, named(getattr(os, name))))
        for owner in (io, builtins):
            stack.enter_context(mock.patch.object(owner, "open", opening(owner.open)))
        yield
