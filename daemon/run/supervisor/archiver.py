"""`Archiver`: archives, restores and removes ended experiments; finishes operations interrupted by a crash."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.daemon.cli.output.quantity import size
from rftd.daemon.run.consequence import Consequence
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.payloads import living_forks
from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, NotFoundError, RftdError
from rftd.ops.ids import derive
from rftd.ops.logs import Logger
from rftd.ops.releases import release_of
from rftd.storage.portable.archive import bring_payloads_back, clear, clearable, fresh, read_archive, write_archive
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Kept
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog

FOLDER: Final = "archives"
"""Name of the default folder of archives, next to an experiment's folder."""


class Archiver:
    """Archives, restores and removes experiments, one command at a time: appends the event first, then changes the
    files.

    Callers bring `experiments` up to date before a command.
    """

    def __init__(
        self,
        log: EventLog,
        experiments: Callable[[], Mapping[UUID, Entry]],
        writer: Writer,
        archives: Path | None = None,
        *,
        rewriting: asyncio.Lock,
        loss_check: LossCheck,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`rewriting` is locked while payloads are dropped from the log or restored; `archives` is the default folder
        of archives.

        `loss_check` knows experiments with lost events (files named by lost events would be missing in an archive, and
        deleted), and folders owned by other logs.
        """
        self._loss_check = loss_check
        self._rewriting = rewriting
        self._log = log
        self._experiments = experiments
        self._writer = writer
        self.archives = archives
        self._clock = clock
        self._logger = logger

    async def archive(self, entry: Entry, to: str, id: UUID, *, key: UUID | None = None, by: str = "") -> Position:
        """Moves the files of an ended experiment into a file (`to`, or a new file below the data folder). See
        `Operations.archive`. The event gets the id `id`, and records the request `key`.
        """
        await self._check_archivable(entry)
        path = self._path(entry, to)
        if not to:
            await asyncio.to_thread(fresh, path)
        # File, event, deletion, in this order: a crash before the event leaves an unreferenced file, a crash after it
        # leaves files for `finish` to remove. Any other order could lose the only copy.
        archive_file = await write_archive(
            self._log, entry.id, path, release=release_of("rftd"), clock=self._clock, event=id
        )
        faults.point("archive.after_file")
        position = await self._append(entry, msgspec.structs.replace(archive_file.event, by=by), id, key)
        faults.point("archive.after_append")
        freed = await asyncio.to_thread(clear, entry.spec, logs=False)
        notes = "; ".join(archive_file.notes)
        self._logger.info("experiment.archived", name=entry.name, path=str(path), freed_bytes=freed, notes=notes)
        return position

    async def restore(self, entry: Entry, source: str, id: UUID, *, key: UUID | None = None, by: str = "") -> Position:
        """Puts archived files back, from `source` if the archive has moved. See `Operations.restore`. The event gets
        the id `id`, and records the request `key`.
        """
        archived = await self._restorable(entry)
        path = Path(source or archived.path)
        # Files before the event: an experiment recorded as restored must be whole.
        files = await read_archive(entry.id, entry.spec, path, archived)
        faults.point("restore.after_files")
        # The payload keeper drops payloads of archived experiments: it must not look between their return and the
        # restoring event.
        async with self._rewriting:
            back = await bring_payloads_back(self._log, path)
            position = await self._append(entry, life.ExperimentRestored(path=str(path), by=by), id, key)
        self._logger.info("experiment.restored", name=entry.name, files=files, payloads=back.records)
        return position

    async def remove(
        self, entry: Entry, reason: str, archive: bool, id: UUID, *, key: UUID | None = None, by: str = ""
    ) -> Position:
        """Deletes an ended experiment's files (moves the files into an archive first if `archive`) and frees the name.
        See `Operations.remove`. The event gets the id `id`, and records the request `key`.
        """
        event = life.ExperimentRemoved(reason=reason, by=by)
        await self._check_removable(entry)
        if archive and entry.spine.kept is Kept.HERE:
            # The id is derived from the removal's id, so that a removal repeated after a crash archives once.
            await self.archive(entry, "", derive(id, "archive"), by=by)
        position = await self._append(entry, event, id, key)
        # Event before deletion: the files of an experiment not recorded as removed must be whole, those of a removed
        # one may be partly gone.
        faults.point("removal.after_append")
        freed = 0 if self._shared(entry) else await asyncio.to_thread(clear, entry.spec, logs=True)
        self._logger.info("experiment.removed", name=entry.name, freed_bytes=freed)
        return position

    async def foresee_archive(self, entry: Entry, to: str) -> Consequence:
        """Returns the consequence of `archive`; changes nothing. Raises as `archive`."""
        await self._check_archivable(entry)
        path = self._path(entry, to)
        is_present = await asyncio.to_thread(path.exists)
        if to and is_present:
            raise ConflictError("the file exists already", where=str(path), fix="choose another name with --to")
        files = await asyncio.to_thread(clearable, entry.spec, logs=False)
        freed = sum(file.size_bytes for file in files)
        sentence = f"moves {len(files)} files of {size(freed)} into {path}; its events and logs stay, restore undoes it"
        return Consequence(name=entry.name, sentence=sentence, figures={"files": len(files), "freed_bytes": freed})

    async def foresee_restore(self, entry: Entry, source: str) -> Consequence:
        """Returns the consequence of `restore`; changes nothing. The archive's digest is not compared. Raises
        NotFoundError for a missing archive, else as `restore`.
        """
        archived = await self._restorable(entry)
        path = Path(source or archived.path)
        if not await asyncio.to_thread(path.is_file):
            raise NotFoundError("no archive is there", where=str(path), fix="name it with --from")
        sentence = (
            f"puts the files in {path} back, an archive of {size(archived.size_bytes)}, after comparing its digest"
        )
        return Consequence(name=entry.name, sentence=sentence, figures={"archive_bytes": archived.size_bytes})

    async def foresee_removal(self, entry: Entry, archive: bool) -> Consequence:
        """Returns the consequence of `remove`; changes nothing. Raises as `remove`."""
        await self._check_removable(entry)
        files = [] if self._shared(entry) else await asyncio.to_thread(clearable, entry.spec, logs=True)
        freed = sum(file.size_bytes for file in files)
        archived = entry.spine.archive if entry.spine.kept is Kept.ARCHIVED else None
        if archive and entry.spine.kept is Kept.HERE:
            await self._check_archivable(entry)
            first = f"archives it in {self._path(entry, '')} first, then "
        else:
            first = "" if archived is None else f"leaves the archive {archived.path}, and "
        sentence = f"{first}deletes {len(files)} files of {size(freed)} for good; its name is free, its events stay"
        return Consequence(name=entry.name, sentence=sentence, figures={"files": len(files), "freed_bytes": freed})

    async def _check_archivable(self, entry: Entry) -> None:
        """Raises ConflictError, OtherLogError or LogLossError if the experiment cannot be archived now."""
        self._check(entry, "archived", Kept.HERE)
        self._check_no_living_forks(entry)
        await self._check_owned(entry)
        if (lost := self._loss_check.lost_files_error(entry)) is not None:
            raise lost

    async def _restorable(self, entry: Entry) -> life.ExperimentArchived:
        """Returns the event of the experiment's archiving. Raises ConflictError or OtherLogError if it cannot be
        restored now.
        """
        self._check(entry, "restored", Kept.ARCHIVED)
        await self._check_owned(entry)
        assert entry.spine.archive is not None
        return entry.spine.archive

    async def _check_removable(self, entry: Entry) -> None:
        """Raises ConflictError or OtherLogError if the experiment cannot be removed now."""
        self._check(entry, "removed", Kept.HERE, Kept.ARCHIVED)
        self._check_no_living_forks(entry)
        await self._check_owned(entry)

    def _path(self, entry: Entry, to: str) -> Path:
        """Returns the path of a new archive: `to`, or a file in the folder of archives."""
        archives = self.archives or Path(entry.job_dir).parent / FOLDER
        return Path(to) if to else archives / f"{entry.name}-{entry.id.hex[-8:]}.rftd"

    async def finish(self) -> None:
        """Deletes the files of experiments recorded as archived or removed, left behind by a crash between event and
        deletion.
        """
        for experiment in self._experiments().values():
            if experiment.spine.kept is not Kept.HERE and not self._shared(experiment):
                try:
                    await self._check_owned(experiment)
                    freed = await asyncio.to_thread(clear, experiment.spec, logs=experiment.spine.kept is Kept.REMOVED)
                except (OSError, RftdError) as error:  # leftovers of one experiment do not keep the others from running
                    self._logger.warning("experiment.not_cleared", name=experiment.name, reason=str(error))
                    continue
                if freed:
                    self._logger.info("experiment.cleared", name=experiment.name, freed_bytes=freed)

    async def _check_owned(self, entry: Entry) -> None:
        """Raises OtherLogError for an experiment with a folder owned by another log."""
        if (error := await asyncio.to_thread(self._loss_check.claims.look, entry)) is not None:
            raise error

    def _shared(self, entry: Entry) -> bool:
        """True if another experiment now uses the folder, as after a removal, which frees the name."""
        return any(
            experiment.job_dir == entry.job_dir
            and experiment.id != entry.id
            and experiment.spine.kept is not Kept.REMOVED
            for experiment in self._experiments().values()
        )

    def _check(self, entry: Entry, verb: str, *allowed: Kept) -> None:
        """Raises ConflictError unless the experiment has ended and its files are in one of the `allowed` states; `verb`
        is the participle of the command for the message.
        """
        if entry.status is None or not entry.status.ended:
            raise ConflictError(
                f"{entry.name} is {entry.status}; only ended experiments can be {verb}",
                fix=f"wait for its end, or cancel it: rftd cancel {shlex.quote(entry.name)}",
            )
        storage = entry.spine.kept
        if storage in allowed:
            return
        where = entry.spine.archive.path if storage is Kept.ARCHIVED and entry.spine.archive is not None else None
        states = {Kept.HERE: "is not archived", Kept.ARCHIVED: "is archived", Kept.REMOVED: "was removed"}
        raise ConflictError(f"{entry.name} {states[storage]}", where=where, fix="see rftd ls --all")

    def _check_no_living_forks(self, entry: Entry) -> None:
        """Raises ConflictError if living forks need the files: a fork begins with a parent's checkpoint, and reads the
        shared experiences' artifacts.
        """
        living = list(living_forks(self._experiments(), entry.id))
        if living:
            names = ", ".join(f"{fork.name} ({fork.status})" for fork in living[:5])
            more = f" and {len(living) - 5} more" if len(living) > 5 else ""
            raise ConflictError(
                f"{names}{more}, forked from {entry.name}, may need its files",
                fix=f"wait until they end, or cancel them: rftd cancel {shlex.quote(living[0].name)}",
            )

    async def _append(self, entry: Entry, event: Event, id: UUID, key: UUID | None) -> Position:
        """Appends an event of the experiment under the id `id`, recording the request `key`; returns its position."""
        draft = self._writer.draft(event, experiment=entry.id, id=id, correlation=key)
        return (await self._log.append([draft]))[0]
