"""A durable priority buffer with reuse and cooldown, against Trinity-RFT's in-memory actor; prints JSON.

`python -P tests/bench/buffer_cooldown.py [--backends sqlite kafka] [--pairs 3] [--measured 6] [--offered 6030]`.
Experiences of 11,120 bytes in groups of 8, batches of 64, each used up to twice with a second between. As the actor has
it: the highest `linear_decay` first, a full buffer drops what is lowest, and neither side waits for the other.

Three processes: the daemon (log, planner and dispatcher on their real folds; on SQLite with the projector, as `rftd
serve` has it), an explorer that answers at once, `--offered` experiences per second (1.6 times the actor's; 0: as many
as it can), and a reader that fetches and assembles each planned batch as the trainer does, as fast as it can. `written`
are experiences acknowledged, `read` are items of batches that were assembled, `reused` those of them that had been read
before, both at the same time on the same cores. A Kafka broker is warm: a run before the first is not counted, in which
its JVM compiles; it has those two cores, too. The actor, on such a machine: 3,769 written and 2,289 read per second;
it forgets everything when it dies.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import UUID

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import experience_workers
from experience_path import BATCH, GROUP, BenchExecutor, Spawned, spec_of
from figures import cpu_ticks, read_options, tell
from synthetic.log.lag import lag_records

from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.cycles import tune_collector
from rftd.ops.ids import SystemIds, derive
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events import experiment as life
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.kafka.topics import ensure_topics
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import as_refs
from rftd.streams.spec.spec import ExperimentSpec, PolicySpec, PrioritySpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket.server import LogServer
from rftd.workers.hosts.executor import WorkerOrder

TRINITY_WRITTEN_PER_S, TRINITY_READ_PER_S, BAR = 3769, 2289, 1.5
RESPONSE_TOKENS = 1178
"""With 24 of the prompt, 9 bytes each but for those, and the envelope: 11,120 bytes on the log."""
WARM_UP_S = 4.0
BROKER_WARM_UP_S = 20.0
"""A cold one takes twice the processor time for a record of one that has seen so much."""
USES, COOLDOWN_S = 2, 1.0
CAPACITY = 4096
"""Experiences that wait, or have rested; beyond it the lowest go."""
OFFERED_PER_S = 1.6 * TRINITY_WRITTEN_PER_S
BURST_S = 0.02
CAPACITY_ROLLOUTS = 2048
"""Leased ahead to the explorer."""
AHEAD_BATCHES = 1024
"""So wide a window that nobody waits: what is too much goes by the capacity."""


class Rates(msgspec.Struct, frozen=True):
    """Experiences per second, once all of it goes on."""

    written_per_s: float
    read_per_s: float
    reused_per_s: float
    dropped_per_s: float
    cooling: int
    waiting: int
    projector_lag_records: int
    """Records that are not in the tables at the end; 0 where there are none (Kafka)."""
    cores: dict[str, float]
    """Of each process, and of all that the machine did."""


def spec_with_cooldown(data: Path) -> ExperimentSpec:
    """The stage of `experience_path`, with a policy that uses experiences twice."""
    spec = spec_of(data)
    policy = PolicySpec(
        max_staleness_versions=AHEAD_BATCHES,
        bounded=False,
        max_inflight_batches=AHEAD_BATCHES,
        priority=PrioritySpec(kind="linear_decay"),
        max_uses=USES,
        cooldown_s=COOLDOWN_S,
        capacity=CAPACITY,
        evict_when_full=True,
    )
    return msgspec.structs.replace(spec, stages=(msgspec.structs.replace(spec.stages[0], policy=policy),))


class WatchedExecutor(BenchExecutor):
    """Starts this file's workers, and tells the processes that are measured."""

    def __init__(self, url: str, offered_per_s: float, pids: dict[str, int]) -> None:
        super().__init__(_command, url, str(offered_per_s))
        self.pids = pids
        """Of what is measured: the broker, if there is one, and the workers."""

    def start(self, order: WorkerOrder) -> Spawned:
        spawned = super().start(order)
        self.pids[order.role] = spawned.pid
        return spawned


