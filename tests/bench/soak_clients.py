"""The daemon's memory over a paced run while clients and listeners come and go; and what is left of them at the end.

`python -P tests/bench/soak_clients.py [--records 200000] [--seconds 1800] [--tables postgres]` prints one JSON object.
The tables are in SQLite, or in a Postgres that is started for them. Fake engines make some hundred experiences a
second. Meanwhile clients ask for pages and metrics, listen to the live page and vanish in the middle of it, open
connections and say nothing, or begin a request and never end it. It fails if the slope of the daemon's own memory over
its records is above the bar, or if more files, threads or connections are open after the run than before it, or if too
few records or clients came to say anything.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from projector_postgres import server
from soak import MIB, SLOPE_BAR_BYTES, WARM_RECORDS, Sample, watch
from synthetic.daemon.scene import Scene
from timed_run import TEXT

SQLITE: Final = "sqlite"
SAMPLE_S: Final = 1.0
MEASURED_RECORDS: Final = 200_000
SPARE_RECORDS: Final = 5_000
CLIENTS_AT_ONCE: Final = 12
PAUSE_S: Final = 0.3
BURST: Final = 32
LONG_BODY_BYTES: Final = 100_000
FIRST_S: Final = 60.0
SETTLES_S: Final = 90.0
"""Connections that were left half open have met every time-out by then, and idle ones to the tables are closed."""
PACED: Final = (
    "algorithm.repeat_times=4",
    "buffer.batch_size=90",
    "buffer.total_steps=1000000",
    "explorer.runner_per_model=128",
    "explorer.rollout_model.engine_num=1",
    "explorer.rollout_model.extra_engine_args={latency_s: 0.2}",
    "trainer.engine_args={step_s: 0.55}",
    "trainer.save_interval=200",
)


class Held(msgspec.Struct, frozen=True):
    """The things that a process keeps open."""

    files: int
    threads: int
    connections: int


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    seconds: float
    records: int
    records_per_s: float
    measured_records: int
    """Those after the warm-up, over which the slope was taken."""
    slope_bytes_per_record: float
    most_mib: float
    clients: dict[str, int]
    """The clients that came and went, by what they did."""
    before: Held
    after: Held
    samples: list[Sample]


def soak(seconds: float, warm_up: int, least: int, tables: str = SQLITE) -> Soak:
    """Runs for so long, or for `least` records after those of the warm-up."""
    with ExitStack() as stack:
        environ = {} if tables == SQLITE else {"RFTD_POSTGRES": stack.enter_context(server(None))}
        scene = Scene(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rftd-"))), environ=environ)
        with scene.host:
            # The same for some seconds: pools of threads and of connections to the tables are full from then on.
            before = first(scene)
            run = scene.submit(TEXT, *PACED)
            scene.until_step(run, 1)
            began_s = time.monotonic()
            with Clients(scene, run) as clients:
                samples = asyncio.run(watch(scene, seconds, warm_up + least + SPARE_RECORDS))
            assert scene.rftd("cancel", run).status == 0
            scene.until_ended(run)
            after = settled(scene, before, patience_s=SETTLES_S)
            lasted_s = time.monotonic() - began_s
    return _judged(samples, lasted_s, clients.came, before, after, least, warm_up)


def first(scene: Scene) -> Held:
    """What the daemon keeps open after a run of the same kind, with clients, that has ended."""
    run = scene.submit(TEXT, *PACED, "name=first")
    scene.until_step(run, 1)
    with Clients(scene, run) as clients:
        # All at once, so that every connection and thread of the pools is there: the clients do not meet so often.
        with ThreadPoolExecutor(BURST) as pool:
            list(pool.map(lambda _: clients.asks(random.Random()), range(2 * BURST)))
            list(pool.map(lambda _: clients.says_much(), range(2 * BURST)))
        time.sleep(FIRST_S)
    assert scene.rftd("cancel", run).status == 0
    scene.until_ended(run)
    return settled(scene, Held(0, 0, 0), patience_s=SETTLES_S)


def held(pid: int) -> Held:
    """The things that a process keeps open now."""
    process = psutil.Process(pid)
    connections = [each for each in process.net_connections() if each.status == psutil.CONN_ESTABLISHED]
    return Held(process.num_fds(), process.num_threads(), len(connections))


def settled(scene: Scene, most: Held, *, patience_s: float) -> Held:
    """What the daemon keeps open once it is no more than `most`, or once all time-outs are over."""
    until_s = time.monotonic() + patience_s
    while True:
        now = held(scene.host.pid)
        if not above(now, most) or time.monotonic() > until_s:
            return now
        time.sleep(SAMPLE_S)


def above(now: Held, most: Held) -> bool:
    """True if more is open."""
    return now.files > most.files or now.threads > most.threads or now.connections > most.connections


class Clients:
    """Clients of every kind that come and go on threads while the block runs."""

    def __init__(self, scene: Scene, run: str) -> None:
        url = urlsplit(scene.host.url)
        self._address = (url.hostname or "", url.port or 0)
        self._scene = scene
        self._run = run
        self._done = threading.Event()
        self._counting = threading.Lock()
        self.came: Counter[str] = Counter()
        self._failed: list[str] = []
        owner = scene.data.root / "owner.token"
        token = owner.read_text().strip() if owner.exists() else os.environ.get("RFTD_TOKEN", "")
        self._bearer = f"authorization: Bearer {token}\r\n" if token else ""
        self._threads = [threading.Thread(target=self._come, args=(number,)) for number in range(CLIENTS_AT_ONCE)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        # On a machine that is too busy a client may wait in vain; that says nothing of the daemon's memory.
        self.came["unanswered"] += len(self._failed)
        if self._failed:
            print("unanswered:", *self._failed[:10], sep="\n", file=sys.stderr, flush=True)

    def _come(self, number: int) -> None:
        chance = random.Random(number)
        kinds: list[Callable[[random.Random], None]] = [
            self.asks,
            self.asks,
            self.scrapes,
            self.listens,
            self.listens_and_vanishes,
            self.says_nothing,
            self.never_ends,
        ]
        while not self._done.wait(chance.uniform(0.0, 2 * PAUSE_S)):
            kind = chance.choice(kinds)
            try:
                kind(chance)
            except (OSError, AssertionError) as error:
                self._failed.append(f"{kind.__name__}: {type(error).__name__} {error}")
            with self._counting:
                self.came[kind.__name__] += 1

    def asks(self, _chance: random.Random) -> None:
        """Asks for the experiment's page."""
        answer = self._answer(f"/v1/experiments/{self._run}")
        assert answer.startswith(b"HTTP/1.1 200"), answer[:400]

    def scrapes(self, _chance: random.Random) -> None:
        """Asks for the metrics."""
        assert self._answer("/metrics").startswith(b"HTTP/1.1 200")

    def listens(self, chance: random.Random) -> None:
        """Listens to the live page for some seconds, and hangs up."""
        with self._begun(f"/v1/experiments/{self._run}/stream") as client:
            until_s = time.monotonic() + chance.uniform(1.0, 5.0)
            while time.monotonic() < until_s and not self._done.is_set() and client.recv(65536):
                pass

    def listens_and_vanishes(self, _chance: random.Random) -> None:
        """Is gone in the middle of the live page, without a word."""
        with self._begun(f"/v1/experiments/{self._run}/stream") as client:
            answer = client.recv(1024)
            assert answer.startswith(b"HTTP/1.1 200"), answer[:400]
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell

    def says_nothing(self, chance: random.Random) -> None:
        """Opens a connection, for nothing."""
        with socket.create_connection(self._address, timeout=60):
            self._done.wait(chance.uniform(0.0, 3.0))

    def never_ends(self, chance: random.Random) -> None:
        """Begins a body and does not end it."""
        with self._begun("/v1/experiments", "POST", "content-length: 1000\r\ncontent-type: application/json\r\n"):
            self._done.wait(chance.uniform(0.0, 3.0))

    def says_much(self) -> None:
        """Sends a body that takes a thread a while, and is refused."""
        body = b'{"config": {"x": [%s0]}}' % (b"0," * (LONG_BODY_BYTES // 2))
        headers = f"connection: close\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
        with self._begun("/v1/experiments", "POST", headers) as client:
            client.sendall(body)
            answer = client.recv(1024)
        assert answer.startswith(b"HTTP/1.1 4"), answer[:400]

    def _begun(self, path: str, method: str = "GET", headers: str = "") -> socket.socket:
        client = socket.create_connection(self._address, timeout=60)
        client.sendall(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{self._bearer}{headers}\r\n".encode())
        return client

    def _answer(self, path: str) -> bytes:
        answer = b""
        with self._begun(path, headers="connection: close\r\n") as client:
            while data := client.recv(65536):
                answer += data
        return answer


def _judged(
    samples: list[Sample], seconds: float, came: Counter[str], before: Held, after: Held, least: int, warm_up: int
) -> Soak:
    warm = [sample for sample in samples if sample.records >= warm_up]
    last = samples[-1]
    measured = last.records - warm[0].records if warm else 0
    points = [(sample.records, sample.anonymous_mib) for sample in samples[:: max(1, len(samples) // 30)]]
    assert measured >= least, f"too few records after the warm-up: {measured}, of {last}; so far {points}"
    assert len(came) == 7 and sum(came.values()) > 300 + 10 * came["unanswered"], f"too few clients: {came}"
    slope = np.polyfit([each.records for each in warm], [each.anonymous_mib * MIB for each in warm], 1)[0]
    return Soak(
        seconds=round(seconds, 1),
        records=last.records,
        records_per_s=round(last.records / last.at_s, 1),
        measured_records=measured,
        slope_bytes_per_record=round(float(slope), 1),
        most_mib=max(each.anonymous_mib for each in samples),
        clients=dict(sorted(came.items())),
        before=before,
        after=after,
        samples=samples[:: max(1, len(samples) // 60)],
    )


def main() -> int:
    """Prints what was measured; 1 if a bar is broken."""
    chosen = read_options(
        __doc__,
        seconds=1800.0,
        warm_up=(WARM_RECORDS, "records before the first that counts"),
        tables={"choices": (SQLITE, "postgres"), "default": SQLITE},
        records=(MEASURED_RECORDS, "records that count, at least"),
    )
    result = soak(chosen.seconds, chosen.warm_up, chosen.records, chosen.tables)
    tell(result)
    return int(result.slope_bytes_per_record > SLOPE_BAR_BYTES or above(result.after, result.before))


if __name__ == "__main__":
    sys.exit(main())
