"""`Collector`: removes what no event names from the folders of experiments that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from rftd.daemon.run.registry import Entry
from rftd.daemon.serve.patience import AWAY
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.logs import Logger
from rftd.storage.files.checkpoints import mend_markers, misses_its_folder
from rftd.storage.files.unreferenced import (
    GRACE_S,
    LEFT_BEHIND,
    ours,
    referenced_by,
    referenced_in,
    remove,
    remove_empty_memory,
    stage_folders,
    unreferenced,
)
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import RoleLease
from rftd.streams.spec.spec import ExperimentSpec


class Collector:
    """Does again what a run does at its end, in case a crash came between: nobody will take the experiment up again.

    An experiment that has not ended is left to its trainer, which is alone with its files when it takes them up.
    """

    def __init__(
        self,
        log: EventLog,
        entries: Callable[[], Mapping[UUID, Entry]],
        folders: asyncio.Lock,
        *,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`folders` is held while files are removed: nobody archives, restores or removes meanwhile."""
        self._log = log
        self._entries = entries
        self._folders = folders
        self._clock = clock
        self._logger = logger

    async def collect(self, *, every: bool) -> int:
        """The bytes that were freed. Unless `every`, only folders are searched whose last tidying was cut off."""
        freed = 0
        for entry in list(self._entries().values()):
            if entry.spine.ended and entry.spine.kept is Kept.HERE:
                try:
                    freed += await self._collect(entry, every=every)
                # The log is away for all of them: the caller waits and begins anew. Swallowed here, every folder
                # would ask it once more.
                except AWAY:
                    raise
                except (OSError, RftdError) as error:  # one folder that cannot be read keeps no other from being tidied
                    self._logger.warning("garbage.failed", name=entry.name, path=entry.job_dir, reason=str(error))
        return freed

    async def _collect(self, entry: Entry, *, every: bool) -> int:
        await asyncio.to_thread(remove_empty_memory, entry.spec)
        found = await asyncio.to_thread(ours, entry.spec)
        # A look costs one listing; reading the log for the names of artifacts costs every record of the experiment.
        left = any(each.kind in LEFT_BEHIND for each in found) or await asyncio.to_thread(_mismarked, entry.spec)
        if not found or not (every or left):
            return 0
        kept = await referenced_in(self._log, entry.id, artifacts=any(each.kind == "artifact" for each in found))
        now_ns = self._clock.now_ns()
        # Whatever was last written before the end is its own workers', who have left. Younger files get the grace
        # period, for a worker on another machine that was given up may still wake and name what it wrote.
        before_ns = max(entry.spine.status_ns, now_ns - int(GRACE_S * 1e9))
        async with self._folders:
            # Looked at again under the lock: between the first look and here a command may have archived or removed
            # the experiment, and its folder may be somebody else's by now.
            if entry.spine.kept is not Kept.HERE:
                return 0
            freed = 0
            found = await asyncio.to_thread(ours, entry.spec)
            for each in unreferenced(found, kept, before_ns=before_ns, now_ns=now_ns):
                self._logger.info("garbage.removed", path=each.path, size_bytes=each.size_bytes, reason=each.why)
                await asyncio.to_thread(remove, [each.path])
                freed += each.size_bytes
            await asyncio.to_thread(_mend_markers, entry.spec, kept.checkpoints)
            return freed


async def tidy(log: EventLog, state: RunState, lease: RoleLease, *, clock: Clock, logger: Logger) -> None:
    """Removes what no event of an ended run names, now that all is said; while a worker lives, it may be its own.

    Markers that named a checkpoint which was removed name the newest of those that stay.
    """
    spec = state.spine.spec
    if spec is None or state.roster.live:
        return
    found = await asyncio.to_thread(ours, spec)
    kept = referenced_by(state)
    if any(each.kind == "artifact" for each in found):  # no fold knows them all
        kept = await referenced_in(log, state.experiment, artifacts=True)
    await lease.confirm()  # after it looked: the folders are a successor's, if there is one
    now_ns = clock.now_ns()
    for each in unreferenced(found, kept, before_ns=now_ns, now_ns=now_ns):
        logger.info("garbage.removed", path=each.path, size_bytes=each.size_bytes, reason=each.why)
        await asyncio.to_thread(remove, [each.path])
    await asyncio.to_thread(remove_empty_memory, spec)
    await asyncio.to_thread(_mend_markers, spec, kept.checkpoints)


def _mend_markers(spec: ExperimentSpec, checkpoints: Collection[str]) -> None:
    for folder in sorted(stage_folders(spec)):
        mend_markers(folder, checkpoints)


def _mismarked(spec: ExperimentSpec) -> bool:
    """True if a marker names a folder that is gone: its tidying was cut off."""
    return any(misses_its_folder(folder) for folder in stage_folders(spec))
