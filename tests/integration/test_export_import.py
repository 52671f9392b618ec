"""An experiment moves from one log to another: its records, its files, its tables, and its future."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from rftd.daemon.run.supervisor.run import Run
from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError
from rftd.ops.logs import logger
from rftd.storage.files.checkpoint_witness import CheckpointWitness, write_witness
from rftd.storage.files.survivors import of_checkpoints
from rftd.storage.portable.experiment import ImportReport, experiment_digest, export_experiment, import_experiment
from rftd.streams.events import experiment as life
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.chain import Mark
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog, start_of
from rftd.streams.log.topics import EXPERIMENTS, TRUTH, Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.experiment_records import OwnRecords
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify


async def driven(log: EventLog, experiment: UUID, executor, clock, ids, *, until_step: int | None = None) -> RunState:
    """The experiment run to its end, or drained once `until_step` is trained."""
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run.drive())
        if until_step is not None:
            await trained(log, experiment, until_step)
            await run.drain()
        await task
    return run.state


async def trained(log: EventLog, experiment: UUID, step: int) -> None:
    """Returns once the step is on the spine."""
    subscription = log.subscribe(start_of([partition_of(EXPERIMENTS, experiment)]))
    while True:
        for record in await subscription.next(wait_s=1.0):
            event = decode(record).event
            if isinstance(event, StepCompleted) and event.step == step:
                return await subscription.close()


async def moved(log: EventLog, path: Path, home: Path, clock: SystemClock, **options) -> ImportReport:
    """The file imported, its tables compared, the whole log held against the rules."""
    done = await import_experiment(log, path, home=home, clock=clock, **options)
    assert done.equal is not False
    report = await verify(log, chained=not isinstance(log, KafkaLog))
    assert report.clean, report.findings
    return done


@pytest.mark.anyio
async def test_a_finished_experiment_is_the_same_in_every_log(
    tmp_path: Path, clock, ids, fake_world, kafka_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source = await SqliteLog.open(tmp_path / "log")
    other = await fake_world.submitted(source, fake_world.spec(tmp_path / "b"), clock, ids)
    experiment = await fake_world.submitted(source, fake_world.spec(tmp_path / "a"), clock, ids)
    executor = fake_world.executor(source, clock, ids)
    # Two at once, so that records of the other lie between those of this one.
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(driven(source, other, fake_world.executor(source, clock, ids), clock, ids))
        tasks.create_task(driven(source, experiment, executor, clock, ids))
    exported = await export_experiment(source, experiment, tmp_path / "x.rftd", release="1", clock=clock)
    assert exported.manifest.state == Status.COMPLETED
    assert {file.kind for file in exported.manifest.files} == {"artifact", "checkpoint"}
    wanted = await experiment_digest(OwnRecords(source, experiment), clock=clock)
    total = sum(part.records for part in exported.manifest.partitions)

    busy = await SqliteLog.open(tmp_path / "busy")
    await driven(
        busy,
        await fake_world.submitted(busy, fake_world.spec(tmp_path / "b"), clock, ids),
        fake_world.executor(busy, clock, ids),
        clock,
        ids,
    )
    settings = KafkaSettings(bootstrap=kafka_broker.bootstrap, prefix=f"move{ids.new().hex}.")
    kafka = await KafkaLog.open(settings, clock=clock, ids=ids)
    for name, log in (("memory", MemoryLog()), ("busy", busy), ("kafka", kafka)):
        moves = [(str(tmp_path / "a"), str(tmp_path / name))]
        done = await moved(log, tmp_path / "x.rftd", tmp_path / name, clock, moves=moves)
        assert (done.appended, done.equal) == (total, True)
        assert done.files == len(exported.manifest.files)
        assert Path(done.spec.job_dir).is_relative_to(tmp_path / name)
        assert await experiment_digest(OwnRecords(log, experiment), clock=clock) == wanted
        heads = await log.heads()
        again = await moved(log, tmp_path / "x.rftd", tmp_path / name, clock, moves=moves)
        assert (again.appended, again.present, again.files, again.equal) == (0, total, 0, True)
        assert await log.heads() == heads
        await check_remembered(log, experiment)
        with pytest.raises(ConflictError, match="other content"):
            await import_experiment(log, tmp_path / "x.rftd", home=tmp_path, clock=clock, moves=[("/", "/elsewhere")])
        await log.close()
    await source.close()


async def check_remembered(log: EventLog, experiment: UUID) -> None:
    """Every head that an imported event remembers is in this log."""
    own, seen = OwnRecords(log, experiment), 0
    for partition in TRUTH:
        async for chunk in own.chunks(partition):
            for record in chunk:
                event = decode(record).event
                if isinstance(event, life.Fence | CheckpointCommitted):
                    heads = {
                        Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in event.heads
                    }
                    await log.check_heads(heads)
                    seen += len(heads)
    assert seen


@pytest.mark.anyio
async def test_a_half_run_goes_on_elsewhere_and_ends_well(tmp_path: Path, clock, ids, fake_world) -> None:
    first = await SqliteLog.open(tmp_path / "one")
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(first, spec, clock, ids)
    state = await driven(first, experiment, fake_world.executor(first, clock, ids), clock, ids, until_step=5)
    assert state.spine.status is Status.RUNNING
    exported = await export_experiment(first, experiment, tmp_path / "x.rftd", release="1", clock=clock)
    assert {file.kind for file in exported.manifest.files} == {"artifact", "checkpoint", "weights"}
    await first.close()
    (tmp_path / "job").rename(tmp_path / "gone")

    second = await SqliteLog.open(tmp_path / "two")
    done = await moved(second, tmp_path / "x.rftd", tmp_path / "home", clock)
    assert done.spec.job_dir == str(tmp_path / "home" / "imported" / str(experiment))
    state = await driven(second, experiment, fake_world.executor(second, clock, ids), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert state.spine.generation == 1
    assert state.spine.version == 8
    report = await verify(second)
    assert report.clean, report.findings
    # It went on, and the same file again changes nothing.
    heads = await second.heads()
    again = await moved(second, tmp_path / "x.rftd", tmp_path / "home", clock)
    assert (again.appended, again.equal) == (0, None)
    assert await second.heads() == heads
    await second.close()


@pytest.mark.anyio
async def test_an_unfinished_checkpoint_of_the_former_log_says_nothing_of_the_next(
    tmp_path: Path, clock, ids, fake_world
) -> None:
    first, second = MemoryLog(), MemoryLog()
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(first, spec, clock, ids)
    await driven(first, experiment, fake_world.executor(first, clock, ids), clock, ids, until_step=5)
    await export_experiment(first, experiment, tmp_path / "x.rftd", release="1", clock=clock)
    left = Path(spec.job_dir) / ".trainer-e9" / "global_step_6"
    left.mkdir(parents=True)
    heads = tuple(HeadRef(*partition, *mark) for partition, mark in (await first.heads()).items())
    write_witness(left, CheckpointWitness(experiment=experiment, step=6, generation=0, heads=heads, spine=None))
    assert str(left) in str(of_checkpoints(spec, experiment))

    done = await moved(second, tmp_path / "x.rftd", tmp_path / "home", clock)
    assert done.spec.job_dir == spec.job_dir, "its folder stayed where it was"
    assert str(left) not in str(of_checkpoints(done.spec, experiment))
