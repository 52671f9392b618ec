"""The lock limiting a data folder to one daemon, and the check for a local disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from rftd.ops.errors import ConflictError

FILE_NAME: Final = "log.lock"
"""Name of the lock's file in the data folder."""
# SQLite's WAL needs memory shared by all its processes and reliable byte-range locks; these file systems guarantee
# neither.
_NETWORK: Final = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph"),
)
"""Types of network file systems."""


class LockFile:
    """An exclusive lock on a data folder, valid until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Takes the lock; raises ConflictError if another process has it."""
        self._path = folder / FILE_NAME
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock, not a pid in a file: the kernel drops it with the process, however the process ends, so none is
            # stale. The lock belongs to this open file: a POSIX lock would go as soon as any code here closed any
            # descriptor of the file.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise ConflictError(
                f"the log in this folder is open in process {owner}",
                where=str(self._path),
                fix=f"stop that daemon (kill {owner}), connect to it, or choose another --data folder",
            ) from error
        # For the error above only: a process refused in between may read an older pid, or none.
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Unlocks the folder for other processes. Idempotent."""
        # The file stays: removing it could remove a file locked by another process in the meantime.
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def refuse_network_file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Raises ConflictError if `folder` is on a network file system, according to Linux's `mounts`; other systems are
    not checked.
    """
    if not mounts.exists():
        return
    resolved = folder.resolve()  # a link on a local disk may lead to a network one
    kind = ""
    depth = -1
    for line in mounts.read_text(errors="replace").splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        point = Path(mount_fields.split(" ")[4].replace("\\040", " "))  # the kernel writes blanks in octal
        if resolved.is_relative_to(point) and len(point.parts) >= depth:  # the last mount on a point is the visible one
            kind = type_fields.split(" ")[0]
            depth = len(point.parts)
    if kind in _NETWORK:
        raise ConflictError(
            f"{resolved} lies on a network file system ({kind}), whose locks and syncs cannot be trusted",
            fix="choose a data folder on a local disk, or use Kafka for the log",
        )
