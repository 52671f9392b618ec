"""A scene on a Kafka and a Postgres of its own, each behind a proxy: servers that die, and a network that fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Self

import asyncpg
import httpx
from aiokafka import AIOKafkaConsumer
from synthetic.daemon.command_line import Said
from synthetic.daemon.scene import Scene
from synthetic.faults.tcp_proxy import TcpProxy
from synthetic.until import PATIENCE_S

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.errors import RftdError
from rftd.streams.kafka.partitions import Names
from rftd.streams.kafka.records import envelope_of

NETWORK: Final = ("cut", "reset", "delay", "half_open", "black_hole")
_NUMBERS = count(1)


class Faulted(NamedTuple):
    """A run that ended, and what was done to it."""

    page: ExperimentPage
    faults: tuple[str, ...]


class Cluster:
    """One broker and one database server, and a proxy before each. Entered, they run."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self.kafka_proxy, self.postgres_proxy = TcpProxy(), TcpProxy()
        options = ("-XX:TieredStopAtLevel=1",)
        self.broker = KafkaBroker(folder / "kafka", advertised_port=self.kafka_proxy.port, java_options=options)
        self.postgres = PostgresServer(folder / "postgres", trust=True, durable=False)
        self.kafka_proxy.aim(self.broker.port)
        self.postgres_proxy.aim(self.postgres.port)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.kafka_proxy)
        self._stack.enter_context(self.postgres_proxy)
        self._stack.callback(self.postgres.kill)
        self._stack.callback(self.broker.kill)
        self.revive()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def revive(self) -> None:
        """Everything works again, whatever a test did."""
        for proxy in (self.kafka_proxy, self.postgres_proxy):
            proxy.heal()
        starting = threading.Thread(target=self.postgres.start)
        starting.start()
        self.broker.start()
        starting.join()

    def scene(self, folder: Path, *options: str) -> ClusterScene:
        """A daemon's scene with topics and a database of its own."""
        name = f"c{next(_NUMBERS)}"
        asyncio.run(execute(self.postgres.url, f"CREATE DATABASE {name}"))
        return ClusterScene(self, folder, name, *options)


class ClusterScene(Scene):
    """A scene on a cluster, through its proxies."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, *options: str) -> None:
        self.cluster, self.prefix = cluster, f"{name}."
        self.database_url = cluster.postgres.url_of(name)
        through = self.database_url.replace(f":{cluster.postgres.port}/", f":{cluster.postgres_proxy.port}/")
        kafka = f"kafka://{cluster.broker.bootstrap}/?prefix={self.prefix}"
        self.url = f"http://127.0.0.1:{(port := _free_port())}"
        """Where it answers, ready or not."""
        super().__init__(folder, "--port", str(port), *options, environ={"RFTD_KAFKA": kafka, "RFTD_POSTGRES": through})

    def direct(self, *arguments: str) -> Said:
        """One command line that goes past the proxies."""
        kafka = f"kafka://{self.cluster.broker.direct_bootstrap}/?prefix={self.prefix}"
        return self.rftd(*arguments, environ={"RFTD_KAFKA": kafka, "RFTD_POSTGRES": self.database_url})

    def ready(self) -> tuple[int, str]:
        """The status and the body of /readyz; (0, reason) if nobody answers."""
        try:
            answer = self.get("/readyz")
        except (OSError, httpx.HTTPError, RftdError) as error:
            return 0, str(error)
        return answer.status_code, answer.text

    def until_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Returns once /readyz says yes."""
        deadline_s = time.monotonic() + timeout_s
        while (said := self.ready())[0] != 200:
            assert time.monotonic() < deadline_s, said
            time.sleep(0.1)

    def until_not_ready(self, word: str, timeout_s: float = PATIENCE_S) -> str:
        """The body of /readyz, once it says no with this word in its reasons."""
        deadline_s = time.monotonic() + timeout_s
        while (said := self.ready())[0] != 503 or word not in said[1]:
            assert time.monotonic() < deadline_s, said
            time.sleep(0.1)
        return said[1]

    def until_completed_in_log(self, *, steps: int, timeout_s: float = PATIENCE_S) -> None:
        """Returns once the event log alone, read past the proxies, says that the experiment has completed."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            said = self.direct("verify", "--json")
            report = json.loads(said.out)
            each = report["experiments"][0]
            if each["state"] == "completed":
                assert each["steps"] == steps, report
                assert not report["findings"], report
                return
            assert time.monotonic() < deadline_s, report
            time.sleep(1.0)

    @staticmethod
    def kill_pid(pid: int) -> None:
        """SIGKILL, if the process is there."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def proven(self, name: str, *, steps: int, timeout_s: float = PATIENCE_S) -> dict[str, object]:
        """Figures of the run, once it has completed and every promise was found kept."""
        page = self.until_ended(name, timeout_s)
        figures = self.examined(self._caught_up(page, timeout_s))
        log = (self.folder / "daemon.log").read_text()
        assert figures["state"] == "completed", (figures, page.experiment.summary, log[-3000:])
        assert figures["findings"] == [], figures
        assert figures["balance"] == 0, figures
        assert figures["steps"] == steps, figures
        assert figures["digests_equal"], figures
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
        return figures

    def _caught_up(self, page: ExperimentPage, timeout_s: float) -> ExperimentPage:
        """The page once its books balance: tables that lagged hold the end, on the spine, before other partitions."""
        deadline_s = time.monotonic() + timeout_s
        while page.experiment.books.balance and time.monotonic() < deadline_s:
            time.sleep(0.05)
            page = self.page(page.experiment.summary.name) or page
        return page

    def balance(self, name: str, timeout_s: float = PATIENCE_S) -> int:
        """What the books of an experiment, which may go on, are off by once tables that lagged have caught up."""
        page = self.until_step(name, 0, timeout_s)
        return self._caught_up(page, timeout_s).experiment.books.balance

    def examined(self, page: ExperimentPage) -> dict[str, object]:
        """The findings of the offline checker, the rebuilt tables and the raw topics on a run that has ended."""
        name = page.experiment.summary.name
        report = self.verified()
        rebuilt = self.direct("rebuild", "--verify", "--json")
        summary = next(each for each in report.experiments if each.name == name)
        return {
            "state": page.experiment.summary.state,
            "steps": summary.steps,
            "executions": summary.executions,
            "generations": summary.generations,
            "produced": summary.produced,
            "balance": page.experiment.books.balance,
            "void": summary.void,
            "findings": [f"{finding.rule}: {finding.what}" for finding in report.findings],
            "dead_letters": len(report.dead_letters),
            "repeated_records": asyncio.run(repeated(self.cluster.broker.direct_bootstrap, self.prefix)),
            "digests_equal": rebuilt.status == 0 and json.loads(rebuilt.out)["compared"],
            "daemon_restarts": self.host.restarts,
            "tracebacks": (self.folder / "daemon.log").read_text().count("Traceback"),
        }

    def through(
        self, name: str, faults: int, fault: Fault, chance: random.Random, timeout_s: float = PATIENCE_S
    ) -> Faulted:
        """The run's end, and the faults that came 0.5 to 4 s after one another while it was under way."""
        done: list[str] = []
        over = threading.Event()

        def disturb() -> None:
            while len(done) < faults and not over.wait(chance.uniform(0.5, 4.0)):
                done.append(fault(self.cluster, chance))

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            return Faulted(self.until_ended(name, timeout_s), tuple(done))
        finally:
            over.set()
            thread.join(150)
            self.cluster.revive()


