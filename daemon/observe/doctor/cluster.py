"""Checks of a log and a database on servers, intended for the daemon."""

from __future__ import annotations

import asyncio
from typing import Final

from rftd.daemon.cli.log_option import SHARED
from rftd.ops.errors import RftdError
from rftd.ops.health import Diagnosis
from rftd.streams.log.backend import LogUrl, backend_of

_TIMEOUT_S: Final = 60.0
"""Maximum seconds to wait for a server."""


def check_log(url: LogUrl | None) -> list[Diagnosis]:
    """Returns the findings of an external log's backend; for the embedded log, its durability."""
    if url is None or not url.text:
        durability = "embedded, one copy: a record is synced to this machine's disk before it is acknowledged"
        return [Diagnosis("durability", "ok", durability, f"for copies on several machines: rftd serve {SHARED}")]
    try:
        return asyncio.run(backend_of(url).diagnose(url.text))
    except RftdError as error:
        where = f"{error.where}: " if error.where else ""
        return [Diagnosis(url.scheme, "fail", f"{where}{error.what}", error.fix or "see rftd explain " + error.code)]


def check_postgres(url: str | None) -> list[Diagnosis]:
    """Checks that the database answers and allows creating tables."""
    if not url:
        return []
    from rftd.daemon.cli.daemon_file import checked_postgres_url

    try:
        finding = asyncio.run(asyncio.wait_for(_query_server(checked_postgres_url(url)), _TIMEOUT_S))
    except TimeoutError:
        return [Diagnosis("postgres", "fail", f"no answer within {_TIMEOUT_S:g} s", "see whether the server runs")]
    except RftdError as error:
        return [Diagnosis("postgres", "fail", error.what, error.fix or "see rftd explain " + error.code)]
    except Exception as error:  # the driver's errors have many classes; their text contains no password
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        return [Diagnosis("postgres", "fail", reason, "check address, user and PGPASSWORD")]
    return [finding]


async def _query_server(url: str) -> Diagnosis:
    """Returns a finding with the server's version. Raises an error if rftd may not create tables there."""
    from sqlalchemy import text

    from rftd.storage.database.engine import open_database
    from rftd.storage.database.postgres import SCHEMA, forbidden

    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            version = await connection.scalar(text("SHOW server_version"))
            # The tables are in a separate schema, created by the first user.
            schema = await connection.scalar(text(f"SELECT to_regnamespace('{SCHEMA}')"))
            privilege = f"has_schema_privilege('{SCHEMA}', 'CREATE')"
            if schema is None:
                privilege = "has_database_privilege(current_database(), 'CREATE')"
            may = await connection.scalar(text(f"SELECT {privilege}"))
    finally:
        await engine.dispose()
    if not may:
        raise forbidden(engine.url)
    return Diagnosis("postgres", "ok", f"PostgreSQL {version}")
