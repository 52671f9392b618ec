"""Checks of the Kafka and the Postgres that the daemon is to use."""

from __future__ import annotations

import asyncio
from typing import Final

from rftd.daemon.doctor.finding import Finding
from rftd.ops.errors import RftdError
from rftd.streams.backends.kafka.missing import missing_records
from rftd.streams.backends.kafka.settings import KafkaSettings, parse_kafka
from rftd.streams.backends.kafka.topics import Difference, topic_differences

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 20.0
"""So long the offsets of a long log are looked through; `rftd verify` reads all of them."""


def check_kafka(url: str | None) -> list[Finding]:
    """That the brokers answer, that the topics are as they must be, and what this cluster does not promise."""
    if not url:
        return []
    try:
        settings = parse_kafka(url)
        differences = asyncio.run(asyncio.wait_for(topic_differences(settings), _TIMEOUT_S))
    except TimeoutError:
        return [Finding("kafka", "fail", f"no answer within {_TIMEOUT_S:g} s", "see whether the brokers run")]
    except RftdError as error:
        return [Finding("kafka", "fail", f"{error.where}: {error.what}", error.fix or "see rftd explain " + error.code)]
    found = [Finding("kafka", "ok", f"{settings.bootstrap} answers")]
    missing = [difference.topic for difference in differences if difference.setting == "existence"]
    if missing:
        what = f"missing: {', '.join(missing)}"
        found.append(Finding("topics", "warn", what, "start `rftd serve`: it creates them, if it may"))
    found += [_topic(difference) for difference in differences if difference.setting != "existence"]
    if not missing:
        found += _deleted(settings)
    if not differences:
        found.append(Finding("topics", "ok", "all are there, as they must be"))
    if settings.replication < 2:
        found.append(
            Finding(
                "replication",
                "warn",
                "one copy of each record: a broker that loses its disk, or its power, loses acknowledged records",
                "on a cluster set replication=3; new topics then acknowledge from two copies",
            )
        )
    hosts = {host.rpartition(":")[0] for host in settings.bootstrap.split(",")}
    if settings.security == "PLAINTEXT" and not hosts <= _LOOPBACK:
        found.append(
            Finding("encryption", "warn", "records cross the network in plain text", "set security=SSL or SASL_SSL")
        )
    return found


def _deleted(settings: KafkaSettings) -> list[Finding]:
    """Partitions of truth of which records are gone."""
    try:
        gone, looked, there = asyncio.run(asyncio.wait_for(missing_records(settings, within_s=_LOOK_S), _TIMEOUT_S))
    except (RftdError, TimeoutError):
        return []  # without topics; what else is wrong is said elsewhere
    found = [
        Finding(
            "records",
            "fail",
            f"{partition}@{first} to {end - 1} were deleted, or compacted away, and they are truth",
            "restore them from a replica or a backup; experiments that need them stop, see `rftd serve --accept-loss`",
        )
        for partition, (first, end) in gone
    ]
    if looked < there:
        what = f"looked for gaps in {looked:,} of {there:,} within {_LOOK_S:g} s"
        found.append(Finding("records", "ok", what, "`rftd verify` reads all of them"))
    return found


def check_postgres(url: str | None) -> list[Finding]:
    """That the database answers and is of our schema."""
    if not url:
        return []
    from rftd.daemon.daemon_file import checked_postgres_url

    try:
        what = asyncio.run(asyncio.wait_for(_ask(checked_postgres_url(url)), _TIMEOUT_S))
    except TimeoutError:
        return [Finding("postgres", "fail", f"no answer within {_TIMEOUT_S:g} s", "see whether the server runs")]
    except RftdError as error:
        return [Finding("postgres", "fail", error.what, error.fix or "see rftd explain " + error.code)]
    except Exception as error:  # of the driver, in many classes; its text names no password
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        return [Finding("postgres", "fail", reason, "check address, user and PGPASSWORD")]
    return [Finding("postgres", "ok", what)]


async def _ask(url: str) -> str:
    from sqlalchemy import text

    from rftd.storage.database import open_database

    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            version = await connection.scalar(text("SHOW server_version"))
            may = await connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')"))
    finally:
        await engine.dispose()
    return f"PostgreSQL {version}" + (
        "; this user may not create tables: GRANT CREATE ON SCHEMA public" if may is False else ""
    )


def _topic(difference: Difference) -> Finding:
    return Finding("topics", "fail" if difference.fatal else "warn", difference.what, difference.fix)
