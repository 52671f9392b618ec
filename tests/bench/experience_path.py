"""Experiences of 1,024 tokens through the whole path: leased, produced, durable, closed, planned, read, stepped.

`python -P tests/bench/experience_path.py` prints one JSON object. Three processes, as in production: the daemon (SQLite
log, its socket, projector, planner and dispatcher on their real folds), an explorer that answers at once, and a reader
that assembles each planned batch as the trainer does and appends step.completed; with BENCH_TRAINER=real the trainer's
own loop on an engine without a model, which reads each step back before the next.

References: a volatile buffer of the same events behind a Unix socket, in the same run, interleaved; and what
Trinity-RFT's buffer actor did on such a machine (3,425 written, 2,686 read).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from bare_buffer import BareBuffer
from experience_workers import PUBLISHED_STEPS, consume_bare, explore, ordered, produce_bare, read, train
from figures import median_of, median_ratio, tell
from synthetic.log.lag import lag_records

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import SystemClock
from rftd.ops.cycles import tune_collector
from rftd.ops.ids import SystemIds, derive
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events import experiment as life
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.role import as_refs
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    PolicySpec,
    StageSpec,
    TasksetSpec,
)
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket.server import LogServer
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import Handle, WorkerOrder

BATCH, GROUP = 64, 8
WARM_UP_S, MEASURED_S = 3.0, 6.0
START_UP_S = 60.0
"""Longest until both sides do something."""
TRINITY_WRITTEN_PER_S, TRINITY_READ_PER_S = 3425, 2686


class PathRates(msgspec.Struct):
    """Experiences per second while all of it goes on, and what it cost."""

    written_per_s: float
    planned_per_s: float
    read_per_s: float
    projector_lag_records: int
    daemon_cores: float
    stale: int


class BareRates(msgspec.Struct):
    """Experiences per second of the volatile buffer."""

    written_per_s: float
    read_per_s: float


class Figures(msgspec.Struct):
    """Medians over the pairs."""

    written_per_s: float
    planned_per_s: float
    read_per_s: float
    bare_written_per_s: float
    bare_read_per_s: float
    ratio_written_to_bare: float
    ratio_read_to_bare: float
    ratio_written_to_trinity: float
    ratio_read_to_trinity: float
    projector_lag_records: int
    daemon_cores: float
    stale: int
    pairs: int
    runs: list[PathRates]


def measure(folder: Path, *, pairs: int = 3) -> Figures:
    """Interleaved pairs of (volatile buffer, the path)."""
    bare: list[BareRates] = []
    path: list[PathRates] = []
    for pair in range(pairs):
        with TemporaryDirectory(prefix="rftd-") as runtime:
            bare.append(asyncio.run(_bare(Path(runtime) / "bare.sock")))
        with TemporaryDirectory(dir=folder, prefix=f"path-{pair}-") as data, TemporaryDirectory(prefix="rftd-") as run:
            path.append(_path(Path(data), Path(run) / "log.sock"))
    return Figures(
        written_per_s=median_of(rates.written_per_s for rates in path),
        planned_per_s=median_of(rates.planned_per_s for rates in path),
        read_per_s=median_of(rates.read_per_s for rates in path),
        bare_written_per_s=median_of(rates.written_per_s for rates in bare),
        bare_read_per_s=median_of(rates.read_per_s for rates in bare),
        ratio_written_to_bare=median_ratio(
            (rates.written_per_s for rates in path), (rates.written_per_s for rates in bare)
        ),
        ratio_read_to_bare=median_ratio((rates.read_per_s for rates in path), (rates.read_per_s for rates in bare)),
        ratio_written_to_trinity=round(median(rates.written_per_s for rates in path) / TRINITY_WRITTEN_PER_S, 2),
        ratio_read_to_trinity=round(median(rates.read_per_s for rates in path) / TRINITY_READ_PER_S, 2),
        projector_lag_records=max(rates.projector_lag_records for rates in path),
        daemon_cores=median_of((rates.daemon_cores for rates in path), 2),
        stale=max(rates.stale for rates in path),
        pairs=pairs,
        runs=path,
    )


def _path(data: Path, socket: Path) -> PathRates:
    """One run in a daemon process of its own."""
    with (data / "daemon.log").open("wb") as said:
        subprocess.run(_command("daemon", str(data), str(socket)), stdout=said, check=True, timeout=120)
    return msgspec.json.decode((data / "rates.json").read_bytes(), type=PathRates)


async def _bare(socket: Path) -> BareRates:
    """One run of the volatile buffer, in this process, with two others."""
    buffer = BareBuffer()
    server = await buffer.serve(socket)
    seconds = str(START_UP_S + WARM_UP_S + MEASURED_S)
    workers = [_spawn(role, str(socket), seconds) for role in ("produce-bare", "consume-bare")]
    async with asyncio.timeout(START_UP_S):
        while not (buffer.written and buffer.read):
            await SystemClock().sleep(0.05)
    await asyncio.sleep(WARM_UP_S)
    start_s, written, read = time.perf_counter(), buffer.written, buffer.read
    await asyncio.sleep(MEASURED_S)
    span_s = time.perf_counter() - start_s
    rates = BareRates((buffer.written - written) / span_s, (buffer.read - read) / span_s)
    for worker in workers:
        worker.kill()
        worker.wait()
    server.close()
    await buffer.close()
    await asyncio.sleep(0.1)  # the connections see their ends
    return rates


class Spawned:
    """A worker process of this file."""

    waits = None
    reason = ""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.kill()

    kill = terminate


class BenchExecutor:
    """Starts the workers of a bench instead of rftd's, by the command for a role, a URL, an experiment and words."""

    def __init__(self, command: Callable[..., list[str]], url: str, *words: str) -> None:
        self._command = command
        self._url = url
        self._words = words
        self.started: dict[str, Spawned] = {}

    def start(self, order: WorkerOrder) -> Spawned:
        command = self._command(order.role, self._url, order.experiment.hex, *self._words)
        spawned = Spawned(subprocess.Popen(command, env=ordered(order.worker)))
        self.started[order.role] = spawned
        return spawned

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def lives(self, started: WorkerStarted) -> bool | None:
        return None

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


