"""Creates, upgrades or drops the tables of a database. The log can fill all of them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import Connection, MetaData, Select, Table, column, delete, insert, inspect, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateSchema, DropTable

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConflictError, UnreachableError
from rftd.storage.database.migrations import FOLDER, HEAD, VERSION_TABLE
from rftd.storage.database.postgres import SCHEMA
from rftd.storage.database.tables.base import Row, table_of
from rftd.storage.database.tables.progress import Meta
from rftd.storage.projector.projections.projection import Projection

if TYPE_CHECKING:
    from alembic.config import Config

_meta: Final = table_of(Meta)
"""The table `meta`, for queries."""
_FILLED: Final = "filled_s"
"""Name of the pair in `meta` with the seconds taken to fill the tables."""


async def prepare(connection: AsyncConnection, projections: Iterable[Projection]) -> bool:
    """Creates or upgrades the tables in the caller's transaction. Returns True if the tables are empty and must be
    filled.

    If a projection's version differs from the tables' version, all tables are created anew, because of the shared
    position in the log. Raises ConflictError for a database of another release, with foreign tables under rftd's names,
    or with another encoding than UTF-8; UnreachableError for a read-only server.
    """
    if connection.dialect.name == "postgresql":
        await _prepare_server(connection)
    return await connection.run_sync(_prepare, {projection.name: projection.version for projection in projections})


async def reset(connection: AsyncConnection) -> None:
    """Drops all tables of rftd in the caller's transaction; the next `prepare` creates them anew."""
    await connection.run_sync(_drop)


async def write_filled(connection: AsyncConnection, duration_s: float) -> None:
    """Stores, in the caller's transaction, the seconds taken to fill the tables from the first record on."""
    await connection.execute(delete(_meta).where(_meta.c.name == _FILLED))
    await connection.execute(insert(_meta), [{"name": _FILLED, "value": repr(duration_s)}])


async def read_filled(connection: AsyncConnection) -> float | None:
    """Returns the seconds taken to fill the tables from the first record on; None for tables grown with the log."""
    duration_s: str | None = await connection.scalar(_value(_FILLED))
    return None if duration_s is None else float(duration_s)


async def _prepare_server(connection: AsyncConnection) -> None:
    """Checks a Postgres server and creates rftd's schema. Raises UnreachableError, ConflictError."""
    if await connection.scalar(text("SHOW transaction_read_only")) == "on":
        raise UnreachableError(
            "Postgres accepts no writes: the server is a standby, or set to read-only",
            fix="name the primary in the URL, or unset default_transaction_read_only",
        )
    if (encoding := await connection.scalar(text("SHOW server_encoding"))) != "UTF8":
        raise ConflictError(
            f"the database's encoding is {encoding}: it cannot hold every text",
            fix="CREATE DATABASE rftd TEMPLATE template0 ENCODING 'UTF8', and name it in the URL",
        )
    if await connection.scalar(text(f"SELECT to_regnamespace('{SCHEMA}')")) is None:
        await connection.execute(CreateSchema(SCHEMA))


def _prepare(connection: Connection, versions: dict[str, int]) -> bool:
    """Creates, upgrades or re-creates the tables; True if they are empty now."""
    wanted_versions = msgspec.json.encode(versions, order="sorted").decode()
    stored = _revision(connection)
    if stored is None:
        _refuse_foreign(connection)
    elif stored != HEAD and stored not in _known_revisions():
        raise _of_another_release(stored)
    if stored != HEAD:
        _upgrade(connection)
    if stored is not None and connection.scalar(_value("projections")) == wanted_versions:
        return False
    if stored is not None:
        # All tables, not only the changed projection's: the shared position per partition goes back to 0.
        _drop(connection)
        _upgrade(connection)
    names = msgspec.json.encode(sorted(_own_tables())).decode()
    connection.execute(delete(_meta).where(_meta.c.name.in_(("projections", "tables"))))
    connection.execute(
        insert(_meta), [{"name": "projections", "value": wanted_versions}, {"name": "tables", "value": names}]
    )
    return True


async def check_revision(connection: AsyncConnection) -> None:
    """Raises ConflictError unless the tables belong to this release."""
    stored = await connection.run_sync(_revision)
    if stored != HEAD:
        raise _of_another_release(stored)


def _of_another_release(stored: str | None) -> ConflictError:
    # Left alone: after a drop, the other release's daemon would have to fill all tables again.
    """Returns the error for tables of another release."""
    return ConflictError(
        f"the tables were made by another release of rftd (schema {stored}; this release knows {HEAD})",
        fix="use the release that made them, or another database, which the log fills; this one was not changed",
    )


def _revision(connection: Connection) -> str | None:
    """Returns the revision of the tables; None for a database without tables of rftd."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
    return revision


def _known_revisions() -> set[str]:
    """Returns the ids of all revisions of this release."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}


def _upgrade(connection: Connection) -> None:
    """Creates the tables, or brings them to the newest revision, by Alembic."""
    from alembic import command

    command.upgrade(config(connection), "head")


def config(connection: Connection | None = None) -> Config:
    """Returns Alembic's configuration for rftd's revisions, bound to a connection."""
    from alembic.config import Config  # only where tables are created or changed: the import is slow

    configured = Config()
    configured.set_main_option(
        "script_location", str(FOLDER).replace("%", "%%")
    )  # Alembic reads `%` as the start of an interpolation
    configured.attributes["connection"] = connection
    return configured


def _own_tables() -> set[str]:
    """Returns the names of rftd's tables in this release."""
    return {str(table.name) for table in Row.metadata.sorted_tables}


def _value(name: str) -> Select[tuple[Any]]:
    """Returns the query for a value of the table `meta`."""
    return select(_meta.c.value).where(_meta.c.name == name)


def _refuse_foreign(connection: Connection) -> None:
    """Raises ConflictError if tables of other programs have names of rftd's tables."""
    if foreign := sorted(_own_tables().intersection(inspect(connection).get_table_names())):
        raise ConflictError(
            f"the database holds tables that rftd did not make: {', '.join(foreign[:5])}",
            fix="use another database for the tables of rftd",
        )


def _drop(connection: Connection) -> None:
    """Drops the tables named like rftd's now, or at their creation; all other tables are left alone."""
    names = {*_own_tables(), VERSION_TABLE}
    if inspect(connection).has_table("meta") and (stored := connection.scalar(_value("tables"))) is not None:
        names.update(json_decoder(list[str]).decode(stored))
    for name in sorted(names):
        connection.execute(DropTable(Table(name, MetaData()), if_exists=True))
