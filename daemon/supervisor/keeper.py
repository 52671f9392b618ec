"""`Keeper`: archives, restores and removes experiments that have ended; finishes what a crash cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from rftd.daemon.installed import installed_version
from rftd.daemon.supervisor.registry import Entry
from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from rftd.ops.logs import Logger
from rftd.storage.keeping import clear, fresh, read_archive, write_archive
from rftd.streams.codec import Writer
from rftd.streams.envelope import Position
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Kept
from rftd.streams.log import EventLog

FOLDER: Final = "archives"
"""Beside an experiment's folder, where nobody says where archives go."""


class Keeper:
    """Files after events: an experiment is archived or removed once the log says so, and its files go after that.

    One command at a time; the caller has brought `entries` up to date.
    """

    def __init__(
        self,
        log: EventLog,
        entries: Callable[[], Mapping[UUID, Entry]],
        writer: Writer,
        archives: Path | None = None,
        *,
        clock: Clock,
        logger: Logger,
    ) -> None:
        self._log = log
        self._entries = entries
        self._writer = writer
        self._archives = archives
        self._clock = clock
        self._logger = logger

    async def archive(self, entry: Entry, to: str, request_id: UUID) -> Position:
        """See `Operations.archive`."""
        if entry.spine.holds(request_id):
            assert entry.spine.archive is not None
            return await self._append(entry, entry.spine.archive, request_id)
        self._check(entry, "archived", Kept.HERE)
        self._not_forked(entry)
        archives = self._archives or Path(entry.job_dir).parent / FOLDER
        path = Path(to) if to else archives / f"{entry.name}-{entry.id.hex[-8:]}.rftd"
        if not to:
            await asyncio.to_thread(fresh, path)
        written = await write_archive(self._log, entry.id, path, release=installed_version(), clock=self._clock)
        faults.point("archive.after_file")
        position = await self._append(entry, written.event, request_id)
        faults.point("archive.after_append")
        freed = await asyncio.to_thread(clear, entry.spec, logs=False)
        notes = "; ".join(written.notes)
        self._logger.info("experiment.archived", name=entry.name, path=str(path), freed_bytes=freed, notes=notes)
        return position

    async def restore(self, entry: Entry, source: str, request_id: UUID) -> Position:
        """See `Operations.restore`."""
        archived = entry.spine.archive
        if not entry.spine.holds(request_id):
            self._check(entry, "restored", Kept.ARCHIVED)
            assert archived is not None
            files = await read_archive(entry.id, entry.spec, Path(source or archived.path), archived)
            faults.point("restore.after_files")
            self._logger.info("experiment.restored", name=entry.name, files=files)
        assert archived is not None
        return await self._append(entry, life.ExperimentRestored(path=source or archived.path), request_id)

    async def remove(self, entry: Entry, reason: str, archive: bool, request_id: UUID) -> Position:
        """See `Operations.remove`."""
        event = life.ExperimentRemoved(reason=reason)
        if entry.spine.holds(request_id):
            return await self._append(entry, event, request_id)
        self._check(entry, "removed", Kept.HERE, Kept.ARCHIVED)
        self._not_forked(entry)
        if archive and entry.spine.kept is Kept.HERE:
            await self.archive(entry, "", derive(request_id, "archive"))
        position = await self._append(entry, event, request_id)
        faults.point("removal.after_append")
        freed = 0 if self._shared(entry) else await asyncio.to_thread(clear, entry.spec, logs=True)
        self._logger.info("experiment.removed", name=entry.name, freed_bytes=freed)
        return position

    async def finish(self) -> None:
        """Removes files that the log says are archived or removed: a crash came between event and deletion."""
        for entry in self._entries().values():
            if entry.spine.kept is not Kept.HERE and not self._shared(entry):
                freed = await asyncio.to_thread(clear, entry.spec, logs=entry.spine.kept is Kept.REMOVED)
                if freed:
                    self._logger.info("experiment.cleared", name=entry.name, freed_bytes=freed)

    def _shared(self, entry: Entry) -> bool:
        """True if another experiment uses the folder now: the name of one that was removed is free."""
        return any(
            other.job_dir == entry.job_dir and other.id != entry.id and other.spine.kept is not Kept.REMOVED
            for other in self._entries().values()
        )

    def _check(self, entry: Entry, verb: str, *wanted: Kept) -> None:
        if entry.status is None or not entry.status.ended:
            raise ConflictError(
                f"{entry.name} is {entry.status}; only what has ended can be {verb}",
                fix=f"wait for its end, or cancel it: rftd cancel {entry.name}",
            )
        kept = entry.spine.kept
        if kept in wanted:
            return
        where = entry.spine.archive.path if kept is Kept.ARCHIVED and entry.spine.archive is not None else None
        states = {Kept.HERE: "is not archived", Kept.ARCHIVED: "is archived", Kept.REMOVED: "was removed"}
        raise ConflictError(f"{entry.name} {states[kept]}", where=where, fix="see rftd ls --all")

    def _not_forked(self, entry: Entry) -> None:
        """A fork begins with a checkpoint of its parent's, and reads the shared experiences' artifacts."""
        living = [each for each in self._entries().values() if not each.spine.ended and self._descends(each, entry.id)]
        if living:
            names = ", ".join(f"{each.name} ({each.status})" for each in living[:5])
            more = f" and {len(living) - 5} more" if len(living) > 5 else ""
            raise ConflictError(
                f"{names}{more}, forked from {entry.name}, may need its files",
                fix=f"wait until they end, or cancel them: rftd cancel {living[0].name}",
            )

    def _descends(self, entry: Entry, ancestor: UUID) -> bool:
        """True for a fork, and for a fork of a fork: its history reaches back as far."""
        entries, at = self._entries(), entry.spine.forked
        while at is not None and at.parent != ancestor:
            above = entries.get(at.parent)
            at = above.spine.forked if above is not None else None
        return at is not None

    async def _append(self, entry: Entry, event: Event, id: UUID) -> Position:
        return (await self._log.append([self._writer.draft(event, experiment=entry.id, id=id)]))[0]
