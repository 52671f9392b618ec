"""Trainers that treat files as if nobody could have come after them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rftd.ops.errors import ConfigError, DiskFullError
from rftd.storage.files import outside_files
from rftd.storage.files.checkpoints import mark_latest, put_back
from rftd.storage.files.unreferenced import KINDS_OF_ONE_TRAINER, ours, referenced_by, remove, unreferenced
from rftd.storage.portable import archive, experiment
from rftd.workers import process
from rftd.workers.training import loop, saving
from rftd.workers.training.publishing import DURABLE, Publisher
from rftd.workers.weights import checkpoint
from simulator.bugs.bug import Bug, instead
from simulator.loop import PROCESS


def _list_and_remove(lease: Any, state: Any, spec: Any) -> None:
    for committed in state.checkpoints.values():
        put_back(Path(committed.path))
    own = [each for each in ours(spec) if each.kind in KINDS_OF_ONE_TRAINER]
    for each in unreferenced(own, referenced_by(state), before_ns=lease._clock.now_ns()):
        remove([each.path])


async def _tidy_without_asking(lease: Any, state: Any, spec: Any, _log: Any) -> None:
    await asyncio.to_thread(_list_and_remove, lease, state, spec)


def _one_name_for_all(version: int, generation: int, _epoch: int, attempt: int = 0) -> str:
    return f"v{version}-g{generation}{f'-e0-r{attempt}' if attempt else ''}"


@contextmanager
def _remove_what_a_successor_announced() -> Iterator[None]:
    tidies = mock.patch.object(loop, "tidy", _tidy_without_asking)
    with tidies, mock.patch.object(checkpoint, "name_of", _one_name_for_all):
        yield


@contextmanager
def _mark_in_place() -> Iterator[None]:
    steps: dict[tuple[int, Path], int] = {}

    def staged(folder: Path, step: int, *, within: Path) -> None:
        steps[PROCESS.get().pid, folder] = step

    def placed(folder: Path, *, within: Path) -> None:
        mark_latest(folder, steps[PROCESS.get().pid, folder])

    stages = mock.patch.object(saving, "stage_markers", staged)
    with stages, mock.patch.object(saving, "place_markers", placed):
        yield


def _look_after_memory_alone(lost: Any) -> Any:
    async def found(self: Publisher) -> Any:
        return [event for event in await lost(self) if event.method != DURABLE]

    return found


def _note_nothing(_note_import: Any) -> Any:
    async def noted(*_: Any) -> None:
        return

    return noted


def _find_no_checkpoint_missing(_missing: Any) -> Any:
    return lambda _outside: iter(())


def _blame_the_file(as_error: Any) -> Any:
    def blaming(failure: BaseException, where: str) -> Any:
        error = as_error(failure, where)
        if isinstance(error, DiskFullError):
            return ConfigError(error.what, where=where)
        return error

    return blaming


def _newest_alone(export: Any) -> Any:
    def exported(*args: Any, **options: Any) -> Any:
        return export(*args, **{**options, "checkpoints": "newest"})

    return exported


BUGS = (
    Bug(
        "an archive holds the newest checkpoint alone",
        "kept files",
        instead(archive, "export_experiment", _newest_alone),
        within_seeds=200,
    ),
    Bug(
        "a full disk is taken for a fault of the experiment",
        "unpaused",
        instead(process, "_as_error", _blame_the_file),
        within_seeds=200,
    ),
    Bug(
        "verify misses no checkpoint",
        "folder put back",
        instead(outside_files, "missing_checkpoints", _find_no_checkpoint_missing),
        within_seeds=200,
    ),
    Bug(
        "an import forgets what the export left out",
        "moved",
        instead(experiment, "note_import", _note_nothing),
    ),
    Bug(
        "a woken trainer removes what its successor announced",
        "readable",
        _remove_what_a_successor_announced,
        mode="zombies",
        within_seeds=200,
    ),
    Bug(
        "weights that are gone from the disk are not published again",
        "liveness",
        instead(Publisher, "_lost", _look_after_memory_alone),
        within_seeds=200,
    ),
    Bug("a woken trainer moves the marker back", "marked", _mark_in_place, mode="zombies", within_seeds=200),
)
