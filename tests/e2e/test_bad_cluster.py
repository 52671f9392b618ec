"""A Kafka or a Postgres that is wrong in some way: the daemon lives, says what, where and the fix, and waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from sqlalchemy import text
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.faults.tcp_proxy import TcpProxy

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import NoDaemonError, find_address
from rftd.daemon.observe.doctor.cluster import check_postgres
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops import limits
from rftd.storage.database.engine import open_database
from rftd.storage.database.migrations import VERSION_TABLE
from rftd.streams.log import topics
from rftd.streams.log.topics import TOPICS, TRUTH

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

WAIT_S = 60.0


class BufferEntry:
    """A daemon that is live and not ready, until somebody puts things right."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], url: str) -> None:
        self._log, self._data, self._process, self._url = folder / "serve.log", folder / "data", process, url

    def refuses(self, *words: str) -> str:
        """What /readyz says once it says all the words; never a crash, never a traceback."""
        deadline_s = time.monotonic() + WAIT_S
        while (said := self._ask("/readyz"))[0] != 503 or not all(word in said[1] for word in words):
            assert self._process.poll() is None, (said, self.log)
            assert time.monotonic() < deadline_s, (said, self.log)
            time.sleep(0.1)
        assert self._ask("/livez")[0] == 200
        assert "; fix: " in said[1], said
        assert "RFTD-" in said[1], said
        assert "Traceback" not in self.log, self.log
        return said[1]

    def becomes_ready(self) -> None:
        """Returns once it has found everything in order."""
        deadline_s = time.monotonic() + WAIT_S
        while (said := self._ask("/readyz"))[0] != 200:
            assert self._process.poll() is None, (said, self.log)
            assert time.monotonic() < deadline_s, (said, self.log)
            time.sleep(0.1)

    @property
    def log(self) -> str:
        """What it printed."""
        return self._log.read_text()

    def _ask(self, path: str) -> tuple[int, str]:
        try:
            headers = find_address(Settings(data=str(self._data)), {}).headers
            answer = httpx.get(self._url + path, headers=headers, timeout=10.0, trust_env=False)
        except (OSError, httpx.HTTPError, NoDaemonError) as error:
            return 0, str(error)
        return answer.status_code, answer.text


