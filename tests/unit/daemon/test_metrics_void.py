"""Metrics count no plan that is void, and tell strangers' records from those of replaced processes."""

from __future__ import annotations

import pytest
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.log.tape import Tape

from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.metrics_follower import show
from rftd.ops.metrics import Metrics
from rftd.streams.events.experiment import ExperimentCancelled
from rftd.streams.fencing import FenceView
from rftd.streams.topics import EXPERIMENTS


@pytest.fixture
def run() -> SyntheticRun:
    """A run that has begun."""
    run = SyntheticRun(Tape(), faults=False)
    run.begin()
    return run


def test_records_of_strangers_and_of_replaced_processes_are_counted_apart(run: SyntheticRun) -> None:
    run.tape.fence("controller", run.id, run.spine)
    for epoch in (1, 2):
        run.tape.write(ExperimentCancelled(), run.id, role="controller", epoch=epoch, source="stranger")
    run.tape.write(ExperimentCancelled(), run.id, role="controller", epoch=1)
    feed = MetricsFeed(Metrics(version="1"))
    show(run.tape.records, feed, FenceView())
    for cause, count in (("foreign", 2), ("replaced", 1)):
        labels = {"stream": EXPERIMENTS, "cause": cause}
        assert feed.metrics.registry.get_sample_value("rftd_stream_void_records_total", labels) == count


@pytest.mark.parametrize("begins_midway", [False, True])
def test_plans_that_are_void_are_not_counted(run: SyntheticRun, begins_midway: bool) -> None:
    run.warm_up()
    run.explore()
    begin = len(run.tape.records) if begins_midway else 0
    run.plan(stage=1, again=run.waiting[:])
    version = run.version
    for step in (1, version, version + 1, version + 40):
        run.ahead.clear()
        run.version = step - 1
        run.plan(stage=1, again=run.waiting[:])
    feed = MetricsFeed(Metrics(version="1"))
    show(run.tape.records[begin:], feed, FenceView(midway=begins_midway))
    name = str(run.id) if begins_midway else "small"
    labels = {"experiment": name, "stage": "plan", "outcome": "ok"}
    assert feed.metrics.registry.get_sample_value("rftd_experiences_total", labels) == len(run.waiting)
