"""Waits at sync points have names."""

from __future__ import annotations

from synthetic.worlds.desk import REPEAT, Desk, stage_of

from rftd.daemon.run.why.answer import waits_of
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.wait import Wait
from rftd.ops.words import Level
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsOverdue
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.closing import close_groups
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner


def dispatcher_of(desk: Desk) -> Wait:
    """The dispatcher's wait now."""
    liveness = Liveness()
    scene = RunSnapshot(state=desk.state, liveness=liveness, now_s=0.0, now_ns=0)
    return next(wait for wait in waits_of(scene) if wait.role == "dispatcher")


def test_explorers_wait_at_a_sync_point() -> None:
    sync = Synchronizer(sync_style="explorer_driven", sync_interval=1, sync_timeout=60.0)
    desk = Desk(stage_of(synchronizer=sync, policy=PolicySpec(max_staleness_versions=9, max_inflight_batches=3)))
    desk.join()
    dispatcher = Dispatcher(desk.state, Liveness())
    leases = desk.obey(dispatcher.decide(1.0).decisions)
    wait = dispatcher_of(desk)
    assert (wait.state, wait.level, wait.on_whom) == ("sync_point", Level.WAITS, "explorers")
    assert "before window 1" in wait.waiting_for
    assert "2 groups" in wait.waiting_for
    for lease in leases:
        assert isinstance(lease, TaskLeased)
        desk.produce(lease, range(REPEAT))
    desk.obey(close_groups(desk.state, stage_over=False))
    desk.obey(dispatcher.decide(2.0).decisions)
    wait = dispatcher_of(desk)
    assert (wait.state, wait.on_whom) == ("answer", "trainer")
    assert "sync_timeout (60 s) passes" in wait.unblock
    assert "its current step" in wait.unblock


def test_nothing_older_may_be_trained_after_sync_timeout() -> None:
    sync = Synchronizer(sync_style="fixed", sync_interval=1, sync_timeout=0.5)
    desk = Desk(stage_of(synchronizer=sync, policy=PolicySpec(max_staleness_versions=0, max_inflight_batches=3)))
    desk.join()
    dispatcher = Dispatcher(desk.state, Liveness())
    for lease in desk.obey(dispatcher.decide(1.0).decisions):
        assert isinstance(lease, TaskLeased)
        desk.produce(lease, range(REPEAT))
    desk.obey(dispatcher.decide(2.0).decisions)
    desk.obey(Planner(desk.state).decide(desk.positions, 0).events)
    desk.execute()
    assert desk.obey(dispatcher.decide(3.0).decisions) == []
    assert [type(event) for event in desk.obey(dispatcher.decide(4.0).decisions)] == [WeightsOverdue]
    wait = dispatcher_of(desk)
    assert (wait.state, wait.on_whom, wait.unblock) == ("weights", "trainer", "it is trained and published")
    assert "older weights are not allowed (max_staleness 0)" in wait.waiting_for
