"""Metrics count no plan that is void, and tell strangers' records from those of replaced processes."""

from __future__ import annotations

import pytest
from synthetic.log.beset_run import BesetRun
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import show
from rftd.daemon.observe.metrics_void import foreign_wait
from rftd.daemon.run.why.wait import sentence_of
from rftd.ops.metrics import Metrics
from rftd.ops.words import Level
from rftd.streams.events.experiment import ExperimentCancelled
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import EXPERIMENTS


@pytest.fixture
def run() -> SyntheticRun:
    """A run that has begun."""
    run = SyntheticRun(Recorder(), faults=False)
    run.begin()
    return run


def test_records_of_strangers_and_of_replaced_processes_are_counted_apart(run: SyntheticRun) -> None:
    run.recorder.fence("controller", run.id, run.spine)
    for epoch in (1, 2):
        run.recorder.write(ExperimentCancelled(), run.id, role="controller", epoch=epoch, source="stranger")
    run.recorder.write(ExperimentCancelled(), run.id, role="controller", epoch=1)
    feed = MetricsFeed(Metrics(version="1"))
    show(run.recorder.records, feed, FenceView())
    for cause, count in (("foreign", 2), ("replaced", 1)):
        labels = {"stream": EXPERIMENTS, "cause": cause}
        assert feed.metrics.registry.get_sample_value("rftd_stream_void_records_total", labels) == count


@pytest.mark.parametrize("begins_midway", [False, True])
def test_plans_that_are_void_are_not_counted(run: SyntheticRun, begins_midway: bool) -> None:
    run.warm_up()
    run.explore()
    begin = len(run.recorder.records) if begins_midway else 0
    run.plan(stage=1, again=run.waiting[:])
    version = run.version
    for step in (1, version, version + 1, version + 40):
        run.ahead.clear()
        run.version = step - 1
        run.plan(stage=1, again=run.waiting[:])
    feed = MetricsFeed(Metrics(version="1"))
    show(run.recorder.records[begin:], feed, FenceView(midway=begins_midway))
    name = str(run.id) if begins_midway else "small"
    labels = {"experiment": name, "stage": "plan", "outcome": "ok"}
    assert feed.metrics.registry.get_sample_value("rftd_experiences_total", labels) == len(run.waiting)


@pytest.mark.parametrize("looks", [1, 2])
def test_answers_of_strangers_are_no_experiences(looks: int) -> None:
    """In one look and record by record, with leases of others and with leases that nobody gave."""
    run = BesetRun(Recorder()).write()
    plain = SyntheticRun(Recorder()).write()
    feeds = []
    for recorder in (run.recorder, plain.recorder):
        feed, fences = MetricsFeed(Metrics(version="1")), FenceView()
        for records in [recorder.records] if looks == 1 else [[record] for record in recorder.records]:
            show(records, feed, fences)
        feeds.append(feed)
    name = "small"
    for metric, labels in (
        ("rftd_experiences_total", {"stage": "produce", "outcome": "ok"}),
        ("rftd_rollouts_total", {"taskset": "", "outcome": "ok"}),
        ("rftd_rollouts_total", {"taskset": "", "outcome": "timeout"}),
        ("rftd_rollouts_total", {"taskset": "", "outcome": "error"}),
        ("rftd_rollout_reward_sum", {"taskset": ""}),
        ("rftd_reward_gained_total", {}),
    ):
        beset, alone = (
            feed.metrics.registry.get_sample_value(metric, {"experiment": name, **labels}) for feed in feeds
        )
        assert beset == alone, (metric, labels)
    foreign = feeds[0].void.foreign.get(run.id)
    assert foreign is not None
    assert feeds[1].void.foreign.get(plain.id) is None
    wait = foreign_wait(foreign)
    assert "records of strangers without effect" in sentence_of(wait)
    assert wait.level == Level.WORKS