@asynccontextmanager
async def opened(
    data: Path, url: str, clock: SystemClock, ids: SystemIds
) -> AsyncIterator[tuple[EventLog, str, Projector | None]]:
    """The log, where workers reach it, and the projector if there is one: an empty `url` is SQLite."""
    if url:
        settings = parse_kafka(url)
        await ensure_topics(settings)
        kafka = await KafkaLog.open(settings, clock=clock, ids=ids)
        yield kafka, url, None
        await kafka.close()
        return
    with TemporaryDirectory(prefix="rftd-") as runtime:
        log = await SqliteLog.open(data / "log")
        engine = open_database(sqlite_url(data / "state.db"))
        projector = Projector(log, engine, clock=clock)
        await projector.open()
        socket = Path(runtime) / "log.sock"
        async with LogServer(log, socket, file=log.path), asyncio.TaskGroup() as tasks:
            projecting = tasks.create_task(projector.run())
            yield log, f"unix:{socket}", projector
            projecting.cancel()
        await engine.dispose()
        await log.close()


async def daemon(data: Path, url: str, broker: int, measured_s: float, offered_per_s: float) -> Rates:
    """What the daemon runs for one experiment, measured from within."""
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    async with opened(data, url, clock, ids) as (log, address, projector):
        executor = WatchedExecutor(address, offered_per_s, {"broker": broker} if broker else {})
        writer = Writer(source="bench", clock=clock, ids=ids)
        experiment = derive(ids.new(), "experiment")
        submitted = life.ExperimentSubmitted(spec=spec_with_cooldown(data))
        await log.append([writer.draft(submitted, experiment=experiment)])
        accepted = life.ExperimentAccepted(start=as_refs(await log.heads()))
        await log.append([writer.draft(accepted, experiment=experiment)])
        run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger(role="daemon"))
        async with asyncio.TaskGroup() as tasks:
            driving = tasks.create_task(run.drive())
            rates = await watch(log, run, executor, clock, measured_s)
            lag = await lag_records(log, projector) if projector is not None else 0
            driving.cancel()
        for handle in executor.started.values():
            handle.kill()
    return msgspec.structs.replace(rates, projector_lag_records=lag)


class Counts(NamedTuple):
    """Experiences so far."""

    written: int
    read: int
    first_planned: int
    planned: int
    dropped: int


async def watch(log: EventLog, run: Run, executor: WatchedExecutor, clock: SystemClock, measured_s: float) -> Rates:
    """Rates over the measured time, after a warm-up."""
    spine, replay_buffer = run.state.spine, run.state.replay_buffer
    while spine.version < 1:
        await clock.sleep(0.05)
    await clock.sleep(WARM_UP_S)

    async def counts() -> Counts:
        heads = await log.heads()
        written = sum(mark.next_offset for place, mark in heads.items() if place.stream == topics.EXPERIENCES)
        planned, first = spine.planned * BATCH, sum(replay_buffer.planned_in_stage.values())
        return Counts(written, spine.version * BATCH, first, planned, sum(replay_buffer.books.retired.values()))

    start_s, cpu, before = time.perf_counter(), cpu_seconds(executor), await counts()
    await clock.sleep(measured_s)
    span_s, spent = time.perf_counter() - start_s, cpu_seconds(executor)
    written, read, first, planned, dropped = ((b - a) / span_s for a, b in zip(before, await counts(), strict=True))
    return Rates(
        written_per_s=round(written),
        read_per_s=round(read),
        reused_per_s=round(planned - first),
        dropped_per_s=round(dropped),
        cooling=len(replay_buffer.cooling),
        waiting=len(replay_buffer.waiting),
        projector_lag_records=0,
        cores={name: round((spent[name] - cpu[name]) / span_s, 2) for name in cpu},
    )


