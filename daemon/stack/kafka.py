"""`KafkaBroker`: a real Apache Kafka on this machine, one process that is broker and controller (KRaft)."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rftd.daemon.living_wait import run_to_end
from rftd.daemon.stack.kafka_properties import BrokerPorts, Mechanism, classpath, java, properties
from rftd.daemon.stack.ports import LOOPBACK, kept_ports, refuse_used
from rftd.daemon.stack.process import LocalServer
from rftd.ops.errors import UnreachableError

_METADATA: Final = 3
"""The key of the request that every broker answers, and the version of it."""
_METADATA_VERSION: Final = 4
_ANSWER_TIMEOUT_S: Final = 5.0


class KafkaBroker(LocalServer):
    """One broker and its data in one folder. Every call blocks; from a loop use `asyncio.to_thread`."""

    stop_signal = signal.SIGTERM

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
        """Chooses the ports and keeps them in `folder`; starts nothing.

        `port` 0 takes the kept port, or a free one. `advertised_port` is told to the clients of `port` in its place:
        that of a proxy before it. `users` (name: password) adds a listener that demands a login by `mechanism`;
        SCRAM's users are those of the folder's first start.
        """
        super().__init__(folder, "Kafka")
        wanted = {"plain": port, "direct": 0, "controller": 0, "sasl": 0}
        running = self._process.pid is not None
        self._ports = BrokerPorts(**kept_ports(self.folder / "ports.json", wanted, running=running))
        self._advertised = advertised_port
        self._users = dict(users or {})
        self._mechanism = mechanism
        self._java_options = (f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", *java_options)

    @property
    def port(self) -> int:
        """The port of the plain listener; a proxy's target."""
        return self._ports.plain

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients: the advertised port, if there is one."""
        return f"{LOOPBACK}:{self._advertised or self._ports.plain}"

    @property
    def direct_bootstrap(self) -> str:
        """`host:port` that leads to the broker past any proxy, and stays there."""
        return f"{LOOPBACK}:{self._ports.direct}"

    @property
    def sasl_bootstrap(self) -> str:
        """`host:port` of the listener that demands a login (SASL_PLAINTEXT)."""
        assert self._users, "a broker without users has no such listener"
        return f"{LOOPBACK}:{self._ports.sasl}"

    @property
    def ready(self) -> bool:
        """True if it answers and serves."""
        return live_brokers(self._ports.direct) > 0

    def _launch(self) -> None:
        for port in (self._ports.plain, self._ports.direct, self._ports.controller):
            refuse_used(port, "kafka")
        program = str(java())
        jars = classpath()
        data = self.folder / "data"
        if not data.exists():
            self._format(program, jars, data)
        config = self._write("server.properties", self._properties(data))
        options = [*self._java_options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars]
        self._process.spawn([program, *options, "kafka.Kafka", str(config)], cwd=self.folder, environ=os.environ)

    def _format(self, program: str, jars: str, data: Path) -> None:
        """Makes `data`, whole or not at all."""
        new = data.with_name("data.new")
        shutil.rmtree(new, ignore_errors=True)
        config = self._write("format.properties", self._properties(new))
        # The first byte is fixed: an id must not begin with a dash.
        cluster = base64.urlsafe_b64encode(b"\1" + secrets.token_bytes(15)).rstrip(b"=").decode()
        words = ["-Xmx128m", "-cp", jars, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        if self._mechanism != "PLAIN":
            for name, password in self._users.items():
                words += ["--add-scram", f"{self._mechanism}=[name={name},password={password}]"]
        # In a file, since every user of the machine can read a command line.
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix="format.") as file:
            file.write("\n".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words))
            file.flush()
            done = run_to_end([program, f"@{file.name}"], "Kafka's data folder has been in the making")
        config.unlink()
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-1000:]
            raise UnreachableError(f"Kafka's data folder cannot be made: {said}", where=str(data))
        new.rename(data)

    def _properties(self, data: Path) -> str:
        return properties(self._ports, data, advertised=self._advertised, users=self._users, mechanism=self._mechanism)

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        # A new file with its mode from the first byte on: one that exists already would keep the rights it has.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # PLAIN's passwords stand in it
        path.write_text(text)
        return path


def live_brokers(port: int) -> int:
    """The number of brokers that the one at `port` names to its clients; 0 if nothing answers.

    A port that accepts is not enough: a broker opens it before the controller lets it serve, and names itself after.
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
