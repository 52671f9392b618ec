"""Gauges of state at a scrape: those of `rftd get`, whoever fed what before."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from synthetic.daemon.gauges import expected, shown, standing
from synthetic.daemon.metrics_table import PROMISED
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.daemon.http.views.experiments import page_of
from rftd.daemon.observe import metrics_scrape
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import show
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.observe.metrics_spec import declared_by
from rftd.ops.clock import ManualClock
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.experiment import SignalLost
from rftd.streams.events.step import SHARES, StepCompleted
from rftd.streams.events.weights import WeightsActivated, WeightsPublished, WeightsRetired
from rftd.streams.events.worker import Heartbeat
from rftd.streams.folds.signal import SOLVED
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.writers import source_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import PolicySpec

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
ELSEWHERE = {WorkerState.WAIT_TURN, WorkerState.WAIT_SERVICE}
"""States of a device that both roles share, and of a service that both ask: where others of the list do not occur."""
FIGURES = {
    "actor/final_loss": 1.0,
    "actor/pg_loss": 1.0,
    "actor/kl_loss": 1.0,
    "actor/ppo_kl": 0.0,
    "actor/entropy": 1.0,
    "actor/pg_clipfrac": 0.0,
    "actor/pg_clipfrac_lower": 0.0,
    "actor/grad_norm": 1.0,
    "actor/lr": 1e-6,
    "mismatch/k3/mean": 0.25,
    "mismatch/ess": 0.5,
    **dict.fromkeys(SHARES, 0.0),
}
"""The figures of a step of the torch engine that are gauges."""

NOT_MET_HERE = {
    "rftd_buffer_capacity_experiences",
    "rftd_stream_dead_letters_total",
    "rftd_stream_duplicates_total",
    "rftd_stream_handler_duration_seconds",
}
"""Series of a projector that follows the log, of a record that nobody can use, and of a policy with a bound."""


class Desk:
    """A log that grows, its tables, and clients asking for their metrics."""

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

    def scrape_of(self, feed: MetricsFeed, prices: Mapping[str, float]) -> Scrape:
        """A scrape that rests never: its readings take no processor time."""
        return Scrape(
            feed,
            log=self.log,
            engine=self.engine,
            applied=self.projector,
            clock=self.clock,
            prices=prices,
            processor_s=lambda: 0.0,
        )

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
    run = SyntheticRun(Recorder()).write()
    drafts = run.recorder.drafts
    seen: set[str] = set()
    async with desk_in(tmp_path, run.recorder.clock) as desk:
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
    run = SyntheticRun(Recorder()).write()
    figures = {"actor/ppo_kl": 0.0, "mismatch/k3/mean": 0.25, "mismatch/ess": 0.5, "correction/masked_negative": 0.125}
    done = StepCompleted(
        batch=run.recorder.ids.new(),
        step=50,
        stage=1,
        generation=0,
        checksum="c",
        items=1,
        tokens=1,
        duration_s=1.0,
        metrics={**figures, "signal/prompts_cut": 1.0, "actor/lr": 1e-6, "actor/kl_loss": 0.75},
    )
    run.recorder.write(done, run.id, role="trainer")
    lost = SignalLost(number=1, stage=1, step=50, cause="prompts_cut", reason="r", fix="f")
    run.recorder.write(lost, run.id, role="controller")
    told = len(run.recorder.drafts)
    run.recorder.write(msgspec.structs.replace(lost, number=2, step=51, cause=SOLVED), run.id, role="controller")
    async with desk_in(tmp_path, run.recorder.clock) as desk:
        await desk.put(run.recorder.drafts[:told])
        values = shown(await desk.scrape())
        await desk.put(run.recorder.drafts[told:])
        later = shown(await desk.scrape())
    assert values["rftd_train_kl_nats{experiment=small,ref=behaviour}"] == 0.25
    assert values["rftd_train_kl_nats{experiment=small,ref=reference}"] == 0.75
    assert values["rftd_train_effective_sample_ratio{experiment=small}"] == 0.5
    assert values["rftd_train_masked_ratio{advantage=negative,experiment=small}"] == 0.125
    assert values["rftd_train_learning_rate{experiment=small}"] == 1e-6
    assert values["rftd_signal_ratio{experiment=small,of=prompts_cut}"] == 1
    assert [name for name in values if "signal_lost" in name] == [
        "rftd_signal_lost{cause=prompts_cut,experiment=small}"
    ]
    # A task that is solved is no lost signal, whatever an alert compares.
    assert "rftd_signal_solved{experiment=small}" not in values
    assert later["rftd_signal_solved{experiment=small}"] == 1
    assert not [name for name in later if "signal_lost" in name]


def tell_everything(run: SyntheticRun) -> None:
    """Writes what the run left out: figures of a real trainer, phases of syncs, states of workers, other failures."""
    recorder = run.recorder
    writer = Writer(source="t", clock=recorder.clock, ids=recorder.ids)
    batch, group = recorder.ids.new(), recorder.ids.new()
    tokens, ones = Array.of([1, 2, 3], "u4"), Array.of([1, 1], "u1")
    produced = ExperienceProduced(
        experience=recorder.ids.new(), group=group, rollout=0, stage=1, lease=batch, tokens=tokens, prompt_tokens=1,
        loss_mask=ones, logprobs=Array.of([0.0, 0.0], "f4"), spans=(), reward=-1.0, finish="length", turns=2,
    )  # fmt: skip
    failed = RolloutFailed(group=group, rollout=1, stage=1, lease=batch, code="RFTD-WRK-001", reason="r")
    done = StepCompleted(
        batch=batch, step=50, stage=1, generation=0, checksum="c", items=1, tokens=1, duration_s=1.0, metrics=FIGURES
    )
    published = WeightsPublished(
        version=50, generation=0, stage=1, method="checkpoint", path="/w", manifest="m", checksum="c", size_bytes=1,
        duration_s=0.5,
    )  # fmt: skip
    activated = WeightsActivated(
        worker=run.workers[0], version=50, generation=0, manifest="m", checksum="c", duration_s=4.0, transfer_s=2.5,
        resume_s=0.5,
    )  # fmt: skip
    saved = CheckpointCommitted(
        step=50, generation=0, stage=1, stage_step=48, path="/c", files=(), size_bytes=1, checksum="c", sha256="s",
        duration_s=3.0,
    )  # fmt: skip
    for event in (produced, failed):
        recorder.write(event, run.id, key=group, source=source_of("explorer", run.workers[0]))
    recorder.write(activated, run.id)
    for event in (done, published, saved):
        recorder.write(event, run.id, role="trainer")
    for role, slot, never in (("explorer", 0, OF_TRAINERS), ("trainer", -1, OF_EXPLORERS)):
        for state in set(WorkerState) - never - ELSEWHERE:
            beat = Heartbeat(
                worker=run.workers[0], role=role, slot=slot, state=state.value, memory_bytes=1,
                sync_failures=(("load", 2),),
            )  # fmt: skip
            recorder.put(writer.draft(beat, experiment=run.id, key=run.workers[0]))


def offers(text: str) -> Iterator[tuple[str, tuple[str, frozenset[str]]]]:
    """The kind and the labels of each metric; no labels of one without a series."""
    for family in text_string_to_metric_families(text):
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        yield family.name + ("_total" if family.type == "counter" else ""), (family.type, labels)


async def test_an_experiment_has_few_series(tmp_path: Path) -> None:
    """All of one that explores, trains, evaluates and loses rollouts, with every histogram and state of its workers."""
    run = SyntheticRun(Recorder()).write()
    tell_everything(run)
    async with desk_in(tmp_path, run.recorder.clock) as desk:
        await desk.put(run.recorder.drafts)
        feed = MetricsFeed(Metrics(version="1"))
        show(run.recorder.records, feed, FenceView())
        scrape = desk.scrape_of(feed, {"cpu": 1.0})
        text = (await scrape.text()).decode()
    found = [name for name in shown(text) if "experiment=small" in name]
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    told = {name.partition("{")[0] for name in found}
    histograms = {name for name, kind in kinds.items() if kind == "histogram" and "_stream_" not in name}
    assert {f"{name}_count" for name in histograms} <= told
    offered = dict(offers(text))
    assert {name: kind for name, (kind, _) in offered.items() if name in PROMISED} == {
        name: kind for name, (kind, _) in PROMISED.items()
    }
    assert {name for name, (_, labels) in PROMISED.items() if offered[name][1] != labels} == NOT_MET_HERE
    # Of one that has ended no rollout is cancelled any more: that would be one more.
    assert 100 < len(found) < 150, (len(found), Counter(name.partition("{")[0] for name in found))


async def test_turns_checkpoints_and_phases_of_a_sync_are_counted(tmp_path: Path) -> None:
    """Of a run whose other events are of a release that told none of it."""
    run = SyntheticRun(Recorder()).write()
    before = len(run.recorder.records)
    tell_everything(run)
    run.recorder.write(WeightsRetired(version=50, generation=0, reason="r", lost=True), run.id, role="trainer")
    feed = MetricsFeed(Metrics(version="1"))
    show(run.recorder.records[:before], feed, FenceView())
    plain = shown(feed.metrics.expose().decode())
    assert not any(name.startswith(("rftd_checkpoint_duration", "rftd_rollout_turns_count{s")) for name in plain)
    assert not any("phase=publish" in name or "phase=transfer" in name for name in plain)
    recorder, writer = run.recorder, Writer(source="t", clock=run.recorder.clock, ids=run.recorder.ids)
    for failures in ((("load", 2),), (("load", 5), ("fell_back", 1), ("of a newer release", 4))):
        beat = Heartbeat(worker=run.workers[1], role="explorer", slot=1, state="busy", sync_failures=failures)
        recorder.put(writer.draft(beat, experiment=run.id, key=run.workers[1]))
    show(recorder.records[before:], feed, FenceView(midway=True))
    values = shown(feed.metrics.expose().decode())
    sync = "rftd_weight_sync_duration_seconds_sum{experiment=small,method=checkpoint,phase="
    assert {phase: values[f"{sync}{phase}}}"] for phase in ("publish", "transfer", "resume")} == {
        "publish": 0.5,
        "transfer": 2.5,
        "resume": 0.5,
    }
    assert values[f"{sync}load}}"] - plain[f"{sync}load}}"] == pytest.approx(1.0)
    assert values["rftd_rollout_turns_sum{experiment=small,taskset=}"] == 2
    assert values["rftd_checkpoint_duration_seconds_sum{experiment=small}"] == 3
    failed = "rftd_weight_sync_failures_total{experiment=small,method=checkpoint,reason="
    assert {reason: values[f"{failed}{reason}}}"] for reason in ("load", "fell_back", "lost", "other")} == {
        "load": 3,
        "fell_back": 1,
        "lost": 1,
        "other": 4,
    }


async def test_the_buffer_is_told_by_priority_and_held_against_its_bounds(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder()).write()
    policy = PolicySpec(capacity=300, max_staleness_versions=5)
    feed = MetricsFeed(Metrics(version="1"))
    async with desk_in(tmp_path, run.recorder.clock) as desk:
        await desk.put(run.recorder.drafts)
        show(run.recorder.records, feed, FenceView())
        spec = spec_of("small", 3)
        stages = tuple(msgspec.structs.replace(stage, policy=policy) for stage in spec.stages)
        feed.declared[run.id] = declared_by(run.id, msgspec.structs.replace(spec, stages=stages))
        async with desk.engine.begin() as connection:
            await connection.exec_driver_sql("UPDATE experiences SET priority = -0.5")
        values = shown((await desk.scrape_of(feed, {}).text()).decode())
    buffer = "rftd_buffer_experiences{buffer=waiting,experiment=small,priority="
    assert values[f"{buffer}low}}"] == 2
    assert not {f"{buffer}normal}}", f"{buffer}high}}"} & values.keys()
    assert values["rftd_buffer_experiences{buffer=cooling,experiment=small,priority=normal}"] == 0
    assert values["rftd_buffer_capacity_experiences{buffer=waiting,experiment=small}"] == 300
    assert values["rftd_experiment_max_staleness_versions{experiment=small}"] == 5


async def test_equal_names_are_told_apart_and_hostile_ones_are_escaped(tmp_path: Path) -> None:
    hostile = 'a"} 1\nrftd_train_step{experiment="b\\'
    recorder = Recorder()
    runs = [SyntheticRun(recorder, name=name).write() for name in (hostile, "same", "same")]
    async with desk_in(tmp_path, recorder.clock) as desk:
        await desk.put(recorder.drafts)
        scraped = await desk.scrape()
        steps = {name: value for name, value in shown(scraped).items() if name.startswith("rftd_train_step{")}
        # The parser of `prometheus_client` takes the escapes back.
        assert sorted(steps) == sorted(f"rftd_train_step{{experiment={name}}}" for name in (hostile, "same", "same@2"))
        assert standing(scraped, "same@2") == await desk.page(runs[2].id, "same@2")
    assert 'experiment="a\\"} 1\\nrftd_train_step{experiment=\\"b\\\\"' in scraped


async def test_an_end_is_shown_for_an_hour_and_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    run = SyntheticRun(Recorder()).write()
    async with desk_in(tmp_path, run.recorder.clock) as desk:
        await desk.put(run.recorder.drafts)
        feed = MetricsFeed(Metrics(version="1"))
        scrape = Scrape(
            feed, log=desk.log, engine=desk.engine, applied=desk.projector, clock=desk.clock, processor_s=lambda: 0.0
        )
        assert standing((await scrape.text()).decode(), "small")
        run.recorder.clock.advance(3601.0)
        assert not standing(await desk.scrape(), "small")
        async with desk.engine.begin() as connection:
            await connection.exec_driver_sql("DROP TABLE experiments")
        assert shown(await desk.scrape())["rftd_state_readable{}"] == 0


async def test_nothing_is_read_again_of_an_experiment_that_has_not_changed(tmp_path: Path) -> None:
    recorder = Recorder()
    still = SyntheticRun(recorder, name="still").write()
    moving = SyntheticRun(recorder, name="moving", seed=1)
    moving.begin()
    moving.warm_up()
    feed = MetricsFeed(Metrics(version="1"))
    async with desk_in(tmp_path, recorder.clock) as desk:
        await desk.put(recorder.drafts)
        scrape = desk.scrape_of(feed, {})
        before = standing((await scrape.text()).decode(), "still")
        told = len(recorder.drafts)
        for _ in range(2):  # the first time that it is seen, nobody knows since when it has stood still
            moving.explore()
            await desk.put(recorder.drafts[told:])
            told = len(recorder.drafts)
            await scrape.text()
        async with desk.engine.begin() as connection:
            for table in ("experiences", "batch_items", "evals"):
                await connection.exec_driver_sql(f"DELETE FROM {table}")
        moving.train()
        await desk.put(recorder.drafts[told:])
        after = (await scrape.text()).decode()
        assert standing(after, "still") == before
        assert shown(after)["rftd_train_step{experiment=moving}"] == moving.version
        assert standing(await desk.scrape(), "still") != before, "whoever has not read it before reads it"
    assert still.version


async def test_a_buffer_that_cannot_be_counted_in_time_leaves_the_rest_to_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyntheticRun(Recorder()).write()
    async with desk_in(tmp_path, run.recorder.clock) as desk:
        await desk.put(run.recorder.drafts)
        scrape = desk.scrape_of(MetricsFeed(Metrics(version="1")), {})
        monkeypatch.setattr(metrics_scrape, "COUNTING_S", 0.0)
        first = (await scrape.text()).decode()
        assert "rftd_buffer_experiences{" not in first
        assert shown(first)["rftd_train_step{experiment=small}"] == run.version
        monkeypatch.undo()
        run.recorder.clock.advance(3600.0 / 2)
        assert "rftd_buffer_experiences{" in (await scrape.text()).decode(), "although the tables did not move"
