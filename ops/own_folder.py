"""Folders and files private to a user: created closed, and refused if other users have access, or for sockets, if other
users can write.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from rftd.ops.errors import ConflictError

OTHER_USERS_MODE: Final = 0o077
"""The permissions of all users except the owner."""
PASSAGE: Final = 0o011
"""The permission to pass through a folder, for those who know the names inside."""
_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""Permission of other users to write."""


class FolderAccess(StrEnum):
    """The users allowed into the folders created by a process, set by `--folders`."""

    PRIVATE = "private"
    """The owner only: mode 0700, files 0600."""
    GROUP = "group"
    """The users of the owner's group as well: mode 0770, files 0660."""

    @property
    def umask(self) -> int:
        """The umask for the access: permissions removed from every created file and folder."""
        return OTHER_USERS_MODE if self is FolderAccess.PRIVATE else 0o007


def close_to_others(access: FolderAccess = FolderAccess.PRIVATE) -> None:
    """Sets the umask of the process and all children; for the start of a program."""
    os.umask(access.umask)


def process_umask() -> int:
    """Returns the umask of the process, without changing it even for a moment where possible."""
    try:
        # Not by os.umask, which can only read by writing: other threads create files meanwhile.
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration, ValueError):  # not Linux, or no /proc
        mask = os.umask(OTHER_USERS_MODE)
        os.umask(mask)
        return mask


def close_folder(folder: Path) -> bool:
    """Removes the permissions masked by the process's umask from an existing folder; True if changed.

    A folder of another user is left alone.
    """
    return tighten(folder, process_umask())


def tighten(path: Path, rights: int = OTHER_USERS_MODE) -> bool:
    """Removes `rights` from a file or folder of the user; True if changed. A link is not followed."""
    try:
        status = path.lstat()
    except OSError:
        return False
    kind = status.st_mode
    if status.st_uid != os.geteuid() or not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)) or not kind & rights:
        return False
    path.chmod(stat.S_IMODE(kind) & ~rights)
    return True


def make_own_folder(folder: Path) -> None:
    """Creates the folder with mode 0700, or accepts an existing folder of the user, closed to others.

    Raises ConflictError otherwise: another user with access may replace the files in it.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_own_folder(folder)


def check_own_folder(folder: Path, *, rights: int = OTHER_USERS_MODE) -> None:
    """Raises ConflictError unless `folder` is a real folder owned by the user, on which others have none of the
    permissions `rights`.

    Raises OSError if the path does not exist.
    """
    # lstat: a link created by another user leads to an arbitrary folder, now or later.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        wrong = "is no folder"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to user {status.st_uid}, and this process runs as {os.geteuid()}"
    elif status.st_mode & rights:
        wrong = f"is open to other users (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise ConflictError(
        f"the folder {wrong}: nothing is trusted in it",
        where=str(folder),
        fix="remove it if it is not yours to keep, or chmod 700 it; XDG_RUNTIME_DIR may name a folder of your own",
    )


def check_sockets_folder(folder: Path) -> None:
    """Raises ConflictError if another user could have created the sockets in `folder`.

    A missing folder passes: there is no socket either.
    """
    try:
        check_own_folder(folder, rights=_WRITE)
    except FileNotFoundError:
        return


def give_umask_rights(descriptor: int) -> None:
    """Gives a temporary file the permissions of new files: `tempfile` creates 0600, whatever the process's umask."""
    os.fchmod(descriptor, 0o666 & ~process_umask())
