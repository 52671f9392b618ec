"""The files of database tables: their folders, their names, and the ones that a specification reads.

<checkpoint root>/.tables/<id of the log>/<table>-<the first 32 digits of its sha256>.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rftd.streams.log.stored_path import inputs_of
from rftd.streams.portable.folders import Folders
from rftd.streams.spec.spec import ExperimentSpec

KIND: Final = "table"
"""The kind of these files in an export."""
_FOLDER: Final = ".tables"
_NAME: Final = re.compile(r".+-([0-9a-f]{32})\.jsonl")


def table_folder(root: Path, log_id: str) -> Path:
    """The folder of a log's tables below a checkpoint root; without an id that of all logs."""
    return root / _FOLDER / log_id


def table_name(table: str, sha256: str) -> str:
    """The name of the file with these bytes: equal rows are one file."""
    return f"{table}-{sha256[:32]}.jsonl"


def tables_of(spec: ExperimentSpec) -> list[Path]:
    """The files of tables that a specification reads."""
    return sorted(path for path in map(Path, inputs_of(spec)) if _is_table(path))


def fits_name(path: str, sha256: str) -> bool:
    """True if a file of this name has these bytes."""
    match = _NAME.fullmatch(path)
    return match is not None and sha256.startswith(match[1])


def table_moves(
    tables: Iterable[Path], folders: Folders, home: Path, log_id: str, present: ExperimentSpec | None
) -> list[tuple[str, str]]:
    """The folders of an export's tables, and those of the log that imports it.

    The log that exported them removes its own with its experiments, so none is shared. A folder that `folders` moves
    stays below its new root; any other goes below `home`. An experiment that is `present` keeps its own.
    """
    here = {path.name: path.parent for path in tables_of(present)} if present is not None else {}
    moves: dict[Path, Path] = {}
    for table in tables:
        root = _root_of(Path(folders.path(str(table.parent)))) if folders.covers(str(table.parent)) else home
        moves[table.parent] = here.get(table.name) or table_folder(root, log_id)
    return [(str(old), str(new)) for old, new in sorted(moves.items()) if folders.path(str(old)) != str(new)]


def _is_table(path: Path) -> bool:
    folders = (path.parent.name, path.parent.parent.name)
    return path.is_absolute() and _FOLDER in folders and _NAME.fullmatch(path.name) is not None


def _root_of(folder: Path) -> Path:
    return folder.parent if folder.name == _FOLDER else folder.parent.parent
