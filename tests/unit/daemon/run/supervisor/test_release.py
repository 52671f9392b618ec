"""When a paused experiment lets go of its workers: only if a person must end the pause, and nothing is half done."""

from __future__ import annotations

import pytest
from synthetic.worlds.desk import Desk

from rftd.daemon.run.supervisor.inbox import requeued
from rftd.daemon.run.supervisor.release import release_is_due
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.events.worker import Heartbeat, WorkerStarted
from rftd.streams.folds.spine import Status
from rftd.streams.folds.worker_state import WorkerState
from rftd.workers.control.liveness import Liveness

AFTER_S = 30.0


def due(desk: Desk, waited_s: float, liveness: Liveness | None = None) -> bool:
    """Whether the workers leave so long after the status changed."""
    now_ns = desk.state.spine.status_ns + round(waited_s * 1e9)
    return release_is_due(desk.state, liveness or Liveness(), now_ns, AFTER_S)


@pytest.mark.parametrize(
    ("cause", "released"),
    [("", True), ("signal_lost", True), ("disk_full", False), ("refused", False), ("part_missing", False)],
)
def test_a_pause_that_ends_by_itself_keeps_the_workers(cause: str, released: bool) -> None:
    desk = Desk()
    assert not due(desk, 99.0), "it runs"
    desk.put(life.ExperimentPaused(reason="r", cause=cause))
    assert not due(desk, 29.9)
    assert due(desk, 30.0) is released


def test_the_wait_begins_when_a_person_takes_a_pause_over() -> None:
    desk = Desk()
    desk.put(life.ExperimentPaused(reason="full", cause="disk_full"))
    before_ns = desk.state.spine.status_ns
    desk.recorder.clock.advance(3600.0)
    desk.put(life.ExperimentPaused(reason="enough"))
    assert desk.state.spine.status_ns - before_ns >= 3600e9
    assert not due(desk, 29.9)
    assert due(desk, 30.0)


def test_a_step_under_way_is_finished_first() -> None:
    desk = Desk()
    trainer = desk.recorder.ids.new()
    joined = WorkerStarted(worker=trainer, role="trainer", slot=-1, host="h", pid=1, process_start_s=1.0)
    desk.put(joined, key=trainer)
    desk.put(life.ExperimentPaused())
    liveness = Liveness()
    for state, released in ((WorkerState.BUSY, False), (WorkerState.CHECKPOINT, False), (WorkerState.PAUSED, True)):
        liveness.note(Heartbeat(worker=trainer, role="trainer", slot=-1, state=state))
        liveness.tick(1.0)
        assert due(desk, 30.0, liveness) is released


@pytest.mark.parametrize("released", [False, True])
def test_a_resume_that_no_run_obeys_waits_for_its_turn(released: bool) -> None:
    desk = Desk()
    spine = desk.state.spine
    desk.put(life.ExperimentPaused())
    if released:
        desk.put(life.ExperimentReleased())
    asked: list[Event] = [life.ExperimentResumed(reason="on"), life.ExperimentCancelled()]
    resumed, cancelled = [requeued(event) for event in asked]
    assert cancelled == asked[1]
    desk.put(resumed)
    assert spine.status is Status.QUEUED
    assert not spine.released
    desk.put(life.ExperimentReleased())
    assert not spine.released, "only what is paused can be released"
