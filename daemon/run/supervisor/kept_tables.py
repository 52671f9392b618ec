"""`KeptTables`: the files of database tables that experiments of this log read, and those that none reads any more."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from rftd.daemon.run.registry import Entry
from rftd.storage.files.folder_owner import LogIdentity
from rftd.storage.files.table_files import table_folder, tables_of
from rftd.storage.files.unreferenced import GRACE_S, Unreferenced
from rftd.streams.folds.spine import Kept


class KeptTables:
    """The files of database tables that belong to one log, in folders `.tables/LOG` below checkpoint roots."""

    def __init__(self, log: LogIdentity | None) -> None:
        """Without an identity the files lie in `.tables` itself, and none is removed."""
        self._log = log

    def folder(self, root: Path) -> Path:
        """The folder for new files below a checkpoint root."""
        return table_folder(root, self._log.id if self._log is not None else "")

    def folders(self, entries: Collection[Entry]) -> list[Path]:
        """The folders of this log below the checkpoint roots of experiments, and where imports put its tables."""
        if self._log is None:
            return []
        ids = (self._log.id, *self._log.former)
        below = {table_folder(_root(entry.spec.config), id) for entry in entries for id in ids}
        imported = {path.parent for entry in entries for path in tables_of(entry.spec) if path.parent.name in ids}
        return sorted(below | imported)

    def unused(self, entries: Collection[Entry], *, now_ns: int) -> list[Unreferenced]:
        """The files that no experiment names but removed ones, and that nobody has written lately. Blocks."""
        named = b"\n".join(msgspec.json.encode(entry.spec.config) for entry in entries if _reads(entry))
        unused: list[Unreferenced] = []
        for path in sorted(path for folder in self.folders(entries) for path in folder.glob("*.jsonl")):
            status = path.stat()
            # Named by what they hold, and so the same for each experiment that reads the same rows.
            if path.name.encode() not in named and status.st_mtime_ns < now_ns - int(GRACE_S * 1e9):
                why = "no experiment reads it"
                unused.append(Unreferenced(path=str(path), size_bytes=status.st_size, why=why))
        return unused


def _root(config: dict[str, Any]) -> Path:
    return Path(str(config.get("checkpoint_root_dir") or "/"))


def _reads(entry: Entry) -> bool:
    return entry.spine.kept is not Kept.REMOVED
