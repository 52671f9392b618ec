"""`FolderClaims`: folders of experiments that belong to another log, where this daemon writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from rftd.daemon.run.registry import Entry
from rftd.daemon.serve.log_identity import is_gone
from rftd.ops.durable import make_durable_folder
from rftd.ops.errors import OtherLogError
from rftd.ops.logs import Logger
from rftd.storage.files.folder_owner import LogIdentity, read_owner, write_owner
from rftd.streams.folds.spine import Kept

EVERY: Final = "*"
"""Stands for every experiment whose folder is another log's; no experiment has this name."""
LOOK_S: Final = 2.0
"""The least time between two looks of a run into its folder: another log may have been given it."""


class FolderClaims:
    """The experiments that this log may not go on with, since another log has their folders.

    A log without an identity claims nothing, and is kept from nothing.
    """

    def __init__(
        self,
        own: LogIdentity | None,
        *,
        logger: Logger | None,
        is_gone: Callable[[LogIdentity], bool] = is_gone,
    ) -> None:
        """Without a `logger` nothing is written."""
        self.own: Final = own
        """The log of this daemon."""
        self._logger = logger
        self._is_gone = is_gone
        self.refused: Final[dict[UUID, OtherLogError]] = {}
        """The reason for each experiment that must not go on here."""

    async def claim_all(self, entries: Iterable[Entry]) -> None:
        """Takes the folders that are there and nobody's; notes those of other logs in `refused`."""
        here = [entry for entry in entries if entry.spine.kept is Kept.HERE]
        if self.own is not None:
            await asyncio.to_thread(self._claim_readable, here)

    def claim(self, entry: Entry) -> OtherLogError | None:
        """The reason why nothing may be written to the experiment's folder; None if it is this log's by now. Blocks."""
        error = self.look(entry)
        if error is None and self.own is not None:
            self._write(Path(entry.job_dir), self.own)
        return error

    def begin(self, entry: Entry) -> OtherLogError | None:
        """Claims the folder for a run that takes the experiment up, and makes it for the first one. Blocks.

        Who makes the folder later, with the first log or checkpoint in it, leaves a moment in which a copy of the log
        could take it. A folder that an experiment had and has no more is not made anew: its disk may be away.
        """
        if self.own is not None and not entry.fence:
            with suppress(OSError):  # the workers meet it, and tell of it
                make_durable_folder(Path(entry.job_dir))
        return self.claim(entry)

    def look(self, entry: Entry) -> OtherLogError | None:
        """As `claim`, without taking the folder."""
        if self.own is None:
            return None
        owner = read_owner(Path(entry.job_dir))
        if owner is None or self.own.owns(owner) or self._is_gone(owner):
            self.refused.pop(entry.id, None)
            return None
        error = self.refused[entry.id] = _error(entry, owner, self.own)
        return error

    def take_over(self, entry: Entry) -> None:
        """Gives the folder to this log, whosever it is. Raises OSError. Blocks."""
        if self.own is None:
            return
        folder = Path(entry.job_dir)
        owner = read_owner(folder)
        write_owner(folder, self.own)
        self.refused.pop(entry.id, None)
        if self._logger is not None and owner is not None:
            self._logger.warning("folder.taken_over", experiment=entry.name, path=entry.job_dir, former=owner.place)

    def among(self, entries: Mapping[UUID, Entry]) -> dict[UUID, Entry]:
        """The entries whose folders are not another log's."""
        return {id: entry for id, entry in entries.items() if id not in self.refused}

    def _claim_readable(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            with suppress(OSError):  # its own run, if it has one, meets it again before it writes
                self.claim(entry)

    def _write(self, folder: Path, own: LogIdentity) -> None:
        owner = read_owner(folder)
        if self._logger is None or not folder.is_dir() or (owner is not None and owner.id == own.id):
            return
        try:
            write_owner(folder, own)
        except OSError as error:  # whoever writes there next meets it, and tells of it
            self._logger.warning("folder.not_claimed", path=str(folder), reason=error.strerror or str(error))


def _error(entry: Entry, owner: LogIdentity, own: LogIdentity) -> OtherLogError:
    on = f" on {owner.host}" if owner.host and owner.host != own.host else ""
    return OtherLogError(
        f"{entry.job_dir} belongs to the log of {owner.place}{on}: this one, of {own.place}, is a copy of it, or a "
        "backup that is served beside it, and would write over its files",
        where=entry.job_dir,
        fix=f"go on there; or, if that log is not to be used any more: rftd serve --take-over {entry.name} (for every "
        f"experiment, as after a move to another machine: --take-over '{EVERY}')",
    )
