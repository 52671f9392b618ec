"""`SqlTables`: copies of database tables in JSON Lines files, made once at submission.

A table changes and a file does not: replays, forks and workers read only the file.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import URL, Connection, MetaData, Table, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.run.supervisor.data_sections import DataSection, data_sections
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.row_writer import RowWriter
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, DataError, RftdError
from rftd.storage.database.engine import open_database
from rftd.workers.datasets.table_rows import plain_value

_SQL: Final = "sql"
"""Storage type of a taskset in a database table."""
_ROWS_PER_FETCH: Final = 1000
"""Number of rows fetched at once."""
_LOCKED_S: Final = 30.0
"""Longest wait in seconds for a SQLite table locked by its writer."""
_KINDS: Final = ("sqlite", "postgresql", "postgres")
"""Databases read, as in a URL."""


def names_tables(config: dict[str, Any]) -> bool:
    """True if the configuration reads tasks or rows from a database table."""
    return any(True for _ in _tables(config))


class SqlTables:
    """Copies the database tables named in a submission to files for its workers."""

    def __init__(self, environ: Mapping[str, str], judge: SubmissionJudge, tables: KeptTables) -> None:
        """`tables` decides where the files go, under the checkpoint root readable by workers; `judge` checks the
        asker's rights.
        """
        self._tables = tables
        self._environ = environ
        self._judge = judge
        self.notes: list[str] = []
        """Warnings about the tables copied."""

    def read(self, config: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
        """Copies each table to a file, and returns the configuration naming the files. Blocks.

        The files go to `folder`, or by default under the checkpoint root. Raises ConfigError, NotAllowedError, and
        DataError for an unreadable table.
        """
        changed = copy.deepcopy(config)
        for section in _tables(changed):
            where = (*section.path, "path")
            self._judge.database(where, section.fields.get("path"))
            url = self._url(section.fields.get("path"), where)
            table = section.fields.get("name")
            if not table or not isinstance(table, str):
                raise ConfigError(
                    "is required: it is the name of the table", field=show((*section.path, "name")), fix="set it"
                )
            try:
                file, rows = asyncio.run(_copy_table(url, table, folder or self._tables.folder(self.root(changed))))
            except RftdError as error:
                error.field = show(where)
                raise
            kept_in = f" and are kept in {file}" if folder is None else ""
            self.notes.append(f"{show(where)}: table {table} has {rows} rows, which are read as they are now{kept_in}")
            section.fields.update(storage_type="file", path=str(file))
        return changed

    def root(self, config: dict[str, Any]) -> Path:
        """Returns the checkpoint root under which the copies are written. Raises ConfigError,
        NotAllowedError. Blocks.
        """
        root = config.get("checkpoint_root_dir")
        if not isinstance(root, str) or not root.startswith("/"):
            raise ConfigError("is required: a table is kept below it", field="checkpoint_root_dir", fix="set it")
        self._judge.folder(("checkpoint_root_dir",), root)
        return Path(root)

    def _url(self, address: object, where: FieldPath) -> URL:
        """Returns the URL written in the file, or in the daemon's environment variable named there. Raises ConfigError
        about `where`.
        """
        text = address
        if isinstance(address, dict):
            name = str(address.get("env"))
            text = self._environ.get(name)
            if not text:
                raise ConfigError(
                    f"the daemon has no variable {name}",
                    field=show(where),
                    fix=f"start it with {name}=postgresql://...",
                )
        try:
            url = make_url(str(text))
        except (ArgumentError, ValueError):
            raise ConfigError("is not the URL of a database", field=show(where), fix=_FIX) from None
        if url.drivername.partition("+")[0] not in _KINDS:
            raise ConfigError(f"{url.drivername} is not a supported database", field=show(where), fix=_FIX)
        if url.drivername.startswith("sqlite") and not str(url.database).startswith("/"):
            raise ConfigError("is relative, and the daemon does not know to which folder", field=show(where), fix=_FIX)
        return url


_FIX: Final = "write sqlite:////FOLDER/FILE.db or postgresql://USER@HOST:5432/DATABASE"
"""Advice for an invalid database address."""


def _tables(config: dict[str, Any]) -> Iterator[DataSection]:
    """Yields the sections naming a table."""
    return (section for section in data_sections(config) if str(section.fields.get("storage_type")).lower() == _SQL)


async def _copy_table(url: URL, table: str, folder: Path) -> tuple[Path, int]:
    """Writes a table's rows into a file named after its content, and returns the file and the number of rows. Raises
    DataError.
    """
    address = url.set(password=None, query={}).render_as_string()
    engine = _engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_write_rows, table, folder)
    except NoSuchTableError as error:
        raise DataError(f"there is no table {table!r}{error.args[0]}", where=address, fix="correct name") from None
    except (SQLAlchemyError, OSError) as error:
        cause = str(getattr(error, "orig", None) or error).partition("\n")[0]
        fix = "check the address, the account and its right to read"
        raise DataError(f"the table {table!r} cannot be read: {cause}", where=address, fix=fix) from None
    finally:
        await engine.dispose()


def _engine(url: URL) -> AsyncEngine:
    """Opens a database; a SQLite file read-only."""
    if not url.drivername.startswith("sqlite"):
        return open_database(url.render_as_string(hide_password=False))
    # Opened read-only: a missing file is not created, and an existing one keeps its journal. SQLite decodes the path of
    # a URI: unquoted, `%2e%2e` would be an unchecked way up.
    file = f"file:{quote(url.database or '')}"
    return create_async_engine(
        URL.create("sqlite+aiosqlite", database=file, query={"mode": "ro", "uri": "true"}),
        hide_parameters=True,
        connect_args={"timeout": _LOCKED_S},
    )


def _write_rows(connection: Connection, name: str, folder: Path) -> tuple[Path, int]:
    """Writes the rows in the order of the primary key, and returns their file and number; one statement sees one state
    of the table. Raises DataError without a primary key.
    """
    schema, _, plain = name.rpartition(".")
    if not schema and connection.dialect.name == "postgresql":
        schema = "public"
    table = _table(connection, plain, schema or None)
    keys = list(table.primary_key.columns)
    if not keys:
        raise DataError(f"table {name!r} has no primary key, so its rows have no order", fix="give it one")
    with RowWriter(folder, plain) as writer:
        cursor = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(select(table).order_by(*keys))
        for row in cursor.mappings():
            writer.add({column: _json_cell(cell) for column, cell in row.items()})
        return writer.finish(), writer.rows


def _table(connection: Connection, name: str, schema: str | None) -> Table:
    """Reads the columns of a table. Raises NoSuchTableError, with a similar name if there is one."""
    try:
        return Table(name, MetaData(), autoload_with=connection, schema=schema)
    except NoSuchTableError:
        names = inspect(connection).get_table_names(schema)
        near = difflib.get_close_matches(name, names, 1)
        raise NoSuchTableError(f"; did you mean {near[0]!r}?" if near else "") from None


def _json_cell(cell: Any) -> Any:
    """Returns a cell as a JSON value; bytes become None, as in tables of files."""
    if isinstance(cell, bytes | memoryview):
        return None
    return str(cell) if isinstance(cell, UUID) else plain_value(cell)
