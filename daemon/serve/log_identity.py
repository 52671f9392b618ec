"""The identity of a data folder's log: a copy of the folder gets one of its own, and a folder that was moved too.

On another machine nobody can tell the two apart, so what arrives there is a copy until a person says otherwise.

<data>/log.id        the id, with the place that the folder had when it was used last
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
"""The ids of earlier places that a log remembers."""


class _LogId(msgspec.Struct, frozen=True, kw_only=True):
    """The file `log.id`."""

    id: str
    host: str
    path: str
    inode: str
    """The numbers of the device, the data folder and the log in it."""
    former: tuple[str, ...] = ()


def identity_of(folder: DataFolder, ids: Ids) -> LogIdentity:
    """The identity of the log in this folder. The caller has the log's lock. Blocks.

    The folder keeps its id on the same machine under the same path, as after a backup was put back, or as the same
    folder under another name; and on a machine of another name as the same folder under the same path, as a volume
    that the next container mounts. At another place of the machine it is a copy if the original is still there, whose
    folders of experiments it may not write to, and else the original itself, which keeps them. On another machine it
    is a copy: the original may run on.
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
    """The identity that the folder had when it was used last; None if it never had one. Blocks."""
    last = _read(folder.log_id)
    return None if last is None else _identity(last)


def is_gone(owner: LogIdentity) -> bool:
    """True if the log was on this machine and its folder holds it no more. Blocks."""
    return owner.host == platform.node() and not _is_there(owner.place, owner.id)


def _identity(known: _LogId) -> LogIdentity:
    return LogIdentity(id=known.id, place=known.path, host=known.host, former=known.former)


def _is_there(path: str, id: str) -> bool:
    there = _read(Path(path) / DataFolder.LOG_ID)
    return there is not None and there.id == id


def _is_same(last: _LogId, host: str, path: str, inode: str) -> bool:
    """True if the folder is the one that it was when it was used last."""
    if last.host == host:
        return last.path == path or last.inode == inode
    # A volume may be another device to each container; the root of a volume has one number everywhere, its log has not.
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