@contextmanager
def serving(folder: Path, **environ: str) -> Iterator[BufferEntry]:
    """`rftd serve` with these settings. SIGTERM must end it with status 0, whatever it waits for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = Scene(folder, environ=environ).spawn("serve", "serve", "--port", str(port))
    try:
        daemon = BufferEntry(folder, process, f"http://127.0.0.1:{port}")
        yield daemon
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, daemon.log
        assert "Traceback" not in daemon.log, daemon.log
    finally:
        process.kill()
        process.wait()


def test_a_broker_that_is_not_there_yet(tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    with TcpProxy(kafka_broker.port) as proxy:
        proxy.cut()
        url = f"kafka://127.0.0.1:{proxy.port}/?prefix={kafka_prefix}"
        with serving(tmp_path, RFTD_KAFKA=url) as daemon:
            daemon.refuses("RFTD-NET-001", "Kafka does not answer", "check the address")
            proxy.heal()
            daemon.becomes_ready()


def test_a_daemon_ends_while_its_broker_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path, RFTD_KAFKA="127.0.0.1:1") as daemon:
        daemon.refuses("RFTD-NET-001", "Kafka does not answer")


@pytest.mark.slow
def test_a_broker_that_asks_for_a_login(tmp_path: Path, own_servers: Path) -> None:
    with KafkaBroker(own_servers / "kafka", users={"alice": "right-secret"}) as broker:
        url = f"kafka://alice@{broker.sasl_bootstrap}/?security=SASL_PLAINTEXT&mechanism=SCRAM-SHA-512"
        with serving(tmp_path, RFTD_KAFKA=url, RFTD_KAFKA_PASSWORD="wrong-secret") as daemon:
            daemon.refuses("RFTD-CFG", "'alice'", "$RFTD_KAFKA_PASSWORD")
            assert "wrong-secret" not in daemon.log
        with serving(tmp_path, RFTD_KAFKA=url, RFTD_KAFKA_PASSWORD="") as daemon:
            daemon.refuses("no password for the Kafka user 'alice'", "RFTD_KAFKA_PASSWORD")
        with serving(tmp_path, RFTD_KAFKA=url.replace("alice", "bob"), RFTD_KAFKA_PASSWORD="right-secret") as daemon:
            daemon.refuses("'bob'")
        plain = url.replace("SCRAM-SHA-512", "PLAIN")
        with serving(tmp_path, RFTD_KAFKA=plain, RFTD_KAFKA_PASSWORD="right-secret") as daemon:
            daemon.refuses("PLAIN", "mechanism")
        with serving(tmp_path, RFTD_KAFKA=url, RFTD_KAFKA_PASSWORD="right-secret") as daemon:
            daemon.becomes_ready()
            assert "right-secret" not in daemon.log


def test_a_topic_with_other_partitions(tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    name = kafka_prefix + topics.EXPERIENCES
    asyncio.run(_create_topic(kafka_broker.bootstrap, name, TOPICS[topics.EXPERIENCES].partitions + 1))
    with serving(tmp_path, RFTD_KAFKA=f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}") as daemon:
        daemon.refuses(f"partitions of {name} is", "use another prefix=")


def test_topics_that_cannot_be_created(tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str) -> None:
    url = f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}&replication=3"
    with serving(tmp_path, RFTD_KAFKA=url) as daemon:
        daemon.refuses("cannot be created", "lower replication=")


def test_a_database_that_is_not_there_yet(tmp_path: Path, postgres_server: PostgresServer, postgres_url: str) -> None:
    with TcpProxy(postgres_server.port) as proxy:
        proxy.cut()
        url = postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with serving(tmp_path, RFTD_POSTGRES=url) as daemon:
            daemon.refuses("RFTD-NET-001", "Postgres", "check host and port")
            proxy.heal()
            daemon.becomes_ready()
        with serving(tmp_path, RFTD_POSTGRES=f"{postgres_url}_is_none") as daemon:
            daemon.refuses("has no database", "createdb")


def test_a_database_that_asks_for_a_password(tmp_path: Path, own_servers: Path) -> None:
    with PostgresServer(own_servers / "postgres", durable=False) as server:
        wrong = server.url_without_password.replace("rftd@", "rftd:wrong-secret@", 1)
        with serving(tmp_path, RFTD_POSTGRES=wrong) as daemon:
            daemon.refuses("refused user rftd", "PGPASSWORD")
            assert "wrong-secret" not in daemon.log
        with serving(tmp_path, RFTD_POSTGRES=server.url_without_password, PGPASSFILE=str(server.pass_file)) as daemon:
            daemon.becomes_ready()


def test_a_user_without_the_right_to_create(tmp_path: Path, postgres_server: PostgresServer, postgres_url: str) -> None:
    user, database = f"guest_{os.getpid()}", postgres_url.rpartition("/")[2]
    asyncio.run(_sql(postgres_url, f"CREATE USER {user}"))
    theirs = f"postgresql://{user}@{postgres_server.address}/{database}"
    try:
        (found,) = check_postgres(theirs)
        assert found.status == "fail"
        assert "GRANT CREATE ON DATABASE" in found.fix
        with serving(tmp_path, RFTD_POSTGRES=theirs) as daemon:
            daemon.refuses(f"gives user {user} no right", f'GRANT CREATE ON DATABASE "{database}"')
            asyncio.run(_sql(postgres_url, f"GRANT CREATE ON DATABASE {database} TO {user}"))
            assert [each.status for each in check_postgres(theirs)] == ["ok"]
            daemon.becomes_ready()
        assert [each.status for each in check_postgres(theirs)] == ["ok"], "the schema is there now"
    finally:
        asyncio.run(_sql(postgres_url, f"DROP OWNED BY {user} CASCADE", f"DROP USER {user}"))


def test_a_database_of_another_release(tmp_path: Path, postgres_url: str) -> None:
    with serving(tmp_path, RFTD_POSTGRES=postgres_url) as daemon:
        daemon.becomes_ready()
    asyncio.run(_sql(postgres_url, f"UPDATE rftd.{VERSION_TABLE} SET version_num = 'from_the_future'"))
    with serving(tmp_path, RFTD_POSTGRES=postgres_url) as daemon:
        daemon.refuses("another release of rftd (schema from_the_future")


@pytest.mark.slow
def test_records_of_a_bare_client_are_dead_letters_and_the_run_completes(
    tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str, postgres_url: str
) -> None:
    url = f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}"
    scene = Scene(tmp_path, environ={"RFTD_KAFKA": url, "RFTD_POSTGRES": postgres_url})
    with scene.host:
        first = asyncio.run(_garbage(kafka_broker.bootstrap, kafka_prefix))
        name = scene.submit(EXPERIMENT, *SHORT)
        scene.until_step(name, 2)
        second = asyncio.run(_garbage(kafka_broker.bootstrap, kafka_prefix))
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        written = {place for place in first | second if place.partition("/")[0] in {p.stream for p in TRUTH}}
        deadline_s = time.monotonic() + WAIT_S
        while not all(letter.pointed_at for letter in scene.verified().dead_letters):
            assert time.monotonic() < deadline_s, scene.verified().dead_letters
            time.sleep(0.2)
    report = scene.verified()
    assert report.clean, report.findings
    assert Counter(letter.place for letter in report.dead_letters) == Counter(written)
    assert asyncio.run(_rows(postgres_url, "dead_letters")) == len(written)
    assert "Traceback" not in (tmp_path / "daemon.log").read_text()


async def _garbage(bootstrap: str, prefix: str) -> set[str]:
    """Records of a program that knows nothing of ours, in every topic; one over the limit is refused by the broker."""
    places = set()
    values = (b"", b'{"hello": 1}', os.urandom(1000), os.urandom(limits.RECORD_SIZE_BYTES))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=8 * limits.MIB) as producer:
        for stream in TOPICS:
            for value in values:
                done = await producer.send_and_wait(prefix + stream, value, headers=[("content-type", b"text/plain")])
                places.add(f"{stream}/{done.partition}@{done.offset}")
            with pytest.raises(kafka.MessageSizeTooLargeError):
                await producer.send_and_wait(prefix + stream, os.urandom(limits.RECORD_SIZE_BYTES + limits.MIB))
    return places


async def _create_topic(bootstrap: str, name: str, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        await admin.close()


async def _sql(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement, timeout=30)
    finally:
        await connection.close()


async def _rows(url: str, table: str) -> int:
    engine = open_database(url)
    async with engine.connect() as connection:
        found = int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())
    await engine.dispose()
    return found
