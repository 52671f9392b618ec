"""`LogIdentity`: the log owning an experiment's folder, as recorded in the folder.

    <job_dir>/owner.json

A copied log holds the original's records up to the copy, and names equal folders: a daemon serving the copy beside the
original would overwrite the original's files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.durable import write_durable

NAME: Final = "owner.json"
"""Name of the owner's file in an experiment's folder."""


class LogIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a log, different from any copy's."""

    id: str
    """Random id of the log."""
    place: str
    """The data folder or the cluster of the log, for people."""
    host: str = ""
    """The machine of the data folder; empty for the log of a cluster."""
    former: tuple[str, ...] = ()
    """The ids that the log had at other places, before it was moved."""

    def owns(self, owner: LogIdentity) -> bool:
        """True if a folder with the given owner belongs to the log."""
        return owner.id == self.id or owner.id in self.former


def read_owner(job_dir: Path) -> LogIdentity | None:
    """Returns the log that owns a folder; None without an owner file, and for a damaged file. Blocks.

    Raises OSError for a disk that does not answer: the folder may belong to any log.
    """
    try:
        return json_decoder(LogIdentity).decode((job_dir / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def is_of_another(job_dir: Path, this_log: LogIdentity) -> bool:
    """True if a folder belongs to another log. Raises OSError. Blocks."""
    owner = read_owner(job_dir)
    return owner is not None and not this_log.owns(owner)


def write_owner(job_dir: Path, owner: LogIdentity) -> None:
    """Records a log as the owner of an existing folder, durably. Raises OSError. Blocks."""
    write_durable(job_dir / NAME, msgspec.json.format(msgspec.json.encode(owner)))


def disown(job_dir: Path) -> None:
    """Removes the owner, so the next log running the experiment can take the folder. Blocks."""
    (job_dir / NAME).unlink(missing_ok=True)
