"""`SecuredKafka`: a real broker with TLS, logins and access control, set up by the very lines of docs/production.md."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import jgo
from synthetic.docs.pages import ROOT, blocks_of
from synthetic.servers.certificates import Authority

from rftd.daemon.stack.kafka import classpath, java

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
