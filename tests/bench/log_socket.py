"""Acknowledged appends of single 2 KB events by 64 producers that share connections to a server process.

`python -P tests/bench/log_socket.py` prints one JSON object. Reference: a raw write+fdatasync loop of 64 records each,
in the same run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

import log_append
from figures import median_of, median_ratio, tell

from rftd.streams.log.envelope import Draft
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket.client import SocketLog
from rftd.streams.sqlite.socket.server import LogServer


class Figures(msgspec.Struct):
    """Medians over the pairs."""

    acknowledged_per_s: float
    ack_p50_ms: float
    ack_p99_ms: float
    raw_events_per_s: float
    ratio_to_raw: float
    pairs: int
    events: int
    producers: int
    connections: int


class _Run(msgspec.Struct):
    rate: float
    p50_ms: float
    p99_ms: float


def measure(
    folder: Path, *, pairs: int = 3, events: int = 30_000, producers: int = 64, connections: int = 2
) -> Figures:
    """Interleaved pairs of (raw loop, 64 producers through the socket)."""
    runs: list[_Run] = []
    raw_rates: list[float] = []
    for pair in range(pairs):
        raw_rates.append(log_append.raw_rate(folder / f"raw-{pair}", log_append.make_batches(pair, events, 64, False)))
        drafts = [draft for batch in log_append.make_batches(pair, events, 1, False) for draft in batch]
        with TemporaryDirectory(prefix="rftd-") as runtime, serving(folder / f"log-{pair}", Path(runtime) / "log.sock"):
            runs.append(asyncio.run(_produce(Path(runtime) / "log.sock", drafts, producers, connections)))
    return Figures(
        acknowledged_per_s=median_of(run.rate for run in runs),
        ack_p50_ms=median_of((run.p50_ms for run in runs), 2),
        ack_p99_ms=median_of((run.p99_ms for run in runs), 2),
        raw_events_per_s=median_of(raw_rates),
        ratio_to_raw=median_ratio((run.rate for run in runs), raw_rates, 3),
        pairs=pairs,
        events=events,
        producers=producers,
        connections=connections,
    )


@contextmanager
def serving(folder: Path, path: Path) -> Iterator[None]:
    """A server process for the log in `folder`; it ends when its standard input closes."""
    command = [sys.executable, "-P", __file__, "serve", str(folder), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(timeout=30)


async def _serve(folder: Path, path: Path) -> None:
    log = await SqliteLog.open(folder)
    async with LogServer(log, path):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await log.close()


async def _produce(path: Path, drafts: list[Draft], producers: int, connections: int) -> _Run:
    clients = [await SocketLog.connect(path) for _ in range(connections)]
    waiting = iter(drafts)
    delays_s: list[float] = []

    async def produce(client: SocketLog) -> None:
        for draft in waiting:
            start = time.perf_counter()
            await client.append([draft])
            delays_s.append(time.perf_counter() - start)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for producer in range(producers):
            group.create_task(produce(clients[producer % connections]))
    elapsed = time.perf_counter() - start
    for client in clients:
        await client.close()
    delays_s.sort()
    p50, p99 = (1e3 * delays_s[int(len(delays_s) * share)] for share in (0.5, 0.99))
    return _Run(len(drafts) / elapsed, p50, p99)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(Path(sys.argv[2]), Path(sys.argv[3])))
    else:
        with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
            tell(measure(Path(scratch)))
