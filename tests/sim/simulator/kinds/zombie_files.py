"""Trainers that stand still within any operation on files, are replaced, and wake; what they may not have changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.ops.errors import RftdError
from rftd.ops.faults import POINTS
from rftd.storage.files.checkpoints import misses_its_folder
from rftd.storage.files.unreferenced import stage_folders
from rftd.workers.weights import checkpoint
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

FILES = ("list", "unlink", "rmdir", "rename", "replace", "mkdir", "fsync")
AT = (
    *(f"file.{name}" for name in FILES),
    *sorted(point for point in POINTS if point.partition(".")[0] in ("workplace", "weights", "checkpoint", "garbage")),
)
TAKING_UP = ("file.list", "workplace.after_listing")
MARKING = ("checkpoint.after_rename", "checkpoint.between_markers", "workplace.before_marker", "file.replace")


def readable(world: World) -> Iterator[str]:
    """Weights that are announced and not retired can be read, to the last tensor, until their experiment has ended."""
    for state in (world.state, world.fork_state):
        if state.spine.ended:
            continue
        for key in state.weights.standing:
            event = state.weights.published[key]
            if not state.weights.counts(*key, state.spine) or Path(event.path) in world.chaos.damaged:
                continue
            try:
                checkpoint.read(Path(event.path), expect=event.manifest)
            except RftdError as error:
                yield f"version {key[0]} of generation {key[1]} is announced: {error.what} at {error.where}"


def marked(world: World) -> Iterator[str]:
    """The markers name checkpoints that are there."""
    for folder in sorted(stage_folders(world.spec)):
        damaged = any(path.parent == folder for path in world.chaos.damaged)
        if misses_its_folder(folder) and not damaged:
            yield f"the marker in {folder.name} names a folder that is gone"


class ZombieFiles(Kind):
    """One or two trainers that are stopped within an operation on files, for longer than they are waited for."""

    name: ClassVar[str] = "zombie files"
    share: ClassVar[float] = 0.6
    modes: ClassVar[tuple[str, ...]] = ("zombies",)
    oracles = (readable, marked)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """Adds strikes to those that the scenario has; how many."""
        from simulator.scenario import Strike

        which = chance.random()
        points, nths = AT, [1, 1, 2, 3, 5, 8, 13]
        if which < 0.35:  # each checkpoint replaces the one before: who wakes late meets none of its time
            points, nths = MARKING, [1, 1, 2]
            scenario.shape = msgspec.structs.replace(scenario.shape, keep=1, save_interval=1, steps=4)
        elif which < 0.6:
            points, nths = TAKING_UP, [1, 2, 3, 4]
        drawn = [
            Strike(
                "stop",
                "trainer",
                point=chance.choice(points),
                nth=chance.choice(nths),
                for_s=chance.choice([17.0, 25.0, 45.0]),
            )
            for _ in range(chance.randint(1, 2))
        ]
        scenario.strikes += drawn
        return len(drawn)
