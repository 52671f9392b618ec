"""Checks of `rftd doctor` that other users of this machine can neither read nor replace the daemon's files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import ConflictError
from rftd.ops.health import Diagnosis
from rftd.ops.own_folder import OTHER_USERS_MODE, PASSAGE, check_own_folder

_RIGHTS_OF_OTHERS: Final = 0o007
"""Mode bits of users outside of the file's group."""
_MAX_NAMED: Final = 3
"""Maximum number of open files listed by name; further ones are counted."""


def check_access(folder: Path) -> list[Diagnosis]:
    """Returns findings on owner and modes of the data folder and its contents; empty for a missing folder."""
    if not folder.is_dir():
        return []
    return [*_diagnose_folder(folder.resolve()), *_diagnose_files(DataFolder(folder))] or [
        Diagnosis("access", "ok", f"{folder} is this user's, and closed to others")
    ]


def check_socket_access(folder: Path) -> list[Diagnosis]:
    """Returns a finding if another user could have created the folder of the log's socket, trusted by workers; else
    nothing.
    """
    home = DataFolder(folder).socket.parent
    try:
        check_own_folder(home)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Diagnosis("socket", "fail", f"{home} cannot be inspected: {error.strerror}", "remove it")]
    except ConflictError as error:
        return [Diagnosis("socket", "fail", f"{home}: {error.what}", error.fix or "")]
    return []


def _diagnose_folder(root: Path) -> Iterator[Diagnosis]:
    """Yields findings on the data folder's owner and mode, and on parent folders writable by everybody."""
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        problem = f"{root} belongs to user {status.st_uid}, not to this one: rftd cannot close it to others"
        yield Diagnosis("access", "warn", problem, "give --data a folder of the user that runs the daemon")
    elif mode & OTHER_USERS_MODE & ~PASSAGE:
        problem = f"{root} is open to other users (mode {mode:04o})"
        yield Diagnosis("access", "warn", problem, f"chmod 700 {root}; rftd serve does so when it starts")
    for above in root.parents:
        mode = above.stat().st_mode
        # With the sticky bit, as on /tmp, nobody can remove another user's files.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            problem = f"{above} can be written by everybody: the folder in it can be replaced by another one"
            yield Diagnosis("access", "warn", problem, f"chmod o-w {above}, or give another --data")


def _diagnose_files(folder: DataFolder) -> Iterator[Diagnosis]:
    """Yields a finding on files in the data folder that other users could read."""
    # The files of `rftd stack` belong to its servers.
    files = [path for path in (*folder.root.glob("*"), *folder.log.glob("*")) if path.name != "stack"]
    # With `--folders group` the group has rights to files protected by the closed folder.
    rights = OTHER_USERS_MODE if folder.root.stat().st_mode & OTHER_USERS_MODE else _RIGHTS_OF_OTHERS
    opened = [path for path in files if not path.is_symlink() and path.lstat().st_mode & rights]
    if opened:
        named = ", ".join(str(path) for path in sorted(opened)[:_MAX_NAMED])
        more = f" and {len(opened) - _MAX_NAMED} more" if len(opened) > _MAX_NAMED else ""
        problem = f"open to other users: {named}{more}"
        yield Diagnosis("access", "warn", problem, f"chmod -R go-rwx {folder.root}; rftd serve does so when it starts")
