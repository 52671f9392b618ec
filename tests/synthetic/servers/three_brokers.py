"""A Kafka of three brokers and a controller on loopback: any broker dies while the other two hold every partition."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.record.memory_records import MemoryRecords

from rftd.daemon.stack.kafka import classpath, java, live_brokers
from rftd.daemon.stack.ports import LOOPBACK, kept_ports
from rftd.daemon.stack.process import ServerProcess
from rftd.streams.kafka.records import envelope_of

BROKERS: Final = (1, 2, 3)
_CONTROLLER: Final = 4
_TIMEOUT_S: Final = 120.0
# The controller takes a broker for dead after a session without a heartbeat: by default only after 9 s.
_ALL: Final = """\
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
log.cleaner.dedupe.buffer.size=16777216
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
"""


class ThreeBrokers:
    """Three brokers, each with a folder of its own, and the controller, which nobody kills."""

    def __init__(self, folder: Path) -> None:
        """Chooses the ports; starts nothing."""
        self._folder = folder
        self._nodes = {number: folder / f"node-{number}" for number in (*BROKERS, _CONTROLLER)}
        self._processes = {number: ServerProcess(path, f"broker {number}") for number, path in self._nodes.items()}
        ports = kept_ports(folder / "ports.json", dict.fromkeys(map(str, self._nodes), 0), running=False)
        self._ports = {int(name): port for name, port in ports.items()}

    def url(self, prefix: str) -> str:
        """A log on this cluster, for RFTD_KAFKA."""
        hosts = ",".join(f"{LOOPBACK}:{self._ports[number]}" for number in BROKERS)
        return f"kafka://{hosts}/?prefix={prefix}&replication={len(BROKERS)}"

    def start(self) -> None:
        """Returns when all three serve; what runs already goes on."""
        if not self._folder.joinpath("formatted").exists():
            self._format()
        for number in (_CONTROLLER, *BROKERS):
            self._launch(number)
        for number in BROKERS:
            self._processes[number].wait_ready(partial(_serves, self._ports[number]))

    def start_one(self, number: int) -> None:
        """Starts one; whether it serves already, `until_in_sync` tells."""
        self._launch(number)

    def kill(self, *numbers: int) -> None:
        """SIGKILLs these brokers, all before any of them can tell another."""
        pids = [pid for number in numbers if (pid := self._processes[number].pid) is not None]
        assert len(pids) == len(numbers)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for number in numbers:
            self._processes[number].kill()

    def end(self) -> None:
        """SIGKILLs everything."""
        for process in self._processes.values():
            process.kill()

    async def led_by(self, number: int) -> int:
        """The number of partitions that a broker leads."""
        return sum(part["leader"] == number for part in await self._partitions())

    async def leader_of(self, topic: str) -> int:
        """The broker that leads its first partition."""
        return next(part["leader"] for part in await self._partitions(topic) if part["partition"] == 0)

    async def fewest_in_sync(self) -> int:
        """Copies in sync of the partition that has the fewest."""
        return min(len(part["isr"]) for part in await self._partitions())

    def copies(self) -> Counter[bytes]:
        """The number of brokers' files that hold each record, by its identity; a dead broker's files count too."""
        found: Counter[bytes] = Counter()
        for number in BROKERS:
            found.update(set(_identities(self._data(number).glob("*/*.log"))))
        return found

    async def _partitions(self, *topics: str) -> list[dict[str, Any]]:
        live = [f"{LOOPBACK}:{self._ports[number]}" for number in BROKERS if self._processes[number].pid is not None]
        admin = AIOKafkaAdminClient(bootstrap_servers=live)
        await admin.start()
        try:
            return [part for topic in await admin.describe_topics(list(topics) or None) for part in topic["partitions"]]
        finally:
            await admin.close()

    def _data(self, number: int) -> Path:
        return self._nodes[number] / "data"

    def _launch(self, number: int) -> None:
        process = self._processes[number]
        if process.pid is not None:
            return
        heap_mib = 128 if number == _CONTROLLER else 192
        options = [f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath()]
        config = self._nodes[number] / "server.properties"
        process.spawn([str(java()), *options, "kafka.Kafka", str(config)], cwd=self._nodes[number], environ=os.environ)

    def _format(self) -> None:
        """Formats all the folders as one node's, since each run costs seconds, and then tells each its number."""
        for number, path in self._nodes.items():
            path.mkdir(parents=True)
            (path / "server.properties").write_text(self._properties(number, str(self._data(number))))
        every = self._folder / "format.properties"
        every.write_text(self._properties(_CONTROLLER, ",".join(str(self._data(number)) for number in self._nodes)))
        cluster = base64.urlsafe_b64encode(b"\1" + secrets.token_bytes(15)).rstrip(b"=").decode()
        words = ["-Xmx128m", "-cp", classpath(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(every)]
        subprocess.run([str(java()), *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        for number in self._nodes:
            meta = self._data(number) / "meta.properties"
            meta.write_text(re.sub(r"(?m)^node\.id=\d+$", f"node.id={number}", meta.read_text()))
        (self._folder / "formatted").touch()

    def _properties(self, number: int, data: str) -> str:
        controls = number == _CONTROLLER
        address = f"{'CONTROLLER' if controls else 'PLAINTEXT'}://{LOOPBACK}:{self._ports[number]}"
        lines = [
            f"process.roles={'controller' if controls else 'broker'}",
            f"node.id={number}",
            f"controller.quorum.voters={_CONTROLLER}@{LOOPBACK}:{self._ports[_CONTROLLER]}",
            f"listeners={address}",
            f"log.dirs={data}",
        ]
        return _ALL + "\n".join(lines) + "\n"


async def until_in_sync(cluster: ThreeBrokers, copies: int = len(BROKERS)) -> None:
    """Returns once the partition with the fewest copies in sync has so many."""
    deadline_s, fewest = time.monotonic() + _TIMEOUT_S, -1
    while fewest != copies:
        assert time.monotonic() < deadline_s, fewest
        with suppress(KafkaError):  # it asked one that is dead, or does not serve yet
            fewest = await cluster.fewest_in_sync()
        await asyncio.sleep(0.2)


def _serves(port: int) -> bool:
    return live_brokers(port) == len(BROKERS)


def _identities(segments: Iterable[Path]) -> Iterable[bytes]:
    for segment in segments:
        batches = MemoryRecords(segment.read_bytes())
        while (batch := batches.next_batch()) is not None:
            for record in batch:
                yield envelope_of(record.headers, record.value or b"").key
