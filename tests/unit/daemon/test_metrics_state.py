"""Gauges of state at a scrape: those of `rftd get`, whoever fed what before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.gauges import expected, shown, standing
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.log.tape import Tape

from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.metrics_follower import show
from rftd.daemon.metrics_scrape import REST, PacedReading, Scrape
from rftd.daemon.views.experiments import page_of
from rftd.ops.clock import ManualClock
from rftd.ops.metrics import Metrics
from rftd.storage.database import open_database, sqlite_url
from rftd.storage.projector import Projector
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.backends.memory import MemoryLog
from rftd.streams.codec import Writer
from rftd.streams.envelope import Draft
from rftd.streams.events.signal import SignalLost
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.worker import Heartbeat
from rftd.streams.fencing import FenceView
from rftd.streams.topics import TRUTH
from rftd.streams.worker_state import WorkerState

pytestmark = pytest.mark.anyio

OF_TRAINERS = {
    WorkerState.TAKE_UP,
    WorkerState.ASSEMBLE,
    WorkerState.PUBLISH,
    WorkerState.CHECKPOINT,
    WorkerState.PAUSED,
    WorkerState.WAIT_BATCH,
}
OF_EXPLORERS = {
    WorkerState.OPEN_ENGINE,
    WorkerState.LOAD_WEIGHTS,
    WorkerState.LOAD_FAILED,
    WorkerState.WAIT_TASKS,
    WorkerState.WAIT_WEIGHTS,
    WorkerState.WAIT_VERSION,
}
"""States that only the one role has."""


class Desk:
    """A log that grows, its tables, and whoever is asked for their metrics."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.log = MemoryLog()
        self.engine = open_database(sqlite_url(folder / "state.db"))
        self.projector = Projector(self.log, self.engine, clock=clock)
        self.clock = clock

    async def put(self, drafts: list[Draft]) -> None:
        for start in range(0, len(drafts), 100):
            await self.log.append(drafts[start : start + 100])
        await self.projector.catch_up()

    async def scrape(self) -> str:
        """The answer of a daemon that was started just now."""
        feed = MetricsFeed(Metrics(version="1"))
        scrape = Scrape(feed, log=self.log, engine=self.engine, applied=self.projector, clock=self.clock)
        return (await scrape.text()).decode()

    async def page(self, id: UUID, label: str) -> dict[str, float]:
        async with self.engine.connect() as connection:
            return expected(await page_of(connection, id, RewardCurves()), label)


@asynccontextmanager
async def desk_in(folder: Path, clock: ManualClock) -> AsyncIterator[Desk]:
    desk = Desk(folder, clock)
    yield desk
    await desk.projector.close()
    await desk.engine.dispose()
    await desk.log.close()


