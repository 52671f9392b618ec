"""Folders and files of this user alone: made closed, and refused where somebody else has a hand in them."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from rftd.ops.errors import ConflictError

OTHERS: Final = 0o077
"""The rights of everybody but the owner."""
PASSAGE: Final = 0o011
"""The right to pass through a folder whose names one knows."""
_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class FolderAccess(StrEnum):
    """The users who may enter the folders that a process makes."""

    PRIVATE = "private"
    """Its own user alone: mode 0700, files 0600."""
    GROUP = "group"
    """The users of its group as well: mode 0770, files 0660."""

    @property
    def umask(self) -> int:
        """The rights that are taken from everything the process makes."""
        return OTHERS if self is FolderAccess.PRIVATE else 0o007


def close_to_others(access: FolderAccess = FolderAccess.PRIVATE) -> None:
    """Closes everything that this process makes from now on, and its children make; for the start of a program."""
    os.umask(access.umask)


def process_umask() -> int:
    """The rights that are taken from everything this process makes."""
    try:
        # Not by os.umask, which can only tell by setting it: other threads make files meanwhile.
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration, ValueError):  # not Linux, or not its /proc
        mask = os.umask(OTHERS)
        os.umask(mask)
        return mask


def close_folder(folder: Path) -> bool:
    """Takes from a folder that is there what this process's umask takes from new ones; True if that changed it.

    A folder of another user stays as it is.
    """
    return tighten(folder, process_umask())


def tighten(path: Path, rights: int = OTHERS) -> bool:
    """Takes `rights` from a file or folder of this user; True if that changed it. A link is not followed."""
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
    """Makes the folder with mode 0700, or takes it if it is this user's already and closed to others.

    Raises ConflictError where it is not: whoever else can enter it may put his own files in the place of ours.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_own_folder(folder)


def check_own_folder(folder: Path, *, rights: int = OTHERS) -> None:
    """Raises ConflictError unless `folder` is a real folder of this user that gives others none of `rights`.

    Raises OSError if nothing is there.
    """
    # lstat: a link that somebody made under this name leads to a folder of his choice, now or later.
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
    """Raises ConflictError if somebody else could have put the sockets there that lie in `folder`.

    A folder that is missing passes: then there is no socket either.
    """
    try:
        check_own_folder(folder, rights=_WRITE)
    except FileNotFoundError:
        return


def give_umask_rights(descriptor: int) -> None:
    """Gives a file the rights of new ones: what `tempfile` makes is 0600, whatever the process shares."""
    os.fchmod(descriptor, 0o666 & ~process_umask())