Fault = Callable[[Cluster, random.Random], str]
"""Does harm, undoes it, and says what it was."""


def kill_broker(cluster: Cluster, chance: random.Random) -> str:
    """SIGKILL; started again after up to a second."""
    cluster.broker.kill()
    time.sleep(chance.uniform(0.0, 1.0))
    cluster.broker.start()
    return "broker killed"


def kill_database(cluster: Cluster, chance: random.Random) -> str:
    """SIGKILL; started again after up to a second."""
    cluster.postgres.kill()
    time.sleep(chance.uniform(0.0, 1.0))
    cluster.postgres.start()
    return "database killed"


def fail_network(cluster: Cluster, chance: random.Random, kind: str = "", where: str = "") -> str:
    """One failure of one connection path, healed after 0.3 to 3 s; of the longer ones connections do not survive."""
    kind = kind or chance.choice(NETWORK)
    where = where or chance.choice(("kafka", "postgres"))
    proxy = cluster.kafka_proxy if where == "kafka" else cluster.postgres_proxy
    breaks: dict[str, Callable[[], None]] = {
        "cut": proxy.cut,
        "reset": proxy.reset,
        "delay": lambda: proxy.delay(chance.uniform(0.05, 1.0)),
        "half_open": lambda: proxy.half_open(requests=chance.random() < 0.7, answers=False),
        "black_hole": proxy.black_hole,
    }
    breaks[kind]()
    held_s = chance.uniform(0.3, 3.0)
    time.sleep(held_s)
    gone = chance.random() < 0.5
    proxy.heal(reset=gone)
    return f"{kind} of {where} for {held_s:.1f} s{', connections gone' if gone else ''}"


async def execute(url: str, *statements: str) -> None:
    """Carries out statements on a connection of its own."""
    connection = await asyncpg.connect(url, timeout=PATIENCE_S)
    try:
        for statement in statements:
            await connection.execute(statement, timeout=PATIENCE_S)
    finally:
        await connection.close()


async def repeated(bootstrap: str, prefix: str) -> int:
    """Records whose identity stands earlier in the same partition: what readers must leave out."""
    names = Names(prefix)
    found = 0
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign(list(names.every))
        ends = await consumer.end_offsets(names.every)
        seen: dict[object, set[bytes]] = {name: set() for name in names.every}
        while any([await consumer.position(name) < end for name, end in ends.items()]):
            for name, messages in (await consumer.getmany(timeout_ms=500)).items():
                for message in messages:
                    key = envelope_of(message.headers, message.value or b"").key
                    found += key in seen[name]
                    seen[name].add(key)
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
