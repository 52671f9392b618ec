"""`Cursor`: a tracker's progress in the log, and the points being written.

    <job_dir>/monitor/cursors/<kind>.<first digits of the experiment's id>

Points are stored here before they are written, so that equal points are written again after a kill.
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
"""Name of the folder of trackers, in the job's folder, as in the configuration guide."""
_CURSORS: Final = "cursors"
"""Name of the folder of cursors below `monitor`."""


class TrackedPlace(msgspec.Struct, frozen=True, array_like=True):
    """The position in one partition from which the tracker reads next."""

    stream: str
    """Name of the stream."""
    partition: int
    """Number of the partition."""
    next_offset: int
    """Offset of the next record to read."""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """A tracker's saved progress: position in the log, state of the fold, points being written, and the tracker's own
    state.
    """

    target: str = ""
    """Digest of the tracker's arguments; a tracker with other arguments must not continue from this cursor."""
    places: tuple[TrackedPlace, ...] = ()
    """Progress in each partition."""
    fences: tuple[FenceOwner, ...] = ()
    """Owners of roles by the fences read so far."""
    fold: PointFold = msgspec.field(default_factory=PointFold)
    """State of the points' computation."""
    pending: tuple[Point, ...] = ()
    """Points being written."""
    kept: Kept = {}
    """State of the tracker, as returned by its `settle`."""
    ended: bool = False
    """True once all points of an ended experiment are written."""
    error: str = ""
    """Why writing is impossible at present; empty if it is possible."""
    points: int = 0
    """Number of written points, including those not yet confirmed as stored."""
    step: int = 0
    """The last training step among the written points."""


class CursorFile:
    """The file of a cursor, locked by the process that uses it."""

    def __init__(self, job_dir: Path, kind: str, short_id: str) -> None:
        """Names the file of a tracker's cursor, without opening it."""
        self.path: Final = job_dir / MONITOR / _CURSORS / f"{kind}.{short_id}"
        """Path of the cursor's file."""
        self._lock = -1
        """File descriptor that holds the lock; -1 without the lock."""

    def take(self) -> None:
        """Locks the cursor against every other tracker of the kind in the folder. Raises ConflictError. Blocks."""
        make_durable_folder(self.path.parent)
        lock = self.path.with_name(f"{self.path.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The kernel drops the lock with the process, however the process ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            message = f"another process writes by the tracker {self.path.name}"
            raise ConflictError(message, where=str(self.path), fix="wait until it has ended, or end it") from None
        self._lock = descriptor

    def release(self) -> None:
        """Unlocks the cursor for another process; idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> Cursor:
        """Returns the cursor; a new one without a file. Raises DataError for a damaged file. Blocks."""
        try:
            return msgpack_decoder(Cursor).decode(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return Cursor()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            fix = f"remove {self.path.parent.parent}, and rftd track add writes everything once more"
            raise DataError(f"the cursor of a tracker is damaged: {error}", where=str(self.path), fix=fix) from None

    def write(self, cursor: Cursor) -> None:
        """Replaces the cursor, durably. Raises OSError, and DataError if the folder was removed. Blocks."""
        encoded = msgspec.msgpack.encode(cursor)
        try:
            write_durable(self.path, encoded)
        except FileNotFoundError:
            message = "the folder of a tracker's cursor was removed while it ran"
            fix = "nothing: its next process writes everything once more"
            raise DataError(message, where=str(self.path.parent), fix=fix) from None
