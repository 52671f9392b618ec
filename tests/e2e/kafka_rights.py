"""Each role under a Kafka user of its own, with the rights of docs/production.md and no others: `make test-kafka-acl`.

The broker's settings, users and rights are the page's lines. A whole run of daemon, explorer and trainer, submitted by
a producer, has to work with them; everything that the page's table does not grant has to be refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import jgo
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.docs.pages import ROOT, blocks_of, prose_of
from synthetic.servers.certificates import Authority
from synthetic.until import poll

from rftd.daemon.stack.kafka import classpath, java
from rftd.streams.events import experiment as life
from rftd.streams.kafka.connect import arguments
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.kafka.topics import rights_of_user
from rftd.streams.log.topics import TOPICS

PAGE: Final = ROOT / "docs" / "production.md"
START_S: Final = 180.0
# Of one broker on a small machine; none of it is about security.
_SMALL: Final = """
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=1
num.io.threads=2
"""
_TOOLS: Final = "org.apache.kafka:kafka-tools:4.3.1"
_CLASSES: Final = {
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
_ADMIN: Final = "admin-secret-of-the-test"


class SecuredKafka:
    """One broker with the page's settings, users and rights. `passwords` are those of the page's users."""

    def __init__(self, folder: Path, passwords: Mapping[str, str]) -> None:
        self.folder = folder
        self.passwords = dict(passwords)
        self.authority = Authority(folder / "tls")
        certificate, key = self.authority.certificate("kafka-1")
        (folder / "tls" / "broker.pem").write_text(key.read_text() + certificate.read_text())
        self.port, self._controller_port = _free_ports()
        self._jars = os.pathsep.join((classpath(), *_tools()))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address of the only listener for clients."""
        return f"127.0.0.1:{self.port}"

    def url(self, user: str) -> str:
        """The address for `RFTD_KAFKA`, with the user's password in a variable of its own."""
        ca_file = self.authority.ca_file
        return f"kafka://{user}@{self.bootstrap}/?security=SASL_SSL&ca_file={ca_file}&password_env={variable(user)}"

    def environ(self, user: str) -> dict[str, str]:
        """The variables of a process that has the user's login, and nobody else's."""
        return {"RFTD_KAFKA": self.url(user), variable(user): self.passwords[user]}

    def __enter__(self) -> Self:
        (self.folder / "server.properties").write_text(self._here(block("properties")) + _SMALL)
        login = f'username="admin" password="{_ADMIN}"'
        (self.folder / "admin.properties").write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority.ca_file}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
        )
        for user, password in self.passwords.items():
            (self.folder / f"{user}.scram").write_text(f"SCRAM-SHA-512=password={password}\n")
        for line in commands("kafka-storage.sh"):
            self.run(line.replace("$(kafka-storage.sh random-uuid)", "cmZ0ZC1jb21wb3NlLTAwMQ"))
        with (self.folder / "broker.log").open("wb") as output:
            self._process = subprocess.Popen(
                self._java("-Xmx384m", "kafka.Kafka", "server.properties"),
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        try:
            self._wait()
            for script in ("kafka-configs.sh", "kafka-acls.sh"):
                for line in commands(script):
                    self.run(line)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, line: str) -> None:
        """Runs one command of the page against this broker."""
        script, *words = shlex.split(self._here(line))
        done = subprocess.run(
            self._java("-Xmx128m", _CLASSES[script], *words), cwd=self.folder, capture_output=True, timeout=120
        )
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, (line, said)
        assert "Error while executing" not in said, (line, said)

    def _java(self, heap: str, *words: str) -> list[str]:
        quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        return [str(java()), heap, *quick, "-cp", self._jars, *words]

    def _here(self, text: str) -> str:
        """The page's text with this machine's address and folders."""
        for theirs, ours in (
            ("kafka-1:9093", self.bootstrap),
            ("kafka-1:9094", f"127.0.0.1:{self._controller_port}"),
            ("//:9093", f"//{self.bootstrap}"),
            ("//:9094", f"//127.0.0.1:{self._controller_port}"),
            ("/etc/kafka/", f"{self.folder}/tls/"),
            ("/var/lib/kafka/data", f"{self.folder}/data"),
            ("ADMIN-PASSWORD", _ADMIN),
        ):
            text = text.replace(theirs, ours)
        return text

    def _wait(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            assert self._process.poll() is None, (self.folder / "broker.log").read_text()[-4000:]
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise AssertionError((self.folder / "broker.log").read_text()[-4000:])

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def variable(user: str) -> str:
    """The variable with the user's password."""
    return f"PASSWORD_OF_{user.upper().replace('-', '_')}"


def block(language: str) -> str:
    """The page's only block in a language."""
    (found,) = (each.text for each in blocks_of(PAGE, language))
    return found


def commands(script: str) -> Iterator[str]:
    """The page's command lines of one of Kafka's programs."""
    for each in blocks_of(PAGE, "console"):
        yield from (line for line in each.text.splitlines() if line.startswith(f"{script} "))


def _tools() -> list[str]:
    """The jar of kafka-acls.sh; what it needs is among the broker's."""
    found = [each for each in jgo.resolve(_TOOLS) if "/kafka-tools/" in str(each.resolve())]
    return [str(each.resolve()) for each in found]


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """A broker with the page's users, each with a password of its own."""
    users = ("rftd", "rftd-explorer", "rftd-trainer", "producer")
    with SecuredKafka(folder, {user: f"secret-of-{user}-3f9a" for user in users}) as broker:
        yield broker


USERS = {"daemon": "rftd", "explorer": "rftd-explorer", "trainer": "rftd-trainer", "producer": "producer"}


@pytest.fixture(scope="module")
def broker(servers_folder: Path) -> Iterator[SecuredKafka]:
    folder = servers_folder / "secured"
    folder.mkdir()
    with secured_kafka(folder) as running, pytest.MonkeyPatch.context() as patch:
        for user, password in running.passwords.items():  # this process reads the log and plays each of them
            patch.setenv(variable(user), password)
        yield running


@contextmanager
def worker(scene: Scene, role: str) -> Iterator[None]:
    process = scene.spawn(role, "worker", role)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ended_run(broker: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run that a producer submitted, with every process under its own user; the daemon has drained."""
    scene, *others = (
        Scene(tmp_path_factory.mktemp(role), "--roots", "/", "--workers", "external", environ=broker.environ(user))
        for role, user in USERS.items()
        if role != "producer"
    )
    file = EXPERIMENT.replace("./", f"{scene.folder}/").replace("model_path: fake", f"model_path: {scene.folder}/fake")
    for key, value in (each.split("=") for each in SHORT[1:]):
        name = key.rpartition(".")[2]
        file = re.sub(rf"(?m)^(  {name}:).*$", rf"\1 {value}", file)
    file = file[: file.index("stages:")]
    event = {"specversion": "1.0", "type": "rftd.experiment.submit", "source": "/ci", "id": "1"}
    value = json.dumps({**event, "datacontenttype": "application/yaml", "data": file}).encode()
    with scene.host, ExitStack() as stack:
        for each, role in zip(others, ("explorer", "trainer"), strict=True):
            stack.enter_context(worker(each, role))
        assert written(broker, "producer", "rftd.requests", value)
        poll(lambda: bool(scene.events(life.ExperimentSubmitted)))
        assert scene.until_ended("sums").experiment.summary.state == "completed"
    report = scene.verified()
    assert report.clean, report.findings
    assert not report.dead_letters
    for each in (scene, *others):
        for log in each.folder.glob("*.log"):
            assert not any(password in log.read_text() for password in broker.passwords.values()), log
    return scene


def written(broker: SecuredKafka, user: str, topic: str, value: bytes) -> bool:
    """False if Kafka forbids the user to write there."""

    async def send() -> bool:
        async with AIOKafkaProducer(**arguments(parse_kafka(broker.url(user)))) as producer:
            try:
                await producer.send_and_wait(topic, value, key=b"ci")
            except kafka.TopicAuthorizationFailedError:
                return False
            return True

    return asyncio.run(send())


def granted() -> dict[str, dict[str, frozenset[str]]]:
    """The page's table: the rights of each user on each topic."""
    found: dict[str, dict[str, frozenset[str]]] = {user: {} for user in USERS.values()}
    for line in prose_of(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].strip("`") in TOPICS:
            for user, cell in zip(USERS.values(), cells[1:5], strict=True):
                rights = {word.strip().capitalize() for word in cell.split(",") if word.strip()}
                found[user][cells[0].strip("`")] = frozenset(rights)
    return found


def test_the_table_of_the_page_is_what_each_user_may(broker: SecuredKafka, ended_run: Scene) -> None:
    table = granted()
    for user in USERS.values():
        allowed = asyncio.run(rights_of_user(parse_kafka(broker.url(user))))
        told = {topic: rights & {"Read", "Write"} for topic, rights in allowed.items()}
        assert told == table[user], user
        for topic, rights in table[user].items():
            assert written(broker, user, topic, b"garbage") == ("Write" in rights), (user, topic)


def test_the_doctor_names_missing_rights(broker: SecuredKafka, ended_run: Scene) -> None:
    said = {user: doctor(ended_run, broker, user) for user in USERS.values()}
    assert "all that a daemon needs" in said["rftd"][1]
    assert (
        "enough for the role explorer; for a daemon, the user rftd-explorer lacks Write on" in said["rftd-explorer"][1]
    )
    assert "enough for the role trainer;" in said["rftd-trainer"][1]
    assert [said[user][0] for user in USERS.values()] == [0, 0, 0, 1]
    assert "the user producer lacks Describe, DescribeConfigs, Read, Write on rftd.experiments" in said["producer"][1]


def doctor(scene: Scene, broker: SecuredKafka, user: str, **environ: str) -> tuple[int, str]:
    done = scene.rftd("doctor", environ={"COLUMNS": "200", **broker.environ(user), **environ})
    return done.status, " ".join((done.out + done.err).split())


def test_wrong_logins_and_certificates_are_named(broker: SecuredKafka, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    url = broker.url("rftd")
    elsewhere = url.replace("127.0.0.1", "localhost")
    for environ, *texts in (
        ({"PASSWORD_OF_RFTD": "wrong-secret"}, "refused the user 'rftd'"),
        ({"PASSWORD_OF_RFTD": ""}, "no password for the Kafka user 'rftd'", "PASSWORD_OF_RFTD"),
        ({"RFTD_KAFKA": url.replace("rftd@", "nobody@")}, "refused the user 'nobody'"),
        ({"RFTD_KAFKA": elsewhere}, "no TLS connection", "localhost"),
        ({"RFTD_KAFKA": re.sub("&ca_file=[^&]*", "", url)}, "no TLS connection", "certificate"),
    ):
        status, said = doctor(scene, broker, "rftd", **environ)
        assert status == 1, said
        assert all(text in said for text in texts), said
        variables = {**broker.environ("rftd"), **environ}
        read = scene.rftd("verify", "--kafka", variables["RFTD_KAFKA"], environ=variables)
        assert read.status == 2, read
        assert "RFTD-CFG-001" in read.err, read
        assert "Traceback" not in read.err
        assert "wrong-secret" not in said + read.out + read.err