async def _daemon(data: Path, socket: Path) -> PathRates:
    """What `rftd serve` runs for one experiment, measured from within."""
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    log = await SqliteLog.open(data / "log")
    engine = open_database(sqlite_url(data / "state.db"))
    projector = Projector(log, engine, clock=clock)
    await projector.open()
    executor = BenchExecutor(_command, f"unix:{socket}")
    experiment = await _submitted(log, spec_of(data), clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger(role="daemon"))
    async with LogServer(log, socket, file=log.path), asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(projector.run()), tasks.create_task(run.drive())]
        rates = await _watch(log, run, projector)
        for task in background:
            task.cancel()
        for handle in executor.started.values():
            handle.kill()
    await engine.dispose()
    await log.close()
    return rates


async def _watch(log: SqliteLog, run: Run, projector: Projector) -> PathRates:
    async with asyncio.timeout(START_UP_S):
        while run.state.spine.version < 1:
            await SystemClock().sleep(0.05)
    await asyncio.sleep(WARM_UP_S)
    spine = run.state.spine
    start_s, cpu_s = time.perf_counter(), time.process_time()
    before = (_written(log), spine.planned, spine.version)
    await asyncio.sleep(MEASURED_S)
    span_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    after = (_written(log), spine.planned, spine.version)
    written, planned, read = ((b - a) / span_s for a, b in zip(before, after, strict=True))
    return PathRates(
        written_per_s=round(written),
        planned_per_s=round(planned * BATCH),
        read_per_s=round(read * BATCH),
        projector_lag_records=await lag_records(log, projector),
        daemon_cores=round(cpu_s / span_s, 2),
        stale=sum(run.state.replay_buffer.books.retired.values()),
    )


def _written(log: SqliteLog) -> int:
    """Experiences that were acknowledged."""
    return sum(mark.next_offset for partition, mark in log.tail.heads.items() if partition.stream == topics.EXPERIENCES)


async def _submitted(log: SqliteLog, spec: ExperimentSpec, clock: SystemClock, ids: SystemIds) -> UUID:
    writer = Writer(source="bench", clock=clock, ids=ids)
    experiment = derive(ids.new(), "experiment")
    await log.append([writer.draft(life.ExperimentSubmitted(spec=spec), experiment=experiment)])
    accepted = life.ExperimentAccepted(start=as_refs(await log.heads()))
    await log.append([writer.draft(accepted, experiment=experiment)])
    return experiment


def spec_of(data: Path) -> ExperimentSpec:
    """One asynchronous GRPO stage that does not end; explorers run at most 32 batches ahead."""
    stage = StageSpec(
        name="rft",
        kind="both",
        folder=str(data / "job"),
        total_steps=1_000_000,
        batch_size=BATCH // GROUP,
        train_batch_size=BATCH,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=GROUP, advantage="grpo", policy_loss="ppo"),
        model=ModelSpec(path="none", max_model_len=1024, max_prompt_tokens=24, max_response_tokens=1000),
        taskset=TasksetSpec(name="tasks", path="none", rows=10_000, digest="d"),
        policy=PolicySpec(max_staleness_versions=64, max_inflight_batches=32),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async", sync_interval=PUBLISHED_STEPS),
    )
    return ExperimentSpec(project="bench", name="path", job_dir=str(data / "job"), stages=(stage,), config={})


def _spawn(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(_command(*arguments))


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", __file__, *arguments]


def main(arguments: list[str]) -> None:
    """One role of the benchmark, or all of it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    match arguments:
        case ["daemon", data, socket]:
            rates = asyncio.run(_daemon(Path(data), Path(socket)))
            (Path(data) / "rates.json").write_bytes(msgspec.json.encode(rates))
        case ["explorer", url, experiment]:
            asyncio.run(explore(url, UUID(experiment)))
        case ["trainer", url, experiment]:
            take = train if os.environ.get("BENCH_TRAINER") == "real" else read
            asyncio.run(take(url, UUID(experiment)))
        case ["produce-bare", socket, seconds]:
            asyncio.run(produce_bare(Path(socket), float(seconds)))
        case ["consume-bare", socket, seconds]:
            asyncio.run(consume_bare(Path(socket), float(seconds)))
        case [] | [_]:
            with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
                figures = measure(Path(scratch), pairs=int(arguments[0]) if arguments else 3)
            tell(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
