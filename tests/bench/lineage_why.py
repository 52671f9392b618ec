"""Prints, as JSON, how long `lineage` of each kind of thing and `why` take with 10^6 experiences, in ms (p50, p95).

The tables are filled with rows, the run's state with events; no daemon and no HTTP lie between.

python -P tests/bench/lineage_why.py [EXPERIENCES]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.worlds.desk import Desk, stage_of

from rftd.daemon.run.why.answer import waits_of
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.ops.clock import SystemClock
from rftd.ops.ids import NAMESPACE, derive
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.database.tables import (
    Row,
    batches,
    experiences,
    experiments,
    steps,
    table_of,
    tasks,
    weights,
    workers,
)
from rftd.storage.lineage.walk import lineage
from rftd.storage.projector.projector import Projector
from rftd.streams.events import batch, task
from rftd.streams.events.registry import Event
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import PolicySpec
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.control.deciders import Deciders
from rftd.workers.control.liveness import Liveness

REPEAT, BATCH, TIMES = 8, 64, 15
RUN = derive(NAMESPACE, "bench")
WORKER = derive(RUN, "worker")
AT = {"planned_partition": 0, "planned_offset": 1}


def experience_of(number: int) -> UUID:
    return derive(RUN, "experience", number)


def group_of(number: int) -> UUID:
    return derive(RUN, "group", 0, number)


def rows(first: int, last: int) -> Iterator[tuple[type[Row], dict[str, Any]]]:
    """The rows of the batches `first` to `last`, as a real run leaves them; step s is drawn by s-3 to s-1."""
    run = RUN.bytes
    for step in range(first, last):
        id = derive(RUN, "batch", step).bytes
        made = {"experiment": run, "completed_ns": step, "completed_partition": 0, "completed_offset": step}
        head = {"experiment": run, "step": step, "stage": 0, "items": BATCH, "groups": BATCH // REPEAT}
        yield batches.Batches, {"id": id, "staleness_p95": 2, "decided_at_ns": step, **head, **AT}
        values = {"items": BATCH, "tokens": 9, "duration_s": 1.0, "checksum": f"c{step}"}
        yield steps.Steps, {"step": step, "generation": 0, "batch": id, "stage": 0, **values, **made}
        announced = {"published_ns": step, "published_partition": 0, "published_offset": step}
        yield (
            weights.WeightVersions,
            {
                "experiment": run,
                "version": step,
                "generation": 0,
                "size_bytes": 9,
                "checksum": f"c{step}",
                **announced,
            },
        )
        old = max(0, step - 3)
        for item in range(BATCH):
            number = (step - 1) * BATCH + item
            group, rollout = group_of(number // REPEAT).bytes, number % REPEAT
            lease = derive(RUN, "lease", number // REPEAT).bytes
            if rollout == 0:
                yield tasks.Groups, _group(group, number // REPEAT)
                yield tasks.Leases, _lease(lease, group, number // REPEAT)
            place = {"produced_ns": number, "produced_partition": 0, "produced_offset": number}
            yield (
                experiences.Experiences,
                {
                    "group_id": group,
                    "rollout": rollout,
                    "writer": WORKER.bytes,
                    "id": experience_of(number).bytes,
                    "experiment": run,
                    "stage": 0,
                    "lease": lease,
                    "prompt_tokens": 20,
                    "response_tokens": 200,
                    "oldest_version": old,
                    "newest_version": step - 1,
                    "reward": 1.0,
                    "finish": "stop",
                    "duration_s": 1.0,
                    "spans": json.dumps([[old, 0, 0, 100], [step - 1, 0, 100, 200]], separators=(",", ":")),
                    **place,
                },
            )
            yield (
                batches.BatchItems,
                {
                    "batch": id,
                    "item": item,
                    "experience": experience_of(number).bytes,
                    "group_id": group,
                    "partition": 0,
                    "offset": number,
                    "staleness_versions": 1,
                    "use": 1,
                    **AT,
                },
            )


def _group(id: bytes, number: int) -> dict[str, Any]:
    closed = {"closed_ns": number, "closed_partition": 0, "closed_offset": number}
    return {"id": id, "experiment": RUN.bytes, "stage": 0, "sequence": number, "members": REPEAT, "failed": 0, **closed}


def _lease(id: bytes, group: bytes, number: int) -> dict[str, Any]:
    given = {"leased_ns": number, "leased_partition": 0, "leased_offset": number, "worker": WORKER.bytes, "slot": 0}
    what = {"kind": "task", "experiment": RUN.bytes, "stage": 0, "subject": group, "sequence": number}
    return {"id": id, "attempt": 1, "row_start": number, "epoch": 0, "rollouts": REPEAT, **what, **given}


async def fill(engine: AsyncEngine, count: int) -> None:
    run = {"id": RUN.bytes, "name": "bench", "state": "running", "total_steps": count // BATCH}
    place = {"submitted_ns": 1, "submitted_partition": 0, "submitted_offset": 0}
    async with engine.begin() as connection:
        await connection.execute(insert(table_of(experiments.Experiments)), [{**run, **place}])
        joined = {"id": WORKER.bytes, "experiment": RUN.bytes, "role": "explorer", "slot": 0, "host": "h", "pid": 1}
        await connection.execute(insert(table_of(workers.Workers)), [{**joined, "started_ns": 1, "started_offset": 1}])
        last = count // BATCH
        kept = {"experiment": RUN.bytes, "step": last, "generation": 0, "path": "/p", "size_bytes": 1}
        await connection.execute(insert(table_of(weights.Checkpoints)), [{**kept, "committed_offset": 1}])
        scored = {"id": derive(RUN, "eval").bytes, "experiment": RUN.bytes, "version": last, "generation": 0}
        await connection.execute(insert(table_of(steps.Evals)), [{**scored, "taskset": "held", "score": 0.5}])
        for first in range(1, last + 1, 250):
            found: dict[type[Row], list[dict[str, Any]]] = {}
            for kind, row in rows(first, min(first + 250, last + 1)):
                found.setdefault(kind, []).append(row)
            for kind, some in found.items():
                await connection.execute(insert(table_of(kind)), some)


async def timed(connection: AsyncConnection, wanted: str, **options: Any) -> dict[str, float]:
    """The seconds that one answer takes, about a thing in the middle of the run, asked again and again."""
    taken_s, graph = [], None
    for _ in range(TIMES):
        began = time.perf_counter()
        graph = await lineage(connection, wanted, **options)
        taken_s.append(time.perf_counter() - began)
    assert graph is not None
    return {**figures(taken_s), "nodes": len(graph.nodes)}


def figures(taken_s: list[float]) -> dict[str, float]:
    ordered = sorted(taken_s)
    p95 = ordered[-(-95 * len(ordered) // 100) - 1]
    return {"p50_ms": round(1000 * statistics.median(ordered), 1), "p95_ms": round(1000 * p95, 1)}


def folded(count: int) -> Desk:
    """The state of a run that planned and trained `count` experiences, with 256 groups under way."""
    desk = Desk(stage_of(total_steps=count, train_batch_size=BATCH, policy=PolicySpec(max_inflight_batches=1 << 30)))
    spine, home = partition_of(topics.EXPERIMENTS, desk.id), partition_of(topics.TASKS, desk.id)

    def take(event: Event, partition: Partition, offset: int) -> None:
        head = Head(id=derive(RUN, "e", offset), type="", version=1, experiment=desk.id, source="", time_ns=1)
        desk.state.apply(Decoded(partition, offset, head, event))

    offset, items = 1000, []
    for number in range(count // REPEAT):
        ids = [UUID(int=(number * REPEAT + each) << 4 | 1) for each in range(REPEAT)]
        members = tuple(task.Member(id, each, 0, offset, 1.0, 0.0, 9, 0, 0) for each, id in enumerate(ids))
        take(
            task.GroupClosed(group=UUID(int=number), sequence=number, stage=0, members=members, failed=0), home, offset
        )
        items += [batch.ExperienceItem(id, 0, offset, 0, each, 0, 1) for each, id in enumerate(ids)]
        offset += 1
        if len(items) == BATCH:
            step = desk.state.spine.planned + 1
            planned = batch.BatchPlanned(
                batch=UUID(int=step << 40), step=step, stage=0, experiences=tuple(items), observed=(), decided_at_ns=1
            )
            take(planned, spine, offset)
            items, offset = [], offset + 1
            desk.execute()
    worker = desk.join(capacity=4096)
    for number in range(256):
        desk.lease(count + number, worker)
    return desk


def why(desk: Desk) -> dict[str, float]:
    liveness, taken_s = Liveness(), []
    deciders = Deciders(desk.state, liveness, starts=ROLES)
    deciders.control(None, 1)
    deciders.dispatch(1.0)
    deciders.plan(desk.positions, 1)
    for _ in range(TIMES):
        began = time.perf_counter()
        scene = RunSnapshot(state=desk.state, said=deciders.last, liveness=liveness, now_s=1.0, now_ns=1)
        assert waits_of(scene)
        taken_s.append(time.perf_counter() - began)
    return figures(taken_s)


async def main(count: int) -> None:
    middle = count // BATCH // 2
    number = middle * BATCH + 5
    wanted = {
        "experiment": "bench",
        "worker": str(WORKER),
        "task": f"bench/task/0.{number // REPEAT}",
        "lease": str(derive(RUN, "lease", number // REPEAT)),
        "experience": str(experience_of(number)),
        "experience by prefix": experience_of(number).hex[:16],
        "batch": f"bench/batch/{middle}",
        "step": f"bench/step/{middle}",
        "weights": f"bench/weights/{middle}",
        "checkpoint": f"bench/checkpoint/{count // BATCH}",
        "eval": str(derive(RUN, "eval")),
    }
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(sqlite_url(Path(folder) / "state.db"))
        await Projector(MemoryLog(), engine, clock=SystemClock()).catch_up()
        began = time.perf_counter()
        await fill(engine, count)
        told: dict[str, Any] = {"experiences": count, "filled_s": round(time.perf_counter() - began, 1)}
        async with engine.connect() as connection:
            told["lineage"] = {kind: await timed(connection, id) for kind, id in wanted.items()}
        await engine.dispose()
    began = time.perf_counter()
    desk = folded(count)
    told["folded_s"] = round(time.perf_counter() - began, 1)
    told["why"] = why(desk)
    tell(told)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
