"""`Collector`: removes files without an event naming them from the folders of ended experiments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from rftd.daemon.run.registry import Entry
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.logs import Logger
from rftd.storage.files.checkpoints import mend_markers, misses_its_folder
from rftd.storage.files.unreferenced import (
    GRACE_S,
    TRANSIENT_KINDS,
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
    """Deletes files named by no event from folders of ended experiments, in case a crash prevented the clean-up at a
    run's end.

    Files of an experiment before its end are not touched: after a restart, its trainer cleans up.
    """

    def __init__(
        self,
        log: EventLog,
        experiments: Callable[[], Mapping[UUID, Entry]],
        folders: asyncio.Lock,
        *,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`folders` is held during removals, to exclude archiving, restoring and removing."""
        self._log = log
        self._experiments = experiments
        self._folders = folders
        self._clock = clock
        self._logger = logger

    async def collect(self, *, every: bool) -> int:
        """Deletes unreferenced files, and returns the freed bytes; unless `every`, only in folders with an interrupted
        clean-up.
        """
        freed = 0
        experiments = list(self._experiments().values())
        # One that never started leaves its folder to the next experiment of its name.
        owners = {entry.job_dir: entry.id for entry in experiments}
        for entry in experiments:
            if entry.spine.ended and entry.spine.kept is Kept.HERE and owners[entry.job_dir] == entry.id:
                try:
                    freed += await self._collect(entry, every=every)
                # The log is away for all experiments: the caller waits and begins anew. Swallowed here, the error would
                # recur for every folder.
                except UNREACHABLE_ERRORS:
                    raise
                except (OSError, RftdError) as error:  # one unreadable folder does not prevent tidying the others
                    self._logger.warning("garbage.failed", name=entry.name, path=entry.job_dir, reason=str(error))
        return freed

    async def _collect(self, entry: Entry, *, every: bool) -> int:
        """Deletes the unreferenced files of one experiment, and returns the freed bytes; unless `every`, only after an
        interrupted clean-up.
        """
        await asyncio.to_thread(remove_empty_memory, entry.spec)
        files = await asyncio.to_thread(ours, entry.spec)
        # A listing is cheap; reading the log for the names of artifacts costs every record of the experiment.
        interrupted = any(file.kind in TRANSIENT_KINDS for file in files) or await asyncio.to_thread(
            _mismarked, entry.spec
        )
        if not files or not (every or interrupted):
            return 0
        referenced = await referenced_in(self._log, entry.id, artifacts=any(file.kind == "artifact" for file in files))
        now_ns = self._clock.now_ns()
        # Files last written before the end come from the experiment's own workers, already gone. Younger files get the
        # grace period: a worker given up on another machine may still wake and name its files.
        before_ns = max(entry.spine.status_ns, now_ns - int(GRACE_S * 1e9))
        async with self._folders:
            # Checked again under the lock: since the first look, a command may have archived or removed the experiment,
            # and the folder may belong to another one by now.
            if entry.spine.kept is not Kept.HERE:
                return 0
            freed = 0
            files = await asyncio.to_thread(ours, entry.spec)
            for unused_file in unreferenced(files, referenced, before_ns=before_ns, now_ns=now_ns):
                self._logger.info(
                    "garbage.removed", path=unused_file.path, size_bytes=unused_file.size_bytes, reason=unused_file.why
                )
                await asyncio.to_thread(remove, [unused_file.path])
                freed += unused_file.size_bytes
            await asyncio.to_thread(_mend_markers, entry.spec, referenced.checkpoints)
            return freed


async def tidy(log: EventLog, state: RunState, lease: RoleLease, *, clock: Clock, logger: Logger) -> None:
    """Deletes the files of an ended run that no event names; does nothing while a worker is alive, because the files
    may be in use.

    Marker files naming a deleted checkpoint then name the newest remaining one.
    """
    spec = state.spine.spec
    if spec is None or state.roster.live:
        return
    files = await asyncio.to_thread(ours, spec)
    referenced = referenced_by(state)
    if any(file.kind == "artifact" for file in files):  # no fold has the names of all artifacts
        referenced = await referenced_in(log, state.experiment, artifacts=True)
    await lease.confirm()  # after the listing: the folders belong to a successor, if one exists
    now_ns = clock.now_ns()
    for unused_file in unreferenced(files, referenced, before_ns=now_ns, now_ns=now_ns):
        logger.info("garbage.removed", path=unused_file.path, size_bytes=unused_file.size_bytes, reason=unused_file.why)
        await asyncio.to_thread(remove, [unused_file.path])
    await asyncio.to_thread(remove_empty_memory, spec)
    await asyncio.to_thread(_mend_markers, spec, referenced.checkpoints)


def _mend_markers(spec: ExperimentSpec, checkpoints: Collection[str]) -> None:
    """Points the markers of each stage's folder at existing checkpoints."""
    for folder in sorted(stage_folders(spec)):
        mend_markers(folder, checkpoints)


def _mismarked(spec: ExperimentSpec) -> bool:
    """True if a marker file of a stage names a missing checkpoint folder, because an earlier clean-up was
    interrupted.
    """
    return any(misses_its_folder(folder) for folder in stage_folders(spec))
