"""Clean-up of files left by earlier trainers, before anything is used: taken over, restored or deleted."""

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
    KINDS_OF_ONE_TRAINER,
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
    """Deletes earlier trainers' files named by no event, and restores files named by one.

    Returns the service states named only by deleted files. Marker files naming a missing folder are corrected. Raises
    FencedError if a successor has come: then none of the successor's files was touched.
    """
    workplaces = [Workplace(folder, lease.writer.epoch) for folder in sorted(work_folders(spec))]
    for path in await asyncio.to_thread(_take_over, workplaces, spec, state):
        log.warning("file.put_back", path=str(path))
    garbage = await asyncio.to_thread(_garbage, spec, state, lease.writer.epoch)
    faults.point("workplace.after_listing")
    for garbage_file in garbage:
        log.info("garbage.removed", path=garbage_file.path, size_bytes=garbage_file.size_bytes, reason=garbage_file.why)
    taken_over = [workplace for workplace in workplaces if workplace.path.is_dir()]
    states = await asyncio.to_thread(
        _states_in,
        [*(Path(garbage_file.path) for garbage_file in garbage), *(garbage_file.path for garbage_file in taken_over)],
    )
    named = await asyncio.to_thread(lambda: named_states(_folders(spec, state)))
    await discard(
        lease,
        [Path(garbage_file.path) for garbage_file in garbage],
        [garbage_file.folder for garbage_file in taken_over],
    )
    await _mend_markers(lease, state, spec)
    paths_in_use = {state_in_use.path for state_in_use in named}
    return [removed_state for removed_state in states if removed_state.path not in paths_in_use]


def named_states(folders: Iterable[Path]) -> list[ServiceState]:
    """Returns the service states named in these checkpoint folders. Reads files: to be called off the event loop."""
    states = []
    for folder in folders:
        if names_service(folder):
            # A damaged file names nothing: its state stays at the service, out of this project's reach.
            with suppress(DataError):
                states.append(ServiceState.read(folder))
    return states


def _states_in(paths: Iterable[Path]) -> list[ServiceState]:
    """Returns the service states of checkpoints anywhere below some folders."""
    checkpoint_folders = (state_file.parents[1] for path in paths for state_file in path.rglob(f"*/{SERVICE_STATE}"))
    return named_states({*paths, *checkpoint_folders})


async def discard(lease: RoleLease, paths: Sequence[Path], taken_over: Sequence[Path] = ()) -> None:
    """Deletes `paths`, and everything in the folders `taken_over`.

    Raises FencedError if a successor has come, with every file in its former path or within the successor's reach.
    """
    folders = dict.fromkeys((*taken_over, *(path.parent for path in paths)))
    workplaces = {folder: Workplace(folder, lease.writer.epoch) for folder in folders}
    if not workplaces:
        return
    # The workplaces are made before the lease is confirmed: between that and a rename nothing slow may happen.
    await asyncio.to_thread(_open, workplaces.values())
    # No fence can undo a rename. Confirmed before it, a replaced process touches nothing; confirmed after it, a process
    # replaced in between leaves the renamed files to its successor, which puts them back.
    await lease.confirm()
    for path in paths:
        await asyncio.to_thread(workplaces[path.parent].discard, [path])
    await lease.confirm()
    for workplace in workplaces.values():
        await asyncio.to_thread(workplace.close)


def _open(workplaces: Iterable[Workplace]) -> None:
    """Opens workplaces for deletion."""
    for workplace in workplaces:
        workplace.open()


def _folders(spec: ExperimentSpec, state: RunState) -> list[Path]:
    """Returns the folders of the experiment's checkpoints, without paths outside its trainers' folders."""
    paths = (event.path for event in state.checkpoints.values())
    return [Path(path) for path in paths if is_own_checkpoint(spec, path)]


def _take_over(workplaces: Sequence[Workplace], spec: ExperimentSpec, state: RunState) -> list[Path]:
    """Takes over earlier trainers' workplaces; returns the files put back."""
    references = referenced_by(state)
    # Events of weights list no files, events of checkpoints do: only checkpoints can be verified before they are put
    # back.
    files_by_path: dict[str, tuple[FileRef, ...]] = dict.fromkeys(references.weights, ())
    files_by_path |= {checkpoint.path: checkpoint.files for checkpoint in state.checkpoints.values()}
    restored = [path for workplace in workplaces for path in workplace.take_over(files_by_path)]
    for path in _folders(spec, state):
        put_back(path)
    return restored


def _garbage(spec: ExperimentSpec, state: RunState, epoch: int) -> list[Unreferenced]:
    """Returns the files written only by earlier trainers, and named by no event."""
    # Only lower epochs: files just begun by a successor have no event yet either.
    earlier = [file for file in ours(spec) if file.kind in KINDS_OF_ONE_TRAINER and file.epoch < epoch]
    return list(unreferenced(earlier, referenced_by(state), before_ns=1 << 63))


async def _mend_markers(lease: RoleLease, state: RunState, spec: ExperimentSpec) -> None:
    """Rewrites markers naming a missing folder, to name the newest folder present."""
    for folder in sorted(stage_folders(spec)):
        newest = await asyncio.to_thread(_unmarked, folder, state)
        if newest is not None:
            workplace = Workplace(folder, lease.writer.epoch)
            await asyncio.to_thread(workplace.open)
            await asyncio.to_thread(stage_markers, folder, newest, within=workplace.path)
            await lease.confirm()
            await asyncio.to_thread(place_markers, folder, within=workplace.path)
            await lease.confirm()
            await asyncio.to_thread(workplace.close)


def _unmarked(folder: Path, state: RunState) -> int | None:
    """Returns the newest step with a folder, if the markers of `folder` name a missing one; else None."""
    if not misses_its_folder(folder):
        return None
    committed = [checkpoint for checkpoint in state.checkpoints.values() if Path(checkpoint.path).parent == folder]
    present_steps = [checkpoint.stage_step for checkpoint in committed if Path(checkpoint.path).is_dir()]
    return present_steps[-1] if present_steps else None
