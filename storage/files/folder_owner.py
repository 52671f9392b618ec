"""`LogIdentity`: the log that an experiment's folder belongs to, as the folder itself remembers it.

    <job_dir>/owner.json

A log that was copied holds what the original holds, up to that moment, and names the same folders: served beside it, it
would write over the original's files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.durable import write_durable

NAME: Final = "owner.json"


class LogIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A log that can be told from a copy of itself."""

    id: str
    place: str
    """The data folder or the cluster that the log is in, for people."""
    host: str = ""
    """The machine of the data folder; empty for the log of a cluster."""
    former: tuple[str, ...] = ()
    """The ids that the log had at other places, before it was moved."""

    def owns(self, owner: LogIdentity) -> bool:
        """True if a folder of that owner is this log's."""
        return owner.id == self.id or owner.id in self.former


def read_owner(job_dir: Path) -> LogIdentity | None:
    """The log that a folder belongs to; None for a folder without one, and for a damaged file. Blocks.

    Raises OSError for a disk that does not answer: the folder may be anybody's.
    """
    try:
        return json_decoder(LogIdentity).decode((job_dir / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def is_of_another(job_dir: Path, own: LogIdentity) -> bool:
    """True if a folder belongs to another log. Raises OSError. Blocks."""
    owner = read_owner(job_dir)
    return owner is not None and not own.owns(owner)


def write_owner(job_dir: Path, owner: LogIdentity) -> None:
    """Gives a folder that is there to a log, durably. Raises OSError. Blocks."""
    write_durable(job_dir / NAME, msgspec.json.format(msgspec.json.encode(owner)))


def disown(job_dir: Path) -> None:
    """Lets the next log that runs the experiment have its folder. Blocks."""
    (job_dir / NAME).unlink(missing_ok=True)
