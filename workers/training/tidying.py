"""Tidying after earlier trainers: what they left is taken from them, undone or removed before it is believed (rule
2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rftd.ops import faults
from rftd.ops.errors import DataError
from rftd.ops.logs import Logger
from rftd.storage.files.checkpoints import misses_its_folder, place_markers, put_back, stage_markers
from rftd.storage.files.own_places import is_own_checkpoint
from rftd.storage.files.service_state import PATH as SERVICE_STATE
from rftd.storage.files.service_state import ServiceState, names_service
from rftd.storage.files.unreferenced import (
    OF_ONE_TRAINER,
    Unreferenced,
    ours,
    referenced_by,
    stage_folders,
    unreferenced,
    work_folders,
)
from rftd.storage.files.workplace import Workplace
from rftd.streams.events.checkpoint import FileRef
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.role import RoleLease
from rftd.streams.spec.spec import ExperimentSpec


async def tidy(lease: RoleLease, state: RunState, spec: ExperimentSpec, log: Logger) -> list[ServiceState]:
    """Removes what trainers before this one left and no event names, and puts back what one does.

    Returns the states at services that what was removed had named, and that no checkpoint names. Markers that name a
    folder which is gone are mended. Raises FencedError if a successor has come: then nothing of its
    files was touched.
    """
    places = [Workplace(folder, lease.writer.epoch) for folder in sorted(work_folders(spec))]
    for path in await asyncio.to_thread(_take_over, places, spec, state):
        log.warning("file.put_back", path=str(path))
    found = await asyncio.to_thread(_found, spec, state, lease.writer.epoch)
    faults.point("workplace.after_listing")
    for each in found:
        log.info("garbage.removed", path=each.path, size_bytes=each.size_bytes, reason=each.why)
    taken = [each for each in places if each.path.is_dir()]
    states = await asyncio.to_thread(_states_in, [*(Path(each.path) for each in found), *(each.path for each in taken)])
    named = await asyncio.to_thread(lambda: named_states(_folders(spec, state)))
    await discard(lease, [Path(each.path) for each in found], [each.folder for each in taken])
    await _mend_markers(lease, state, spec)
    kept = {each.path for each in named}
    return [each for each in states if each.path not in kept]


def named_states(folders: Iterable[Path]) -> list[ServiceState]:
    """The states at services that the files of these checkpoints name. Reads files: call it off the loop."""
    found = []
    for folder in folders:
        if names_service(folder):
            # A damaged file names nothing: its state stays at the service, where nobody of ours finds it.
            with suppress(DataError):
                found.append(ServiceState.read(folder))
    return found


def _states_in(paths: Iterable[Path]) -> list[ServiceState]:
    """Those of checkpoints anywhere below some folders."""
    inside = (each.parents[1] for path in paths for each in path.rglob(f"*/{SERVICE_STATE}"))
    return named_states({*paths, *inside})


async def discard(lease: RoleLease, paths: Sequence[Path], taken_over: Sequence[Path] = ()) -> None:
    """Removes files and folders, and what was taken over in some folders.

    Raises FencedError if a successor has come, everything being where it was or where that one finds it.
    """
    folders = dict.fromkeys((*taken_over, *(path.parent for path in paths)))
    places = {folder: Workplace(folder, lease.writer.epoch) for folder in folders}
    if not places:
        return
    # The workplaces are made before the lease is confirmed: between that and a rename nothing may happen that takes
    # time.
    await asyncio.to_thread(_open, places.values())
    # No fence can undo a rename. Confirmed before it, a process that was replaced touches nothing; confirmed after it,
    # one that was replaced in between leaves what it took to its successor, who puts it back.
    await lease.confirm()
    for path in paths:
        await asyncio.to_thread(places[path.parent].discard, [path])
    await lease.confirm()
    for place in places.values():
        await asyncio.to_thread(place.close)


def _open(places: Iterable[Workplace]) -> None:
    for place in places:
        place.open()


def _folders(spec: ExperimentSpec, state: RunState) -> list[Path]:
    """The folders of its checkpoints, but for those that lie where no trainer of its saves one."""
    paths = (event.path for event in state.checkpoints.values())
    return [Path(path) for path in paths if is_own_checkpoint(spec, path)]


def _take_over(places: Sequence[Workplace], spec: ExperimentSpec, state: RunState) -> list[Path]:
    kept = referenced_by(state)
    # Weights have no list of files in their event, checkpoints have: only these can be verified before they are put
    # back.
    wanted: dict[str, tuple[FileRef, ...]] = dict.fromkeys(kept.weights, ())
    wanted |= {checkpoint.path: checkpoint.files for checkpoint in state.checkpoints.values()}
    found = [path for place in places for path in place.take_over(wanted)]
    for path in _folders(spec, state):
        put_back(path)
    return found


def _found(spec: ExperimentSpec, state: RunState, epoch: int) -> list[Unreferenced]:
    """The files that only trainers before this one can have written, and that no event names."""
    # Only lower epochs: what a successor has begun to write is no event's yet either.
    theirs = [each for each in ours(spec) if each.kind in OF_ONE_TRAINER and each.epoch < epoch]
    return list(unreferenced(theirs, referenced_by(state), before_ns=1 << 63))


async def _mend_markers(lease: RoleLease, state: RunState, spec: ExperimentSpec) -> None:
    """Lets markers that name a folder which is gone name the newest that is there."""
    for folder in sorted(stage_folders(spec)):
        newest = await asyncio.to_thread(_unmarked, folder, state)
        if newest is not None:
            place = Workplace(folder, lease.writer.epoch)
            await asyncio.to_thread(place.open)
            await asyncio.to_thread(stage_markers, folder, newest, within=place.path)
            await lease.confirm()
            await asyncio.to_thread(place_markers, folder, within=place.path)
            await lease.confirm()
            await asyncio.to_thread(place.close)


def _unmarked(folder: Path, state: RunState) -> int | None:
    """The step that the markers are to name, if they name a folder that is gone."""
    if not misses_its_folder(folder):
        return None
    committed = [each for each in state.checkpoints.values() if Path(each.path).parent == folder]
    there = [each.stage_step for each in committed if Path(each.path).is_dir()]
    return there[-1] if there else None