async def test_whenever_a_daemon_starts_its_gauges_are_those_of_the_page(tmp_path: Path) -> None:
    run = SyntheticRun(Tape()).write()
    drafts = run.tape.drafts
    seen: set[str] = set()
    async with desk_in(tmp_path, run.tape.clock) as desk:
        moments = [len(drafts) * part // 8 for part in range(1, 9)]
        for last, moment in zip([0, *moments], moments, strict=False):
            await desk.put(drafts[last:moment])
            found = standing(await desk.scrape(), "small")
            assert found == await desk.page(run.id, "small"), moment
            seen |= {name.partition("{")[0] for name in found}
        # 28 produced, 24 trained, 1 retired; the abandoned batch gave its two back, and one came late.
        assert found["rftd_buffer_experiences{buffer=waiting,experiment=small}"] == 2
        assert found["rftd_eval_score{evalset=held_out,experiment=small,metric=score}"] == 0.75
    assert len(seen) >= 8


async def test_the_last_step_is_told_whole(tmp_path: Path) -> None:
    run = SyntheticRun(Tape()).write()
    figures = {"actor/ppo_kl": 0.0, "mismatch/k3/mean": 0.25, "mismatch/ess": 0.5, "correction/masked_negative": 0.125}
    done = StepCompleted(
        batch=run.tape.ids.new(),
        step=50,
        stage=1,
        generation=0,
        checksum="c",
        items=1,
        tokens=1,
        duration_s=1.0,
        metrics={**figures, "signal/prompts_cut": 1.0, "actor/lr": 1e-6, "actor/kl_loss": 0.75},
    )
    run.tape.write(done, run.id, role="trainer")
    lost = SignalLost(number=1, stage=1, step=50, cause="prompts_cut", reason="r", fix="f")
    run.tape.write(lost, run.id, role="controller")
    async with desk_in(tmp_path, run.tape.clock) as desk:
        await desk.put(run.tape.drafts)
        values = shown(await desk.scrape())
    assert values["rftd_train_kl_nats{experiment=small,ref=behaviour}"] == 0.25
    assert values["rftd_train_kl_nats{experiment=small,ref=reference}"] == 0.75
    assert values["rftd_train_effective_sample_ratio{experiment=small}"] == 0.5
    assert values["rftd_train_masked_ratio{advantage=negative,experiment=small}"] == 0.125
    assert values["rftd_train_learning_rate{experiment=small}"] == 1e-6
    assert values["rftd_signal_ratio{experiment=small,of=prompts_cut}"] == 1
    assert [name for name in values if "signal_lost" in name] == [
        "rftd_signal_lost{cause=prompts_cut,experiment=small}"
    ]


async def test_an_experiment_has_few_series(tmp_path: Path) -> None:
    """All of one that explores, trains, evaluates and loses rollouts, with every histogram and state of its workers."""
    run = SyntheticRun(Tape()).write()
    tape = run.tape
    writer = Writer(source="t", clock=tape.clock, ids=tape.ids)
    for role, slot, never in (("explorer", 0, OF_TRAINERS), ("trainer", -1, OF_EXPLORERS)):
        for state in set(WorkerState) - never:
            beat = Heartbeat(worker=run.workers[0], role=role, slot=slot, state=state.value, memory_bytes=1)
            tape.put(writer.draft(beat, experiment=run.id, key=run.workers[0]))
    async with desk_in(tmp_path, tape.clock) as desk:
        await desk.put(tape.drafts)
        feed = MetricsFeed(Metrics(version="1"))
        show(tape.records, feed, FenceView())
        scrape = Scrape(feed, log=desk.log, engine=desk.engine, applied=desk.projector, clock=desk.clock)
        found = [name for name in shown((await scrape.text()).decode()) if "experiment=small" in name]
    assert 100 < len(found) <= 150, len(found)


async def test_equal_names_are_told_apart_and_hostile_ones_are_escaped(tmp_path: Path) -> None:
    hostile = 'a"} 1\nrftd_train_step{experiment="b\\'
    tape = Tape()
    runs = [SyntheticRun(tape, name=name).write() for name in (hostile, "same", "same")]
    async with desk_in(tmp_path, tape.clock) as desk:
        await desk.put(tape.drafts)
        scraped = await desk.scrape()
        steps = {name: value for name, value in shown(scraped).items() if name.startswith("rftd_train_step{")}
        # The parser of `prometheus_client` takes the escapes back.
        assert sorted(steps) == sorted(f"rftd_train_step{{experiment={name}}}" for name in (hostile, "same", "same@2"))
        assert standing(scraped, "same@2") == await desk.page(runs[2].id, "same@2")
    assert 'experiment="a\\"} 1\\nrftd_train_step{experiment=\\"b\\\\"' in scraped


async def test_an_end_is_shown_for_an_hour_and_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    run = SyntheticRun(Tape()).write()
    async with desk_in(tmp_path, run.tape.clock) as desk:
        await desk.put(run.tape.drafts)
        feed = MetricsFeed(Metrics(version="1"))
        scrape = Scrape(feed, log=desk.log, engine=desk.engine, applied=desk.projector, clock=desk.clock)
        assert standing((await scrape.text()).decode(), "small")
        run.tape.clock.advance(3601.0)
        assert not standing(await desk.scrape(), "small")
        async with desk.engine.begin() as connection:
            await connection.exec_driver_sql("DROP TABLE experiments")
        assert shown(await desk.scrape())["rftd_state_readable{}"] == 0


async def test_who_asks_every_second_reads_the_tables_no_more_often_than_is_cheap() -> None:
    clock = ManualClock()
    reading = PacedReading[int](clock)
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        clock.advance(0.5)
        return reads

    place = TRUTH[0]
    assert await reading.of({place: 1}, read) == 1
    for second in range(8 * REST // 2):
        clock.advance(1.0)
        await reading.of({place: second + 2}, read)
    assert reads == 1 + 8, "a reading of half a second is good for half as many seconds as it rests"
    clock.advance(REST)
    newest = {place: 1000}
    assert await reading.of(newest, read) == 10
    clock.advance(REST)
    assert await reading.of(newest, read) == 10, "the tables did not move"