def cpu_seconds(executor: WatchedExecutor) -> dict[str, float]:
    """What each process computed so far; `machine`: all of them and whatever else ran."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found = {"daemon": time.process_time()}
    for role, pid in executor.pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[role] = (int(fields[11]) + int(fields[12])) / ticks_per_s
    user, nice, system, _, _, irq, softirq, _ = cpu_ticks()
    return found | {"machine": (user + nice + system + irq + softirq) / ticks_per_s}


def measured(url: str, broker: int, measured_s: float, offered_per_s: float) -> Rates:
    """One run in a daemon process of its own."""
    with TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        with (Path(scratch) / "daemon.log").open("wb") as said:
            words = _command("daemon", scratch, url, str(broker), str(measured_s), str(offered_per_s))
            subprocess.run(words, stdout=said, check=True, timeout=180)
        return msgspec.json.decode((Path(scratch) / "rates.json").read_bytes(), type=Rates)


def figures_of(runs: list[Rates]) -> dict[str, object]:
    """Medians, and how they stand to the actor."""
    written, read = median(each.written_per_s for each in runs), median(each.read_per_s for each in runs)
    return {
        "written_per_s": written,
        "read_per_s": read,
        "ratio_written_to_trinity": round(written / TRINITY_WRITTEN_PER_S, 2),
        "ratio_read_to_trinity": round(read / TRINITY_READ_PER_S, 2),
        "bar": BAR,
        "runs": msgspec.to_builtins(runs),
    }


def size_bytes() -> int:
    """One experience's bytes on the log, head and payload."""
    clock = SystemClock()
    writer = Writer(source="explorer/x", clock=clock, ids=SystemIds(clock))
    group = derive(UUID(int=1), "group")
    event = experience_workers.Responses(0, 1).event(group=group, rollout=0, stage=0, lease=group, version=0)
    return writer.draft(event, experiment=group, key=group, causation=group, correlation=group).size_bytes


def compared(backends: list[str], pairs: int, measured_s: float, offered_per_s: float) -> dict[str, object]:
    """Runs on each backend; one before them that does not count lets a broker's JVM compile what it does often."""
    found: dict[str, object] = {}
    if "sqlite" in backends:
        found["sqlite"] = figures_of([measured("", 0, measured_s, offered_per_s) for _ in range(pairs)])
    if "kafka" in backends:
        with TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
            pid = broker.pid or 0
            measured(f"kafka://{broker.bootstrap}/?prefix=warm.", pid, BROKER_WARM_UP_S, offered_per_s)
            urls = [f"kafka://{broker.bootstrap}/?prefix=c{number}." for number in range(pairs)]
            found["kafka"] = figures_of([measured(url, pid, measured_s, offered_per_s) for url in urls])
    return {"experience_bytes": size_bytes(), **found}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", __file__, *arguments]


def main(arguments: list[str]) -> None:
    """One role of the benchmark, or all of it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    experience_workers.RESPONSE_TOKENS = RESPONSE_TOKENS
    match arguments:
        case ["daemon", data, url, broker, measured_s, offered_per_s]:
            rates = asyncio.run(daemon(Path(data), url, int(broker), float(measured_s), float(offered_per_s)))
            (Path(data) / "rates.json").write_bytes(msgspec.json.encode(rates))
        case ["explorer", url, experiment, offered_per_s]:
            pace = {"burst_s": BURST_S, "capacity_rollouts": CAPACITY_ROLLOUTS}
            asyncio.run(experience_workers.explore(url, UUID(experiment), float(offered_per_s) / GROUP, **pace))
        case ["trainer", url, experiment, _]:
            asyncio.run(experience_workers.read(url, UUID(experiment)))
        case _:
            chosen = read_options(
                __doc__,
                arguments,
                backends={"nargs": "+", "default": ["sqlite", "kafka"], "choices": ("sqlite", "kafka")},
                pairs=3,
                measured=(6.0, "seconds"),
                offered=(OFFERED_PER_S, "experiences per second"),
            )
            figures = compared(chosen.backends, chosen.pairs, chosen.measured, chosen.offered)
            tell(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
