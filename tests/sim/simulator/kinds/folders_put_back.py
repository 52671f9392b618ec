"""Folders of experiments that are put back from an older copy, or are gone: the run goes on, on what the log has."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.daemon.cli.verbs.verify import files_of
from rftd.streams.verify.checker import verify
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Restore(msgspec.Struct, frozen=True):
    """When the copy is made and when it is put back."""

    copied_steps: int
    """So many steps are executed when the copy is made, at least."""
    lost_steps: int
    """So many more are when it is put back, at least."""
    gone: bool
    """Nothing is put back: there is no folder."""
    down_s: float


class FoldersPutBack(Kind):
    """Everything goes down, and the experiment's folder is older than its log: checkpoints, weights and snapshots."""

    name: ClassVar[str] = "folder put back"
    share: ClassVar[float] = 0.3

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """When and how the folder is replaced.

        Never with a log that is cut too, nor with what looks after the folder's files by itself.
        """
        if scenario.extras.keys() & {"cut log", "moved", "kept files", "bad disk"} or scenario.fork_at_s is not None:
            return None
        return Restore(
            copied_steps=chance.choice([0, 1, 1, 2, 3]),
            lost_steps=chance.choice([1, 1, 2, 3]),
            gone=chance.random() < 0.25,
            down_s=chance.choice([0.5, 5.0, 45.0]),
        )

    def begin(self, world: World, plot: Restore) -> None:
        """Plays it in a process of the world's own."""
        world.process.spawn(_play(world, plot))

    async def judge(self, world: World, plot: Restore) -> list[str]:
        """At the end nothing is missing or too much that the copy did not lack or bring, or that nobody damaged."""
        findings = (await verify(world.log, look=files_of)).findings
        files = [each.what for each in findings if each.rule == "files-are-whole"]
        return [what for what in files if not any(str(path) in what for path in world.chaos.damaged)]


async def _play(world: World, plot: Restore) -> None:
    job, copy = world.job, world.root / "copy"
    if not await _reached(world, plot.copied_steps):
        return
    if not plot.gone:
        shutil.copytree(job, copy)
    if not await _reached(world, world.state.spine.furthest + plot.lost_steps):
        return
    world.machine.take_down()
    await asyncio.sleep(plot.down_s)
    before = dict(_content(job))
    shutil.rmtree(job, ignore_errors=True)
    if copy.is_dir():
        shutil.copytree(copy, job)
    after = dict(_content(job))
    world.chaos.hits["folder put back" if copy.is_dir() else "folder gone"] += 1
    touched = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    world.tell(f"THE FOLDER is {'that of a copy' if copy.is_dir() else 'gone'}: {sorted(touched)}")
    world.chaos.damaged |= touched
    await _look(world, lost=before.keys() - after.keys())
    world.machine.bring_up()


async def _look(world: World, lost: set[Path]) -> None:
    """Holds `rftd verify --files` against what is known of the folder: it names every committed checkpoint it lost."""
    world.observe()
    findings = [each.what for each in (await verify(world.log, look=files_of)).findings]
    for event in world.state.checkpoints.values():
        if Path(event.path) in lost and not any(event.path in what for what in findings):
            world.failures.append(f"folder put back: verify --files does not name {event.path}, which is gone")


async def _reached(world: World, steps: int) -> bool:
    """True once so many steps are executed; False if the experiment or its trouble ends before."""
    while world.state.spine.furthest < steps or not world.job.is_dir():
        await asyncio.sleep(0.1)
        world.observe()
        if world.over(world.state) or world.loop.time() > world.scenario.calm_s:
            return False
    return True


def _content(job: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """The files of every checkpoint, of all weights and of the artifacts of a folder, by their paths in it."""
    for folder in (*job.rglob("global_step_*"), *(job / "weights").glob("*")):
        if folder.is_dir():
            yield folder, {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}
    for artifact in _files(job / "artifacts"):
        yield artifact, {artifact.name: artifact.read_bytes()}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
