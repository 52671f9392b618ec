"""The demo's own Kafka and Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def servers(folder: Path, *, wanted: bool, echo: Callable[..., None]) -> Iterator[Mapping[str, str]]:
    """Real servers with their data below `folder` while the block runs; what tells `rftd serve` of them.

    Nothing is started, and nothing told, unless `wanted`. The password travels in the environment only.
    """
    if not wanted:
        yield {}
        return
    from rftd.daemon.stack.kafka import KafkaBroker
    from rftd.daemon.stack.postgres import PostgresServer

    with ExitStack() as stack:
        echo("starting Apache Kafka and PostgreSQL; the first time they are downloaded")
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        database = stack.enter_context(PostgresServer(folder / "postgres"))
        echo(f"Kafka {broker.bootstrap}   PostgreSQL {database.url_without_password}")
        yield {"RFTD_KAFKA": broker.bootstrap, "RFTD_POSTGRES": database.url}
