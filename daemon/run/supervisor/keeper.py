"""`Keeper`: archives, restores and removes experiments that have ended; finishes what a crash cut off."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.hearing import Hearing
from rftd.daemon.run.supervisor.payloads import living_forks
from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, RftdError
from rftd.ops.ids import derive
from rftd.ops.logs import Logger
from rftd.ops.releases import release_of
from rftd.storage.portable.archive import bring_payloads_back, clear, fresh, read_archive, write_archive
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Kept
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog

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
        rewriting: asyncio.Lock,
        hearing: Hearing,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`rewriting` is held while payloads are dropped, or brought back.

        `hearing` says why no event may name an experiment's files any more, which would be in no archive, and removed,
        and why its folder is another log's.
        """
        self._hearing = hearing
        self._rewriting = rewriting
        self._log = log
        self._entries = entries
        self._writer = writer
        self.archives = archives
        self._clock = clock
        self._logger = logger

    async def archive(self, entry: Entry, to: str, id: UUID, *, key: UUID | None = None, by: str = "") -> Position:
        """See `Operations.archive`; the event gets this id, for this key."""
        self._check(entry, "archived", Kept.HERE)
        self._not_forked(entry)
        await self._own(entry)
        if (lost := self._hearing.bereft(entry)) is not None:
            raise lost
        archives = self.archives or Path(entry.job_dir).parent / FOLDER
        path = Path(to) if to else archives / f"{entry.name}-{entry.id.hex[-8:]}.rftd"
        if not to:
            await asyncio.to_thread(fresh, path)
        # File, event, deletion, in this order: a crash before the event leaves a file that nobody refers to, a crash
        # after it leaves files that `finish` removes. The other way round either would lose the only copy.
        written = await write_archive(
            self._log, entry.id, path, release=release_of("rftd"), clock=self._clock, event=id
        )
        faults.point("archive.after_file")
        position = await self._append(entry, msgspec.structs.replace(written.event, by=by), id, key)
        faults.point("archive.after_append")
        freed = await asyncio.to_thread(clear, entry.spec, logs=False)
        notes = "; ".join(written.notes)
        self._logger.info("experiment.archived", name=entry.name, path=str(path), freed_bytes=freed, notes=notes)
        return position

    async def restore(self, entry: Entry, source: str, id: UUID, *, key: UUID | None = None, by: str = "") -> Position:
        """See `Operations.restore`; the event gets this id, for this key."""
        self._check(entry, "restored", Kept.ARCHIVED)
        await self._own(entry)
        archived = entry.spine.archive
        assert archived is not None
        path = Path(source or archived.path)
        # Files before the event: an experiment that the log calls restored must be whole.
        files = await read_archive(entry.id, entry.spec, path, archived)
        faults.point("restore.after_files")
        # The payload keeper drops the payloads of what is archived; between their return and the event that says so
        # it must not look.
        async with self._rewriting:
            back = await bring_payloads_back(self._log, path)
            position = await self._append(entry, life.ExperimentRestored(path=str(path), by=by), id, key)
        self._logger.info("experiment.restored", name=entry.name, files=files, payloads=back.records)
        return position

    async def remove(
        self, entry: Entry, reason: str, archive: bool, id: UUID, *, key: UUID | None = None, by: str = ""
    ) -> Position:
        """See `Operations.remove`; the event gets this id, for this key."""
        event = life.ExperimentRemoved(reason=reason, by=by)
        self._check(entry, "removed", Kept.HERE, Kept.ARCHIVED)
        self._not_forked(entry)
        await self._own(entry)
        if archive and entry.spine.kept is Kept.HERE:
            # The id follows from the removal's, so that a removal which is repeated after a crash archives once.
            await self.archive(entry, "", derive(id, "archive"), by=by)
        position = await self._append(entry, event, id, key)
        # Event before deletion: files of an experiment that is not removed must be whole, those of one that is may be
        # half gone.
        faults.point("removal.after_append")
        freed = 0 if self._shared(entry) else await asyncio.to_thread(clear, entry.spec, logs=True)
        self._logger.info("experiment.removed", name=entry.name, freed_bytes=freed)
        return position

    async def finish(self) -> None:
        """Removes files that the log says are archived or removed: a crash came between event and deletion."""
        for entry in self._entries().values():
            if entry.spine.kept is not Kept.HERE and not self._shared(entry):
                try:
                    await self._own(entry)
                    freed = await asyncio.to_thread(clear, entry.spec, logs=entry.spine.kept is Kept.REMOVED)
                except (OSError, RftdError) as error:  # what remains of one keeps no other from running
                    self._logger.warning("experiment.not_cleared", name=entry.name, reason=str(error))
                    continue
                if freed:
                    self._logger.info("experiment.cleared", name=entry.name, freed_bytes=freed)

    async def _own(self, entry: Entry) -> None:
        """Raises OtherLogError for an experiment whose folder is another log's."""
        if (error := await asyncio.to_thread(self._hearing.claims.look, entry)) is not None:
            raise error

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
                fix=f"wait for its end, or cancel it: rftd cancel {shlex.quote(entry.name)}",
            )
        kept = entry.spine.kept
        if kept in wanted:
            return
        where = entry.spine.archive.path if kept is Kept.ARCHIVED and entry.spine.archive is not None else None
        states = {Kept.HERE: "is not archived", Kept.ARCHIVED: "is archived", Kept.REMOVED: "was removed"}
        raise ConflictError(f"{entry.name} {states[kept]}", where=where, fix="see rftd ls --all")

    def _not_forked(self, entry: Entry) -> None:
        """A fork begins with a checkpoint of its parent's, and reads the shared experiences' artifacts."""
        living = list(living_forks(self._entries(), entry.id))
        if living:
            names = ", ".join(f"{each.name} ({each.status})" for each in living[:5])
            more = f" and {len(living) - 5} more" if len(living) > 5 else ""
            raise ConflictError(
                f"{names}{more}, forked from {entry.name}, may need its files",
                fix=f"wait until they end, or cancel them: rftd cancel {shlex.quote(living[0].name)}",
            )

    async def _append(self, entry: Entry, event: Event, id: UUID, key: UUID | None) -> Position:
        draft = self._writer.draft(event, experiment=entry.id, id=id, correlation=key)
        return (await self._log.append([draft]))[0]
