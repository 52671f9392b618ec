"""The waits of what is paused, released or queued: whose turn it is, and who could make it come."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.worlds.desk import Desk, stage_of

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.why.life import Line, driven, entry_wait
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.ops.words import Level
from rftd.streams.events import experiment
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.engines import ServingSpec
from rftd.workers.control.liveness import Liveness


def entry(number: int, status: Status, priority: int = 0) -> Entry:
    spine = Spine()
    spine.status, spine.priority = status, priority
    spine.status_ns = 100 + number
    return Entry(id=UUID(int=number), name=f"e{number}", job_dir="", submitted_ns=number, spine=spine, spine_offset=0)


def entry_of(desk: Desk, name: str) -> Entry:
    """The experiment of a desk, as the registry has it."""
    spine = desk.state.spine
    return Entry(id=desk.state.experiment, name=name, job_dir="", submitted_ns=1, spine=spine, spine_offset=0)


def test_a_queue() -> None:
    running, one, two = entry(1, Status.RUNNING), entry(2, Status.QUEUED), entry(3, Status.QUEUED)
    line = Line([running, one, two], slots=1)
    wait = entry_wait(two, line)
    assert (wait.state, wait.level, wait.on_whom) == ("queued", Level.WAITS, "e1")
    assert wait.waiting_for == "its turn, number 2 in the queue, behind e1 (running), e2 (queued)"
    assert wait.unblock == "e1 ends; to overtake e2: rftd prioritize e3 1"
    assert wait.since_ns == 103
    running.spine.status = Status.PAUSED
    wait = entry_wait(one, line)
    assert (wait.level, wait.unblock) == (Level.WAITS, "e1 is paused and gives its slot back soon")
    running.spine.cause = "disk_full"
    wait = entry_wait(one, line)
    assert (wait.level, wait.unblock) == (Level.STUCK, "see rftd why e1, or cancel it")
    wait = entry_wait(one, Line([one], slots=1))
    assert wait.state == "taken_up"
    wait = entry_wait(entry(4, Status.SUBMITTED), line)
    assert (wait.state, wait.level) == ("not_accepted", Level.STUCK)
    wait = entry_wait(entry(5, Status.COMPLETED), line)
    assert (wait.state, wait.level) == ("completed", Level.DONE)


@pytest.mark.parametrize("served", [False, True])
def test_a_pause_says_whether_workers_and_users_are_still_there(served: bool) -> None:
    stage = stage_of(serving=ServingSpec(address="127.0.0.1", port=0) if served else None)
    desk = Desk(stage)
    desk.put(experiment.ExperimentPaused(reason="the machine is needed"))
    scene = RunSnapshot(state=desk.state, liveness=Liveness(), now_s=10.0, now_ns=desk.recorder.clock.now_ns())
    paused = "a resume; it was paused by a command: the machine is needed"
    answered = "; its users are still answered, until its workers are released" if served else ""
    assert driven(scene).waiting_for == f"{paused}; quiet: no work in progress, and no workers{answered}"
    desk.put(experiment.ExperimentReleased())
    wait = entry_wait(entry_of(desk, "my run"), Line([], slots=1))
    assert (wait.state, wait.level, wait.on_whom) == ("released", Level.STUCK, "you")
    unanswered = "; its users get no answer" if served else ""
    assert wait.waiting_for == f"{paused}; released: its workers and its slot are released{unanswered}"
    assert wait.unblock == "rftd resume 'my run'; it is queued by its priority if no slot is free"


def test_what_is_released_for_a_lost_signal_says_so() -> None:
    desk = Desk()
    desk.put(experiment.ExperimentPaused(reason="all rewards are 0; fix: check the reward", cause="signal_lost"))
    desk.put(experiment.ExperimentReleased())
    wait = entry_wait(entry_of(desk, "e1"), Line([], slots=1))
    assert wait.waiting_for == (
        "something to learn from: all rewards are 0; released: its workers and its slot are released"
    )


def test_a_queue_of_several_slots() -> None:
    paused, running = entry(1, Status.PAUSED), entry(2, Status.RUNNING)
    paused.spine.cause = "refused"
    urgent, other = entry(5, Status.QUEUED, priority=3), entry(3, Status.QUEUED)
    line = Line([paused, running, urgent, other], slots=2)
    wait = entry_wait(urgent, line)
    assert wait.waiting_for == "its turn (2 slots), number 1 in the queue, behind e1 (paused), e2 (running)"
    assert (wait.level, wait.on_whom) == (Level.WAITS, "e1, e2")
    assert wait.unblock == "one of them ends; e1 is paused and keeps its slot: see rftd why e1, or cancel it"
    wait = entry_wait(other, line)
    assert wait.waiting_for.endswith("behind e1 (paused), e2 (running), e5 (queued, priority 3)")
    assert wait.unblock.endswith("to overtake e5: rftd prioritize e3 4")
    running.spine.status = Status.PAUSED
    wait = entry_wait(urgent, line)
    assert (wait.level, wait.unblock) == (Level.WAITS, "e2 is paused and gives its slot back soon")
    running.spine.cause = "disk_full"
    wait = entry_wait(urgent, line)
    assert (wait.level, wait.unblock) == (Level.STUCK, "see rftd why e1, or cancel it")
    left = entry(6, Status.RUNNING)
    wait = entry_wait(left, Line([paused, running, left], slots=2))
    assert wait.state == "queued"
    assert wait.waiting_for == "its turn (2 slots), behind e1 (paused), e2 (paused)"
    everyone = [paused, *(entry(number, Status.QUEUED) for number in range(10, 20))]
    wait = entry_wait(everyone[-1], Line(everyone, slots=1))
    assert wait.waiting_for.endswith("e13 (queued) and 5 more")
