"""Served histories of which an older copy, or nothing, is found at the next start: nobody acknowledges anything."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.daemon.cli.verbs.verify import files_of
from rftd.storage.files.served_history import FILE, copy_whole
from rftd.streams.folds.spine import Status
from rftd.streams.verify.checker import verify
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.clients import Told
    from simulator.scenario import Scenario
    from simulator.world import World


class Swap(msgspec.Struct, frozen=True):
    """When the copy is made and when it is put back, and for how long it lies there."""

    copied_rows: int
    """So many rows are in the copy, at least."""
    lost_rows: int
    """So many more were offered when it is put back, at least."""
    gone: bool
    """Nothing is put back: the file is not there."""
    down_s: float
    mended_s: float
    """From the start of everything until somebody puts the newest copy there."""


class HistoriesPutBack(Kind):
    """Everything goes down, and beside the log lies a history that is older than its promises."""

    name: ClassVar[str] = "history put back"
    share: ClassVar[float] = 0.5
    modes: ClassVar[tuple[str, ...]] = ("served",)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """When and how the history is replaced."""
        return Swap(
            copied_rows=chance.choice([0, 0, 1, 2, 4]),
            lost_rows=chance.choice([1, 1, 2]),
            gone=chance.random() < 0.3,
            down_s=chance.choice([0.5, 5.0, 45.0]),
            mended_s=chance.choice([3.0, 10.0, 40.0]),
        )

    def begin(self, world: World, plot: Swap) -> None:
        """Plays it in a process of the world's own."""
        world.process.spawn(_play(world, plot))

    async def judge(self, world: World, plot: Swap) -> list[str]:
        """At the end the history is the one that was promised."""
        findings = (await verify(world.log, look=files_of)).findings
        return [each.what for each in findings if each.rule == "files-are-whole" and FILE in each.what]


async def _play(world: World, plot: Swap) -> None:
    taskset = world.spec.stages[0].taskset
    assert taskset is not None
    path = Path(taskset.path) / FILE
    older, newest = world.root / "older.db", world.root / "newest.db"
    if not await _reached(world, path, plot.copied_rows):
        return
    copy_whole(path, older)
    copied_rows = _promised_rows(world)
    if not await _reached(world, path, copied_rows + plot.lost_rows):
        return
    world.machine.take_down()
    await asyncio.sleep(plot.down_s)
    copy_whole(path, newest)
    _replace(path, None if plot.gone else older)
    world.chaos.hits[f"history {'gone' if plot.gone else 'put back'}"] += 1
    world.tell(f"THE HISTORY is {'gone' if plot.gone else f'that of {copied_rows} rows'}")
    report = await verify(world.log, look=files_of)
    if not any(finding.rule == "files-are-whole" and str(path) in finding.what for finding in report.findings):
        world.failures.append("history put back: verify --files says nothing of it")
    told: Told = world.extras["served"].told
    acknowledged = _acknowledged(told)
    world.machine.bring_up()
    await _until(world, plot.mended_s)
    if _acknowledged(told) != acknowledged:
        world.failures.append("history put back: feedback or a commit was acknowledged over it")
    # As its error says: whoever serves it is ended first, and started again afterwards.
    for process in world.machine.of("explorer"):
        process.kill()
    _replace(path, newest)
    world.tell("the newest HISTORY lies there again")
    world.observe()
    if world.state.spine.status is Status.PAUSED:
        from simulator.scenario import Command

        world.chaos.hits["paused over a history"] += "history" in world.state.spine.reason
        await world.owner.order(Command("resume", world.loop.time()))


async def _reached(world: World, path: Path, rows: int) -> bool:
    """True once so many rows were offered; False if the experiment or its trouble ends before."""
    while not _exists(path) or _promised_rows(world) < rows:
        await asyncio.sleep(0.1)
        if world.over(world.state) or world.loop.time() > world.scenario.calm_s:
            return False
    return True


async def _until(world: World, for_s: float) -> None:
    """Returns after so long, or once the experiment is over."""
    until_s = world.loop.time() + for_s
    while world.loop.time() < until_s and not world.over(world.state):
        await asyncio.sleep(0.1)
        world.observe()


def _exists(path: Path) -> bool:
    return path.exists()


def _promised_rows(world: World) -> int:
    world.observe()
    offer = world.state.groups.offers.get(0)
    return 0 if offer is None else offer.rows


def _acknowledged(told: Told) -> int:
    return len(told.judged) + len(told.commits)


def _replace(path: Path, copy: Path | None) -> None:
    for file in path.parent.glob(f"{FILE}*"):
        file.unlink()
    if copy is not None:
        copy_whole(copy, path)
