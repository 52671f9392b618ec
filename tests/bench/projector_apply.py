"""Prints what the projector costs as JSON: experiences of ~10 KB with their groups and batches, on a SQLite file.

python -P tests/bench/projector_apply.py [EXPERIENCES]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from synthetic.log.lag import lag_records
from synthetic.log.recorder import Recorder

from rftd.ops.clock import SystemClock
from rftd.ops.ids import derive
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.fold import TableFold
from rftd.storage.projector.projector import Projector
from rftd.streams.events import batch, experience, task
from rftd.streams.events.experiment import StageStarted
from rftd.streams.log.arrays import Array
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.log.writers import source_of
from rftd.streams.memory import MemoryLog

REPEAT, PROMPT, RESPONSE, BATCH = 8, 24, 1000, 64
EXPLORER = source_of("explorer", UUID(int=1))


def write(recorder: Recorder, count: int) -> None:
    """`count` experiences in closed groups of eight, planned into batches of 64."""
    random = np.random.default_rng(0)
    run = recorder.ids.new()
    tokens = Array.of(random.integers(0, 150_000, PROMPT + RESPONSE), "u4")
    logprobs = Array.of(random.normal(size=RESPONSE), "f4")
    mask = Array.of(np.ones(RESPONSE), "u1")
    items: list[batch.ExperienceItem] = []
    groups: list[batch.GroupRef] = []
    step = 0
    recorder.write(StageStarted(stage=0, name="rft", first_version=0), run)
    for number in range(count // REPEAT):
        group = derive(run, "group", number)
        lease = recorder.ids.new()
        recorder.write(leased(lease, group, number), run, partition=Partition(TASKS, 0))
        members = []
        for rollout in range(REPEAT):
            id = derive(group, "rollout", rollout, "experience")
            event = experience.ExperienceProduced(
                experience=id,
                group=group,
                rollout=rollout,
                stage=0,
                lease=lease,
                tokens=tokens,
                prompt_tokens=PROMPT,
                loss_mask=mask,
                logprobs=logprobs,
                spans=(experience.Span(number // 8, 0, 0, RESPONSE),),
                reward=float(rollout % 2),
                metrics={"accuracy": 1.0},
            )
            place = recorder.write(event, run, key=group, id=id, source=EXPLORER)
            where = place.partition.number
            members.append(task.Member(id, rollout, where, place.offset, 1.0, 0.0, 1024, 0, 0))
            items.append(batch.ExperienceItem(id, where, place.offset, len(groups), rollout, 0, 1))
        closed = task.GroupClosed(group=group, sequence=number, stage=0, members=tuple(members), failed=0)
        place = recorder.write(closed, run, key=group)
        groups.append(batch.GroupRef(group, place.partition.number, place.offset))
        if len(items) == BATCH:
            step += 1
            plan(recorder, run, items, groups, step)
            items, groups = [], []


def leased(lease: UUID, group: UUID, number: int) -> task.TaskLeased:
    """The lease of one group, held by the explorer."""
    return task.TaskLeased(
        lease=lease,
        slot=0,
        worker=UUID(int=1),
        group=group,
        sequence=number,
        stage=0,
        row=number,
        epoch=0,
        rollouts=tuple(range(REPEAT)),
        repeat_times=REPEAT,
        attempt=1,
        deadline_s=60.0,
        min_version=0,
    )


def plan(
    recorder: Recorder, run: UUID, items: list[batch.ExperienceItem], groups: list[batch.GroupRef], step: int
) -> None:
    """One batch."""
    planned = batch.BatchPlanned(
        batch=recorder.ids.new(),
        step=step,
        stage=0,
        experiences=tuple(items),
        groups=tuple(groups),
        observed=(),
        decided_at_ns=0,
    )
    recorder.write(planned, run)


async def feed(log: MemoryLog, recorder: Recorder, rate_per_s: float) -> None:
    """Appends 64 at a time, at most so many events a second."""
    start = time.perf_counter()
    for first in range(0, len(recorder.drafts), 64):
        await log.append(recorder.drafts[first : first + 64])
        await asyncio.sleep(max(0.0, start + (first + 64) / rate_per_s - time.perf_counter()))


async def live(recorder: Recorder, folder: Path, rate_per_s: float) -> dict[str, float]:
    """What following costs while events arrive in small appends, without what the feeding itself costs."""
    cpu = time.process_time()
    await feed(MemoryLog(), recorder, rate_per_s)
    feeding = time.process_time() - cpu
    log, engine = MemoryLog(), open_database(sqlite_url(folder / "live.db"))
    projector = Projector(log, engine, clock=SystemClock())
    await projector.open()
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        wall, cpu = time.perf_counter(), time.process_time()
        await feed(log, recorder, rate_per_s)
        lag = await lag_records(log, projector)
        await projector.catch_up()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu - feeding
        following.cancel()
    await engine.dispose()
    return {
        "live_events_per_s": round(len(recorder.drafts) / wall),
        "live_cores": round(cpu / wall, 2),
        "live_lag": lag,
    }


async def main(count: int) -> None:
    recorder = Recorder()
    write(recorder, count)
    started = time.perf_counter()
    for first in range(0, len(recorder.records), 1024):
        TableFold({}).take(recorder.records[first : first + 1024])
    fold_s = time.perf_counter() - started
    log = MemoryLog()
    for first in range(0, len(recorder.drafts), 1024):
        await log.append(recorder.drafts[first : first + 1024])
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(sqlite_url(Path(folder) / "state.db"))
        projector = Projector(log, engine, clock=SystemClock())
        await projector.open()
        wall, cpu = time.perf_counter(), time.process_time()
        await projector.catch_up()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await engine.dispose()
        following = await live(recorder, Path(folder), 7000.0)
    figures = {
        "experiences": count,
        "events": projector.applied_records,
        "record_bytes": recorder.drafts[0].size_bytes,
        "fold_us_per_experience": round(fold_s / count * 1e6, 1),
        "cpu_us_per_experience": round(cpu / count * 1e6, 1),
        "experiences_per_s": round(count / wall),
        "events_per_s": round(projector.applied_records / wall),
        "cores_at_6000_per_s": round(cpu / count * 6000, 2),
        **following,
    }
    tell(figures)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_480))
