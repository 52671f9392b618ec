"""Connections to Postgres through asyncpg: bounded waits, the schema `rftd`, and errors that name a fix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import URL

from rftd.ops import limits
from rftd.ops.errors import RftdError, UnreachableError, UsageError

SCHEMA: Final = "rftd"
"""Name of the Postgres schema that holds rftd's tables, apart from the tables of other programs."""

_SETTINGS: Final = {
    "application_name": "rftd",
    "search_path": SCHEMA,
    "statement_timeout": f"{limits.DATABASE_STATEMENT_TIMEOUT_S * 1000:.0f}",
    "lock_timeout": f"{limits.DATABASE_LOCK_TIMEOUT_S * 1000:.0f}",
    # A stopped process or a vanished machine must not hold locks for ever.
    "idle_in_transaction_session_timeout": f"{2 * limits.DATABASE_STATEMENT_TIMEOUT_S * 1000:.0f}",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # A power cut may lose the newest commits as a whole: rows and positions together, to be filled in again from the
    # log.
    "synchronous_commit": "off",
    "jit": "off",  # compiling the page's longer queries each time would cost more than reading their few rows
}
"""Settings of a Postgres session, sent at the connection; timeouts in milliseconds."""
_CLIENT_GRACE_S: Final = 5.0
"""Seconds after the server's statement time-out until the client counts the connection as lost."""


def connector(url: URL) -> Callable[[], Awaitable[Any]]:
    """Returns a function that opens one connection to the Postgres at `url`, raising UnreachableError or UsageError."""
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def connect() -> Any:
        import asyncpg

        try:
            return await asyncpg.connect(
                dsn,
                timeout=limits.DATABASE_CONNECT_TIMEOUT_S,
                command_timeout=limits.DATABASE_STATEMENT_TIMEOUT_S + _CLIENT_GRACE_S,
                server_settings=_SETTINGS,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise refusal(error, url) from error

    return connect


def refusal(error: BaseException, url: URL) -> RftdError:
    """Returns the error for a failed connection, naming the server and never the password."""
    where = _place(url)
    user = url.username or "(of this process)"
    match getattr(error, "sqlstate", None):
        case "28P01" | "28000":
            return UnreachableError(
                f"Postgres refused user {user}: a wrong or missing password, or no such user",
                where=where,
                fix="set PGPASSWORD or PGPASSFILE, or the password in the URL; see the server's pg_hba.conf",
            )
        case "3D000":
            name = url.database or user
            return UnreachableError(
                f"Postgres has no database {name!r}", where=where, fix=f"createdb {name}, or name another in the URL"
            )
        case "42501":
            return forbidden(url)
        case "53300":
            return UnreachableError(
                "Postgres has no free connection", where=where, fix="raise max_connections, or stop other clients"
            )
        case "57P03" | "57P01":
            return UnreachableError("Postgres is starting or stopping", where=where, fix="wait; it is tried again")
        case None if isinstance(error, TimeoutError):  # before OSError, the base class of TimeoutError
            waited = f"within {limits.DATABASE_CONNECT_TIMEOUT_S:g} s"
            return UnreachableError(f"Postgres does not answer {waited}", where=where, fix=_ADDRESS)
        case None if isinstance(error, OSError):
            return UnreachableError(f"no Postgres answers: {error.strerror or error}", where=where, fix=_ADDRESS)
        case None if isinstance(error, ValueError):
            return UsageError(f"the state database's URL is wrong: {error}", fix="postgresql://USER@HOST:5432/DATABASE")
    return UnreachableError(f"Postgres refused the connection: {error}", where=where, fix=_ADDRESS)


def forbidden(url: URL) -> RftdError:
    """Returns the error for a database user without the right to create the tables."""
    user = url.username or "USER"
    name = url.database or "DATABASE"
    return UnreachableError(
        f"Postgres gives user {user} no right to make tables",
        where=_place(url),
        fix=f'GRANT CREATE ON DATABASE "{name}" TO "{user}", or CREATE SCHEMA {SCHEMA} AUTHORIZATION "{user}"',
    )


_ADDRESS: Final = "check host and port in the URL and that the server runs and listens there"
"""Fix shown for a server out of reach."""


def _place(url: URL) -> str:
    """Returns the server's address without the password, for errors."""
    return URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database
    ).render_as_string()
