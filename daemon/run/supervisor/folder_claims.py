"""`FolderClaims`: owners of experiments' folders, so that this daemon writes nothing into folders owned by
another log.
"""

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
"""Placeholder for the names of all experiments whose folder another log owns; not a possible name of an experiment."""
POLL_INTERVAL_S: Final = 2.0
"""Minimum seconds between two checks of a folder's owner during a run: an operator may give the folder to
another log.
"""


class FolderClaims:
    """Ownership of experiments' folders by this log; experiments in folders of other logs are refused.

    A log without an identity claims no folder, and may use every one.
    """

    def __init__(
        self,
        identity: LogIdentity | None,
        *,
        logger: Logger | None,
        is_gone: Callable[[LogIdentity], bool] = is_gone,
    ) -> None:
        """`is_gone` is True for a log that no longer exists, whose folders are free. Without a `logger` nothing is
        logged.
        """
        self.own: Final = identity
        """Identity of this daemon's log; None without one."""
        self._logger = logger
        self._is_gone = is_gone
        self.refused: Final[dict[UUID, OtherLogError]] = {}
        """The error for each experiment in a folder owned by another log."""

    async def claim_all(self, experiments: Iterable[Entry]) -> None:
        """Claims each existing folder without an owner, and records errors for folders of other logs in `refused`."""
        local = [experiment for experiment in experiments if experiment.spine.kept is Kept.HERE]
        if self.own is not None:
            await asyncio.to_thread(self._claim_readable, local)

    def claim(self, entry: Entry) -> OtherLogError | None:
        """Claims the experiment's folder if it exists. Returns None on success, else the error naming the owner.
        Blocks.
        """
        error = self.look(entry)
        if error is None and self.own is not None:
            self._write_owner(Path(entry.job_dir), self.own)
        return error

    def begin(self, entry: Entry) -> OtherLogError | None:
        """Claims the folder for a starting run, and creates it for the first run. Returns None or the error, as
        `claim`. Blocks.

        Creating the folder at once leaves a copy of the log no moment to claim it. A folder that existed and is now
        missing is not created again: its disk may be unmounted.
        """
        if self.own is not None and not entry.fence:
            with suppress(OSError):  # workers meet the error and report it
                make_durable_folder(Path(entry.job_dir))
        return self.claim(entry)

    def look(self, entry: Entry) -> OtherLogError | None:
        """Returns the error if another log owns the folder, else None; claims nothing. Blocks."""
        if self.own is None:
            return None
        owner = read_owner(Path(entry.job_dir))
        if owner is None or self.own.owns(owner) or self._is_gone(owner):
            self.refused.pop(entry.id, None)
            return None
        error = self.refused[entry.id] = _owner_error(entry, owner, self.own)
        return error

    def take_over(self, entry: Entry) -> None:
        """Makes this log the owner of the folder, replacing any other owner. Raises OSError. Blocks."""
        if self.own is None:
            return
        folder = Path(entry.job_dir)
        owner = read_owner(folder)
        write_owner(folder, self.own)
        self.refused.pop(entry.id, None)
        if self._logger is not None and owner is not None:
            self._logger.warning("folder.taken_over", experiment=entry.name, path=entry.job_dir, former=owner.place)

    def among(self, experiments: Mapping[UUID, Entry]) -> dict[UUID, Entry]:
        """Returns the experiments whose folders no other log owns."""
        return {id: experiment for id, experiment in experiments.items() if id not in self.refused}

    def _claim_readable(self, experiments: Iterable[Entry]) -> None:
        """Claims the folder of each experiment, and skips folders that cannot be read."""
        for experiment in experiments:
            with suppress(OSError):  # the experiment's run, if any, meets the error again before writing
                self.claim(experiment)

    def _write_owner(self, folder: Path, identity: LogIdentity) -> None:
        """Writes this log's identity into an existing folder with another owner or none, and logs a failure; without a
        logger, does nothing.
        """
        owner = read_owner(folder)
        if self._logger is None or not folder.is_dir() or (owner is not None and owner.id == identity.id):
            return
        try:
            write_owner(folder, identity)
        except OSError as error:  # the next writer meets the error and reports it
            self._logger.warning("folder.not_claimed", path=str(folder), reason=error.strerror or str(error))


def _owner_error(entry: Entry, owner: LogIdentity, identity: LogIdentity) -> OtherLogError:
    """Returns the error of an experiment whose folder belongs to the log `owner`."""
    on = f" on {owner.host}" if owner.host and owner.host != identity.host else ""
    return OtherLogError(
        f"{entry.job_dir} belongs to the log of {owner.place}{on}: this one, of {identity.place}, is a copy of it, or "
        "a backup that is served beside it, and would write over its files",
        where=entry.job_dir,
        fix=f"go on there; or, if that log is no longer used: rftd serve --take-over {entry.name} (for every "
        f"experiment, as after a move to another machine: --take-over '{EVERY}')",
    )
