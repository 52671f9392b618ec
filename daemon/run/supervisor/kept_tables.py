"""`KeptTables`: files of database tables and folders of programs for experiments of this log, and unused ones."""

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
    """Files with rows of database tables, and copies of programs' folders, for this log's experiments, in folders
    `.tables/LOG` under checkpoint roots.
    """

    def __init__(self, log: LogIdentity | None) -> None:
        """Without an identity of the log, the files are directly in `.tables`, and none is ever deleted."""
        self._log = log

    def folder(self, root: Path) -> Path:
        """Returns the folder for new files under a checkpoint root."""
        return table_folder(root, self._log.id if self._log is not None else "")

    def folders(self, experiments: Collection[Entry]) -> list[Path]:
        """Returns the table folders of this log: under the experiments' checkpoint roots, and folders written by
        imports.
        """
        if self._log is None:
            return []
        ids = (self._log.id, *self._log.former)
        below = {table_folder(_checkpoint_root(experiment.spec.config), id) for experiment in experiments for id in ids}
        imported = {
            path.parent for experiment in experiments for path in tables_of(experiment.spec) if path.parent.name in ids
        }
        return sorted(below | imported)

    def unused(self, experiments: Collection[Entry], *, now_ns: int) -> list[Unreferenced]:
        """Returns files named by no experiment (removed experiments do not count) and not written recently. Blocks."""
        named = b"\n".join(
            msgspec.json.encode(experiment.spec.config) for experiment in experiments if _may_read(experiment)
        )
        unused: list[Unreferenced] = []
        for path in sorted(path for folder in self.folders(experiments) for path in _kept_files(folder)):
            status = path.stat()
            # Named after the content, and so identical for each experiment reading the same rows.
            if path.name.encode() not in named and status.st_mtime_ns < now_ns - int(GRACE_S * 1e9):
                why = "no experiment reads it"
                unused.append(Unreferenced(path=str(path), size_bytes=_size_bytes(path), why=why))
        return unused


def _kept_files(folder: Path) -> list[Path]:
    """Returns the finished table files and the finished and unfinished agent copies in a folder."""
    return [*folder.glob("*.jsonl"), *folder.glob("agent-*"), *folder.glob(".agent-*")]


def _size_bytes(path: Path) -> int:
    """Returns the size of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files)


def _checkpoint_root(config: dict[str, Any]) -> Path:
    """Returns the checkpoint root written in the file; `/` without one."""
    return Path(str(config.get("checkpoint_root_dir") or "/"))


def _may_read(entry: Entry) -> bool:
    """True if the experiment may still read kept files: it was not removed."""
    return entry.spine.kept is not Kept.REMOVED
