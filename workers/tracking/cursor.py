"""`Cursor`: how far a tracker has come in the log, and what it is about to write.

    <job_dir>/monitor/cursors/<kind>.<first digits of the experiment's id>

Points are noted here before they are written, so that after a kill the very same ones are written again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.durable import make_durable_folder, write_durable
from rftd.ops.errors import ConflictError, DataError
from rftd.streams.log.fencing import FenceOwner
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.points import PointFold
from rftd.workers.tracking.tracker import Kept

MONITOR: Final = "monitor"
"""The guide's folder of trackers, in the job's folder."""
_CURSORS: Final = "cursors"


class TrackedPlace(msgspec.Struct, frozen=True, array_like=True):
    """The next record of a partition."""

    stream: str
    partition: int
    next_offset: int


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one tracker."""

    target: str = ""
    """The digest of the tracker's arguments: with other ones it would write somewhere else."""
    places: tuple[TrackedPlace, ...] = ()
    fences: tuple[FenceOwner, ...] = ()
    fold: PointFold = msgspec.field(default_factory=PointFold)
    pending: tuple[Point, ...] = ()
    """Points that are being written."""
    kept: Kept = {}
    ended: bool = False
    """True once the whole of an experiment that has ended is written."""
    error: str = ""
    """The reason why nothing can be written now."""
    points: int = 0
    """The number of points that were written, also those that are not surely stored."""
    step: int = 0
    """The last training step among them."""


class CursorFile:
    """The file of a cursor, which one process at a time holds."""

    def __init__(self, job_dir: Path, kind: str, short_id: str) -> None:
        self.path: Final = job_dir / MONITOR / _CURSORS / f"{kind}.{short_id}"
        self._lock = -1

    def take(self) -> None:
        """Keeps every other tracker of this kind out of the folder. Raises ConflictError. Blocks."""
        make_durable_folder(self.path.parent)
        lock = self.path.with_name(f"{self.path.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The kernel drops it with the process, however that ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            what = f"another process writes by the tracker {self.path.name}"
            raise ConflictError(what, where=str(self.path), fix="wait until it has ended, or end it") from None
        self._lock = descriptor

    def release(self) -> None:
        """Lets another process have it; idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> Cursor:
        """The cursor; a new one if there is none. Raises DataError for a damaged file. Blocks."""
        try:
            return msgpack_decoder(Cursor).decode(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return Cursor()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            fix = f"remove {self.path.parent.parent}, and rftd track add writes everything once more"
            raise DataError(f"the cursor of a tracker is damaged: {error}", where=str(self.path), fix=fix) from None

    def write(self, cursor: Cursor) -> None:
        """Replaces the cursor, durably. Raises OSError, and DataError if its folder was removed. Blocks."""
        data = msgspec.msgpack.encode(cursor)
        try:
            write_durable(self.path, data)
        except FileNotFoundError:
            what = "the folder of a tracker's cursor was removed while it ran"
            fix = "nothing: its next process writes everything once more"
            raise DataError(what, where=str(self.path.parent), fix=fix) from None
