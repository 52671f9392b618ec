"""Files of database tables and folders of programs: names, and the files read by a specification.

<checkpoint root>/.tables/<id of the log>/<table>-<the first 32 digits of its sha256>.jsonl
<checkpoint root>/.tables/<id of the log>/agent-<the first 32 digits of its sha256>/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rftd.streams.log.marked import inputs_of
from rftd.streams.portable.folders import Folders
from rftd.streams.spec.spec import ExperimentSpec

KIND: Final = "table"
"""The kind of these files in an export."""
_FOLDER: Final = ".tables"
"""Name of the folder of tables below a checkpoint root."""
_NAME: Final = re.compile(r".+-([0-9a-f]{32})\.jsonl")
"""Form of a table file's name, with the beginning of the sha256."""


def table_folder(root: Path, log_id: str) -> Path:
    """Returns the folder of a log's tables below a checkpoint root; without an id, the folder of all logs."""
    return root / _FOLDER / log_id


def table_name(table: str, sha256: str) -> str:
    """Returns the file name for a table's digest: equal rows share a file."""
    return f"{table}-{sha256[:32]}.jsonl"


def agent_folder_name(sha256: str) -> str:
    """Returns the name of the copy of a program's folder: equal files share a copy."""
    return f"agent-{sha256[:32]}"


def tables_of(spec: ExperimentSpec) -> list[Path]:
    """Returns the table files read by a specification, in sorted order."""
    return sorted(path for path in map(Path, inputs_of(spec)) if _is_table(path))


def fits_name(path: str, sha256: str) -> bool:
    """True if the name of a table file agrees with the bytes' digest."""
    match = _NAME.fullmatch(path)
    return match is not None and sha256.startswith(match[1])


def table_moves(
    tables: Iterable[Path], folders: Folders, home: Path, log_id: str, present: ExperimentSpec | None
) -> list[tuple[str, str]]:
    """Returns (old, new) pairs for the folders of an export's tables in the importing log.

    The exporting log removes table files with experiments, so none is shared. A folder moved by `folders` stays below
    the new root; any other goes below `home`. An experiment already `present` keeps the existing folders.
    """
    present_folders = {path.name: path.parent for path in tables_of(present)} if present is not None else {}
    moves: dict[Path, Path] = {}
    for table in tables:
        root = _root_of(Path(folders.path(str(table.parent)))) if folders.covers(str(table.parent)) else home
        moves[table.parent] = present_folders.get(table.name) or table_folder(root, log_id)
    return [(str(old), str(new)) for old, new in sorted(moves.items()) if folders.path(str(old)) != str(new)]


def _is_table(path: Path) -> bool:
    """True if the path is that of a file of a database table."""
    folders = (path.parent.name, path.parent.parent.name)
    return path.is_absolute() and _FOLDER in folders and _NAME.fullmatch(path.name) is not None


def _root_of(folder: Path) -> Path:
    """Returns the checkpoint root of a folder of table files."""
    return folder.parent if folder.name == _FOLDER else folder.parent.parent
