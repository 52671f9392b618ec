"""The identity of a data folder's log: a copied folder gets a separate identity, and so does a folder on another
machine.

On another machine a copy cannot be distinguished from a moved original, so the folder counts as a copy until a person
decides otherwise.

<data>/log.id        the id, with the location of the folder at the last use
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

import msgspec

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.decoding import json_decoder
from rftd.ops.durable import write_durable
from rftd.ops.ids import Ids
from rftd.storage.files.folder_owner import LogIdentity

FORMER_IDS: Final = 16
"""Number of stored ids of earlier locations."""


class _LogId(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file `log.id`."""

    id: str
    host: str
    path: str
    inode: str
    """Numbers of the device, the data folder and the log in it."""
    former: tuple[str, ...] = ()


def identity_of(folder: DataFolder, ids: Ids) -> LogIdentity:
    """Returns the identity of the log in the folder. The caller holds the log's lock. Blocks.

    The folder keeps its id on the same machine under the same path, as after restoring a backup, or as the same folder
    under another name; and on a machine of another name as the same folder under the same path, as with a volume
    mounted by the next container. At another path of the machine the folder is a copy if the original still exists, and
    may not write to the original's folders of experiments; otherwise it is the original itself, keeping them. On
    another machine the folder is a copy, because the original may still run.
    """
    last = _read(folder.log_id)
    host = platform.node()
    path = str(folder.root.resolve())
    inode = _inode(folder)
    if last is None:
        now = _LogId(id=str(ids.new()), host=host, path=path, inode=inode)
    elif _is_same(last, host, path, inode):
        now = msgspec.structs.replace(last, host=host, path=path, inode=inode)
    else:
        copied = last.host != host or _is_there(last.path, last.id)
        former = () if copied else (last.id, *last.former)[:FORMER_IDS]
        now = _LogId(id=str(ids.new()), host=host, path=path, inode=inode, former=former)
    if now != last:
        write_durable(folder.log_id, msgspec.json.format(msgspec.json.encode(now)))
    return _identity(now)


def last_identity(folder: DataFolder) -> LogIdentity | None:
    """Returns the identity recorded at the last use of the folder; None if it was never used. Blocks."""
    last = _read(folder.log_id)
    return None if last is None else _identity(last)


def is_gone(owner: LogIdentity) -> bool:
    """True if the log was on this machine, and its folder no longer contains it. Blocks."""
    return owner.host == platform.node() and not _is_there(owner.place, owner.id)


def _identity(log_id: _LogId) -> LogIdentity:
    return LogIdentity(id=log_id.id, place=log_id.path, host=log_id.host, former=log_id.former)


def _is_there(path: str, id: str) -> bool:
    log_id = _read(Path(path) / DataFolder.LOG_ID)
    return log_id is not None and log_id.id == id


def _is_same(last: _LogId, host: str, path: str, inode: str) -> bool:
    """True if the folder is the same as at the last use."""
    if last.host == host:
        return last.path == path or last.inode == inode
    # A volume may have a different device number in each container; the root of a volume has the same inode everywhere,
    # but its log does not.
    return last.path == path and last.inode.partition(":")[2] == inode.partition(":")[2]


def _inode(folder: DataFolder) -> str:
    root = folder.root.stat()
    log = folder.log.stat() if folder.log.exists() else root
    return f"{root.st_dev}:{root.st_ino}:{log.st_ino}"


def _read(path: Path) -> _LogId | None:
    try:
        return json_decoder(_LogId).decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
