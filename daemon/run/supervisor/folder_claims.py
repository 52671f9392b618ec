"""`FolderClaims`: folders of experiments belonging to another log, where this daemon writes nothing."""

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
"""Stands for every experiment with a folder of another log; no experiment has this name."""
LOOK_S: Final = 2.0
"""Minimum seconds between two looks of a run into its folder, in case the folder was given to another log."""


class FolderClaims:
    """The experiments not to be continued by this log, because another log owns their folders.

    A log without an identity claims nothing, and is refused nothing.
    """

    def __init__(
        self,
        identity: LogIdentity | None,
        *,
        logger: Logger | None,
        is_gone: Callable[[LogIdentity], bool] = is_gone,
    ) -> None:
        """Without a `logger` nothing is logged."""
        self.own: Final = identity
        """Identity of this daemon's log."""
        self._logger = logger
        self._is_gone = is_gone
        self.refused: Final[dict[UUID, OtherLogError]] = {}
        """The reason for each experiment not to be continued here."""

    async def claim_all(self, experiments: Iterable[Entry]) -> None:
        """Claims the existing folders without an owner; records folders of other logs in `refused`."""
        local = [experiment for experiment in experiments if experiment.spine.kept is Kept.HERE]
        if self.own is not None:
            await asyncio.to_thread(self._claim_readable, local)

    def claim(self, entry: Entry) -> OtherLogError | None:
        """Claims the experiment's folder; returns the reason for writing nothing there, or None if claimed. Blocks."""
        error = self.look(entry)
        if error is None and self.own is not None:
            self._write(Path(entry.job_dir), self.own)
        return error

    def begin(self, entry: Entry) -> OtherLogError | None:
        """Claims the folder for a run taking the experiment up, and creates the folder for the first run. Blocks.

        A folder created later, with the first log or checkpoint in it, leaves a moment for a copy of the log to claim
        the folder. A folder once present and now missing is not recreated: its disk may be away.
        """
        if self.own is not None and not entry.fence:
            with suppress(OSError):  # workers meet the error and report it
                make_durable_folder(Path(entry.job_dir))
        return self.claim(entry)

    def look(self, entry: Entry) -> OtherLogError | None:
        """Checks the folder's owner as `claim` does, without claiming the folder. Blocks."""
        if self.own is None:
            return None
        owner = read_owner(Path(entry.job_dir))
        if owner is None or self.own.owns(owner) or self._is_gone(owner):
            self.refused.pop(entry.id, None)
            return None
        error = self.refused[entry.id] = _error(entry, owner, self.own)
        return error

    def take_over(self, entry: Entry) -> None:
        """Assigns the folder to this log, whoever owns it now. Raises OSError. Blocks."""
        if self.own is None:
            return
        folder = Path(entry.job_dir)
        owner = read_owner(folder)
        write_owner(folder, self.own)
        self.refused.pop(entry.id, None)
        if self._logger is not None and owner is not None:
            self._logger.warning("folder.taken_over", experiment=entry.name, path=entry.job_dir, former=owner.place)

    def among(self, experiments: Mapping[UUID, Entry]) -> dict[UUID, Entry]:
        """Returns the experiments with folders not owned by another log."""
        return {id: experiment for id, experiment in experiments.items() if id not in self.refused}

    def _claim_readable(self, experiments: Iterable[Entry]) -> None:
        for experiment in experiments:
            with suppress(OSError):  # the experiment's run, if any, meets the error again before writing
                self.claim(experiment)

    def _write(self, folder: Path, identity: LogIdentity) -> None:
        owner = read_owner(folder)
        if self._logger is None or not folder.is_dir() or (owner is not None and owner.id == identity.id):
            return
        try:
            write_owner(folder, identity)
        except OSError as error:  # the next writer meets the error and reports it
            self._logger.warning("folder.not_claimed", path=str(folder), reason=error.strerror or str(error))


def _error(entry: Entry, owner: LogIdentity, identity: LogIdentity) -> OtherLogError:
    on = f" on {owner.host}" if owner.host and owner.host != identity.host else ""
    return OtherLogError(
        f"{entry.job_dir} belongs to the log of {owner.place}{on}: this one, of {identity.place}, is a copy of it, or "
        "a backup that is served beside it, and would write over its files",
        where=entry.job_dir,
        fix=f"go on there; or, if that log is not to be used any more: rftd serve --take-over {entry.name} (for every "
        f"experiment, as after a move to another machine: --take-over '{EVERY}')",
    )
