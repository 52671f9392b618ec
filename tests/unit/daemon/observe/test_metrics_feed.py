"""Metrics from the events of one whole run."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of
from synthetic.worlds.desk import lease_of

from rftd.daemon.observe.metrics_counted import Counted, Shape
from rftd.daemon.observe.metrics_feed import KEPT_AFTER_END_NS, MetricsFeed
from rftd.daemon.observe.metrics_follower import follow_metrics, show
from rftd.daemon.observe.metrics_spec import declared_by
from rftd.daemon.run.registry import Registry
from rftd.ops.errors import OverRolloutError
from rftd.ops.metrics import Metrics
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.experiment import (
    ExperimentCancelled,
    ExperimentCompleted,
    ExperimentStarted,
    ExperimentSubmitted,
)
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskLeased
from rftd.streams.events.weights import WeightsOverdue
from rftd.streams.events.worker import Heartbeat, WorkerLost
from rftd.streams.folds.spine import Spine
from rftd.streams.log.codec import Writer, decode, decode_head
from rftd.streams.log.envelope import Decoded, Draft, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import EXPERIENCES, EXPERIMENTS, TASKS, Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.rollout.leased import experience_ids, rollout_ids

BUDGET_SERIES = 5000
"""Of one daemon with its experiments."""


@pytest.fixture(scope="module")
def run() -> SyntheticRun:
    return SyntheticRun(Recorder()).write()


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.expose().decode()):
        if family.name.startswith("process_"):
            continue  # of the process that asks
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def fed(run: SyntheticRun) -> MetricsFeed:
    feed, fences = MetricsFeed(Metrics(version="1")), FenceView()
    for record in run.recorder.records:
        decoded = decode(record)
        effective = fences.admit(record.partition, decoded.head, decoded.event)
        feed.void.take(decoded, fences, effective=effective)
        if effective:
            feed.observe(decoded)
    feed.settle()
    return feed


def test_a_whole_run(run: SyntheticRun) -> None:
    values = samples(fed(run).metrics)
    assert values["rftd_train_steps_total{experiment=small}"] == 5
    assert values["rftd_rollouts_total{experiment=small,outcome=ok,taskset=}"] == 28
    assert values["rftd_rollouts_total{experiment=small,outcome=timeout,taskset=}"] == 1
    assert values["rftd_experience_staleness_versions_count{experiment=small}"] == 26, "with the abandoned batch"
    assert values["rftd_experiences_total{experiment=small,outcome=stale,stage=retire}"] == 1
    assert not any("_created" in name for name in values)


@pytest.mark.parametrize("first", ("plans", "experiences", "names"))
def test_it_is_the_same_without_decoding_all_and_in_any_order_of_streams(run: SyntheticRun, first: str) -> None:
    key = {
        "plans": lambda record: record.partition.stream == EXPERIENCES,
        "experiences": lambda record: record.partition.stream != EXPERIENCES,
        "names": lambda record: record.partition.stream != EXPERIMENTS,
    }[first]
    feed = MetricsFeed(Metrics(version="1"))
    show(sorted(run.recorder.records, key=key), feed, FenceView())
    assert samples(feed.metrics) == samples(fed(run).metrics)


def test_experiences_of_a_foreign_program_count_nothing(run: SyntheticRun) -> None:
    recorder = Recorder()
    head = msgspec.msgpack.encode((b"id", "experience.produced", 1, b"no id", "somebody", 0))
    produced = next(record for record in run.recorder.records if decode_head(record).type == "experience.produced")
    for broken in (
        Draft(produced.partition, recorder.ids.new(), head, produced.value),
        replaced(produced, value=b"\x81"),
    ):
        recorder.put(broken)
    feed = MetricsFeed(Metrics(version="1"))
    show(recorder.records, feed, FenceView())
    assert not any(name.startswith("rftd_rollouts") for name in samples(feed.metrics))


def test_a_prompt_that_was_cut_is_no_long_answer() -> None:
    feed = MetricsFeed(Metrics(version="1"))
    for number, finish in enumerate(("stop", "length", "prompt_truncated", "prompt_truncated")):
        shape = Shape(dtype="u4", shape=(3,))
        event = Counted(experience=UUID(int=number), stage=0, tokens=shape, prompt_tokens=1, reward=0.0, finish=finish)
        feed.produced(UUID(int=9).bytes, 1, event)
    feed.settle()
    values = samples(feed.metrics)
    counts = {outcome: value for name, value in values.items() for outcome in _outcome_of(name)}
    assert counts == {"ok": 1, "truncated": 1, "prompt_truncated": 2}


def test_a_traced_rollout_is_named_beside_its_buckets_and_in_open_metrics_alone() -> None:
    feed = MetricsFeed(Metrics(version="1"))
    for number, sampled in enumerate(("01", "00", "")):
        event = Counted(
            experience=UUID(int=number), stage=0, tokens=Shape(dtype="u4", shape=(3,)), prompt_tokens=1, reward=0.3
        )
        header = f"00-{number + 1:032x}-{7:016x}-{sampled}" if sampled else None
        feed.produced(UUID(int=9).bytes, 5_000_000_000, event, header)
        feed.settle()
    text = feed.metrics.expose(open_metrics=True).decode()
    # Bounds below zero: the format has neither sum nor count, which the last bucket is.
    assert "rftd_rollout_reward_count" not in text
    assert "rftd_rollout_reward_count" in feed.metrics.expose().decode()
    families = {each.name: each for each in open_metrics_families(text)}
    assert next(each.value for each in families["rftd_rollout_reward"].samples if each.labels["le"] == "+Inf") == 3
    for name, value, bound in (
        ("rftd_rollout_reward", 0.3, "0.5"),
        ("rftd_rollout_response_tokens", 2.0, "64.0"),
        ("rftd_rollout_duration_seconds", 0.0, "1.0"),
    ):
        named = {each.labels["le"]: each.exemplar for each in families[name].samples if each.exemplar is not None}
        assert list(named) == [bound]
        found = named[bound]
        assert (found.labels, found.value, float(found.timestamp)) == ({"trace_id": f"{1:032x}"}, value, 5.0)
    assert "trace_id" not in feed.metrics.expose().decode()


def test_dropped_spans_of_workers_are_counted() -> None:
    recorder, feed = Recorder(), MetricsFeed(Metrics(version="1"))
    experiment, worker = recorder.ids.new(), recorder.ids.new()
    for dropped in (0, 5, 9):
        beat = Heartbeat(worker=worker, role="explorer", slot=2, state="busy", spans_dropped_total=dropped)
        recorder.write(beat, experiment, key=worker)
        feed.observe(decode(recorder.records[-1]))
    values = samples(feed.metrics)
    assert values[f"rftd_trace_spans_dropped_total{{experiment={experiment},role=explorer,slot=2}}"] == 9


def test_a_specification_without_a_stage_stops_nobody() -> None:
    recorder, feed = Recorder(), MetricsFeed(Metrics(version="1"))
    id = recorder.ids.new()
    recorder.write(ExperimentSubmitted(spec=msgspec.structs.replace(spec_of("none", 3), stages=())), id)
    feed.observe(decode(recorder.records[-1]))
    assert not feed.declared[id].accelerators
    assert feed.declared[id].stage(0) is None


def test_a_hostile_name_of_a_taskset_is_escaped_and_cut(run: SyntheticRun) -> None:
    hostile = 'a"} 1\nrftd_rollouts_total{taskset="b\\' + "x" * 5000
    spec = spec_of("small", 3)
    taskset = TasksetSpec(name=hostile, path="/t", digest="d", rows=1)
    stages = tuple(msgspec.structs.replace(stage, taskset=taskset) for stage in spec.stages)
    feed = MetricsFeed(Metrics(version="1"))
    feed.declared[run.id] = declared_by(run.id, msgspec.structs.replace(spec, stages=stages))
    shape = Shape(dtype="u4", shape=(3,))
    event = Counted(experience=UUID(int=1), stage=1, tokens=shape, prompt_tokens=1, reward=0.0)
    feed.produced(run.id.bytes, 1, event)
    feed.settle()
    (family,) = [
        each for each in text_string_to_metric_families(feed.metrics.expose().decode()) if each.name == "rftd_rollouts"
    ]
    (sample,) = family.samples
    assert sample.value == 1
    assert sample.labels["taskset"] == hostile[:99] + "…"


def _outcome_of(name: str) -> list[str]:
    """The outcome in the name of a series of rollouts; nothing in another name."""
    return [name.partition("outcome=")[2].split(",")[0]] if name.startswith("rftd_rollouts_total") else []


def replaced(record: Record, *, value: bytes) -> Draft:
    return Draft(record.partition, decode_head(record).id, record.head, value)


def test_what_is_given_up_or_given_out_twice_is_counted() -> None:
    run = SyntheticRun(Recorder()).write()
    feed, recorder = fed(run), run.recorder
    group = recorder.ids.new()
    leased = lease_of(group, worker=run.workers[0], sequence=99, stage=1, rollouts=(0,), attempt=2, reissue=True)
    closed = GroupClosed(group=group, sequence=99, stage=1, members=(), failed=4, code=OverRolloutError.code)
    for event in (leased, closed):
        recorder.write(event, run.id, role="dispatcher", partition=Partition(TASKS, 0))
        feed.observe(decode(recorder.records[-1]))
    values = samples(feed.metrics)
    assert values["rftd_task_leases_total{experiment=small,kind=second}"] == 1
    assert values["rftd_task_leases_total{experiment=small,kind=first}"] > 0
    assert values["rftd_groups_given_up_total{code=RFTD-WRK-008,experiment=small}"] == 1


def test_rollouts_that_nobody_finishes_are_cancelled_and_each_is_counted_once() -> None:
    """Of groups of four: given up, closed in order, closed before its lease was read, and under way at the end."""
    feed, recorder = MetricsFeed(Metrics(version="1")), Recorder()
    id, worker = recorder.ids.new(), recorder.ids.new()
    dropped, whole, early, last = (recorder.ids.new() for _ in range(4))

    def tell(event: Event, **where: Any) -> None:
        recorder.write(event, id, role="dispatcher", **where)
        feed.observe(decode(recorder.records[-1]))

    def leased(group: UUID, attempt: int = 1) -> TaskLeased:
        return lease_of(group, worker=worker, stage=1, attempt=attempt)

    def closed(group: UUID, code: str = "", failed: int = 0) -> GroupClosed:
        return GroupClosed(group=group, sequence=1, stage=1, members=(), failed=failed, code=code)

    def produced(group: UUID, rollout: int) -> None:
        (experience,) = experience_ids(rollout_ids(group, [rollout]))
        shape = Shape(dtype="u4", shape=(3,))
        event = Counted(experience=experience, stage=1, tokens=shape, prompt_tokens=1, reward=0.0)
        feed.produced(id.bytes, 1, event)

    def cancelled() -> float:
        feed.settle()
        return samples(feed.metrics).get("rftd_rollouts_total{experiment=other,outcome=cancelled,taskset=}", 0)

    tell(ExperimentSubmitted(spec=spec_of("other", 3)))
    first = leased(dropped)
    failure = RolloutFailed(group=dropped, rollout=1, stage=1, lease=first.lease, code="c", reason="r")
    tasks = {"partition": Partition(TASKS, 0)}
    produced(dropped, 0)
    # The failure is read after the closing that tells of it, from another partition.
    for event in (first, leased(dropped, 2), closed(dropped, OverRolloutError.code, failed=4)):
        tell(event, **tasks)
    tell(failure)
    assert cancelled() == 2, "one was produced, and one has failed"
    tell(closed(early), **tasks)
    for group in (whole, early, last):
        tell(leased(group), **tasks)
    tell(closed(whole), **tasks)
    produced(last, 3)
    assert cancelled() == 2
    tell(ExperimentCancelled(reason="enough"))
    assert feed.groups.ending
    while feed.groups.ending:
        feed.settle()
    tell(leased(recorder.ids.new()), **tasks)  # decided before the end, and read after it
    assert cancelled() == 2 + 3
    tell(closed(last), **tasks)
    assert cancelled() == 2 + 3


def test_sync_points_that_took_too_long_are_counted() -> None:
    run = SyntheticRun(Recorder()).write()
    feed, recorder = fed(run), run.recorder
    for window, version in ((1, 0), (2, -1), (3, -1)):
        event = WeightsOverdue(stage=1, window=window, wanted=4, version=version, waited_s=60.0, reason="late")
        recorder.write(event, run.id, role="dispatcher")
        feed.observe(decode(recorder.records[-1]))
    values = samples(feed.metrics)
    assert values["rftd_weight_sync_overdue_total{experiment=small,then=goes_on}"] == 1
    assert values["rftd_weight_sync_overdue_total{experiment=small,then=waits}"] == 2


def test_what_a_consumer_handles_is_told_by_stream() -> None:
    metrics = Metrics(version="1", commit="c")
    metrics.handled("tables", 0.003, {TASKS: 0, EXPERIMENTS: 2})
    values = samples(metrics)
    for stream in (TASKS, EXPERIMENTS):
        labels = f"consumer_group=tables,stream={stream}"
        assert values[f"rftd_stream_handler_duration_seconds_sum{{{labels}}}"] == 0.003
        assert values[f"rftd_stream_duplicates_total{{{labels}}}"] == (2 if stream == EXPERIMENTS else 0)
    assert values["rftd_build_info{commit=c,version=1}"] == 1


def test_labels_are_few(run: SyntheticRun) -> None:
    assert len(samples(fed(run).metrics)) * 10 < BUDGET_SERIES


def test_an_ended_experiment_is_forgotten_after_an_hour(run: SyntheticRun) -> None:
    feed = fed(run)
    ended_ns = run.recorder.clock.now_ns()
    feed.expire(ended_ns)
    assert any("small" in name for name in samples(feed.metrics))
    feed.expire(ended_ns + KEPT_AFTER_END_NS + 10**9)
    assert not any("small" in name for name in samples(feed.metrics))


def test_what_workers_use_comes_from_heartbeats(run: SyntheticRun) -> None:
    recorder, feed = Recorder(), MetricsFeed(Metrics(version="1"))
    writer = Writer(source="t", clock=recorder.clock, ids=recorder.ids)
    worker = recorder.ids.new()

    def beats(cpu_s: float, tokens: int) -> None:
        beat = Heartbeat(
            worker=worker, role="explorer", slot=2, state="unheard", tokens_total=tokens, memory_bytes=1000, cpu_s=cpu_s
        )
        recorder.put(writer.draft(beat, experiment=run.id, key=worker))
        feed.observe(decode(recorder.records[-1]))
        recorder.clock.advance(1.0)

    for cpu_s, tokens in ((5.0, 100), (7.0, 160), (1.0, 0), (2.5, 10)):
        beats(cpu_s, tokens)
    place = f"experiment={run.id},role=explorer,slot=2"
    values = samples(feed.metrics)
    assert values[f"rftd_worker_cpu_seconds_total{{{place}}}"] == 3.5
    assert values[f"rftd_worker_tokens_total{{{place}}}"] == 70
    assert values[f"rftd_worker_memory_bytes{{{place}}}"] == 1000
    assert values[f"rftd_role_state_seconds_total{{experiment={run.id},role=explorer,state=other}}"] == 3
    lost = WorkerLost(worker=worker, role="explorer", slot=2, reason="killed")
    recorder.put(writer.draft(lost, experiment=run.id, key=worker))
    feed.observe(decode(recorder.records[-1]))
    assert samples(feed.metrics)[f"rftd_worker_memory_bytes{{{place}}}"] == 0


def test_time_in_each_state_comes_from_heartbeats(run: SyntheticRun) -> None:
    recorder, feed = Recorder(), MetricsFeed(Metrics(version="1"))
    writer = Writer(source="t", clock=recorder.clock, ids=recorder.ids)
    worker = recorder.ids.new()
    for state in ("busy", "wait_tasks", "busy"):
        beat = Heartbeat(worker=worker, role="explorer", slot=0, state=state)
        recorder.put(writer.draft(beat, experiment=run.id, key=worker))
        recorder.clock.advance(2.0)
    for record in recorder.records:
        feed.observe(decode(record))
    values = samples(feed.metrics)
    assert values[f"rftd_role_state_seconds_total{{experiment={run.id},role=explorer,state=busy}}"] == 2
    assert values[f"rftd_role_state_seconds_total{{experiment={run.id},role=explorer,state=wait_tasks}}"] == 2


class Told(MetricsFeed):
    """Says when it has heard of something."""

    def __init__(self) -> None:
        super().__init__(Metrics(version="1"))
        self.heard: dict[type[Event], asyncio.Event] = {
            kind: asyncio.Event() for kind in (ExperimentStarted, ExperimentCompleted)
        }

        self.remembered = asyncio.Event()

    def remember(self, id: UUID, spine: Spine) -> None:
        super().remember(id, spine)
        self.remembered.set()

    def recall(self, decoded: Decoded) -> None:
        super().recall(decoded)
        if (heard := self.heard.get(type(decoded.event))) is not None:
            heard.set()


@pytest.mark.anyio
async def test_the_follower_knows_the_past_and_counts_the_future(run: SyntheticRun) -> None:
    log, feed = MemoryLog(), Told()
    half = len(run.recorder.drafts) // 2
    await log.append(run.recorder.drafts[:half])
    registry = Registry(log)

    async def known() -> Registry:
        await registry.catch_up()
        return registry

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow_metrics(log, feed, known))
        await feed.remembered.wait()
        assert "rftd_train_steps_total{experiment=small}" not in samples(feed.metrics)
        await log.append(run.recorder.drafts[half:])
        await feed.heard[ExperimentCompleted].wait()
        following.cancel()
    values = samples(feed.metrics)
    assert 0 < values["rftd_train_steps_total{experiment=small}"] < 5
    await log.close()
