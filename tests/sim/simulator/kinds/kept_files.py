"""Experiments that are archived once they have ended, restored and removed, by daemons that die in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.daemon.cli.verbs.verify import files_of
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.ids import derive
from rftd.streams.verify.checker import verify
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

POINTS = ("archive.after_file", "archive.after_append", "restore.after_files")


class Fate(msgspec.Struct, frozen=True):
    """What becomes of the files of an experiment that has ended."""

    verbs: tuple[str, ...]
    """`archive`, `restore` and `remove`, in this order."""


class KeptFiles(Kind):
    """After each command nothing that the log promises is missing, and the next one finds what it needs."""

    name: ClassVar[str] = "kept files"
    share: ClassVar[float] = 0.12
    modes: ClassVar[tuple[str, ...]] = ("swarm",)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The commands, and some deaths of daemons in their middle.

        Never with a fork, which may need the files, with a log that is cut, or with files that are damaged on purpose.
        """
        from simulator.scenario import Strike  # late: the scenario imports the kinds

        damaged = any(strike.kind == "damage" for strike in scenario.strikes)
        others = {"cut log", "vanished weights", "bad disk", "moved"} & scenario.extras.keys()
        if scenario.fork_at_s is not None or damaged or others:
            return None
        if chance.random() < 0.5:
            scenario.strikes.append(Strike("kill", "daemon", point=chance.choice(POINTS)))
        verbs = [("archive",), ("archive", "restore"), ("archive", "restore", "archive"), ("remove",)]
        return Fate(verbs=chance.choice([*verbs, ("archive", "restore", "remove")]))

    def begin(self, world: World, plot: Fate) -> None:
        """Plays it in a process of the world's own, which does not end before."""
        world.owner.keeping = True
        world.process.spawn(_play(world, plot))


def _command(world: World, verb: str, options: dict[str, Any]) -> Callable[[Supervisor], Coroutine[Any, Any, object]]:
    def command(daemon: Supervisor) -> Coroutine[Any, Any, object]:
        return getattr(daemon, verb)(world.experiment, **options)  # type: ignore[no-any-return]

    return command


async def _play(world: World, plot: Fate) -> None:
    while not world.over(world.state):
        await asyncio.sleep(0.5)
        world.observe()
    for number, verb in enumerate(plot.verbs):
        request = derive(world.experiment, verb, number)
        options: dict[str, Any] = {"request_id": request}
        if verb == "archive":
            options["to"] = str(world.root / f"{number}.rftd")
        elif verb == "restore":
            options["source"] = ""
        else:
            options |= {"reason": "asked", "archive": False}
        done = await world.owner._ask(
            verb.upper(),
            _command(world, verb, options),
            times=120,
            refusals=True,
        )
        if not done:
            world.failures.append(f"kept files: {verb} was never done")
            break
        world.chaos.hits[f"kept files {verb}"] += 1
        report = await verify(world.log, look=files_of)
        found = [finding for finding in report.findings if finding.rule == "files-are-whole"]
        world.failures += [f"kept files: after {verb}: {finding.what}" for finding in found]
    world.owner.keeping = False
