"""Workers that are heard of before they join: what they do, since when, and for how long they are shown."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgspec
from synthetic.worlds.desk import Desk

from rftd.daemon.run.why.answer import waits_of
from rftd.daemon.run.why.run_snapshot import Process, RunSnapshot
from rftd.ops.words import Level
from rftd.streams.events.worker import Heartbeat
from rftd.workers.control.liveness import Liveness


def test_a_worker_that_opens_its_engine() -> None:
    desk, liveness = Desk(), Liveness()
    ours, theirs = UUID(int=8), UUID(int=9)
    for id, slot in ((ours, 0), (theirs, 1)):
        liveness.note(Heartbeat(worker=id, role="explorer", slot=slot, state="open_engine"))
    liveness.tick(8.0)
    place = Process(
        role="explorer",
        slot=0,
        pid=7,
        joined=False,
        start_in_s=0.0,
        restarts=0,
        last_why="",
        start_timeout_s=1800.0,
        worker=ours,
    )
    now_ns = desk.recorder.clock.now_ns()
    scene = RunSnapshot(state=desk.state, liveness=liveness, now_s=10.0, now_ns=now_ns, processes=[place])
    first, second = (wait for wait in waits_of(scene) if wait.role == "explorer")
    assert (first.state, first.slot, first.worker, first.level) == ("open_engine", 0, str(ours), Level.WORKS)
    assert first.waiting_for == "opens its engine (process 7)"
    assert first.unblock == "it joins and gets work, or is killed 1800 s after its start; see rftd logs"
    assert first.since_ns == second.since_ns == scene.now_ns - 2_000_000_000
    assert (second.slot, second.unblock) == (1, "it joins and gets work; see rftd logs")
    over = replace(scene, processes=[msgspec.structs.replace(place, pid=None)])
    states = {wait.slot: wait.state for wait in waits_of(over) if wait.slot == 0}
    assert states == {0: "restarting"}, "a process that ended opens nothing"
    for second_s in range(9, 20):
        liveness.tick(float(second_s))
    told = [wait for wait in waits_of(replace(scene, now_s=19.0)) if wait.state == "open_engine"]
    assert [wait.worker for wait in told] == [str(ours)], "of a stranger that is silent nothing is known"
    assert told[0].waiting_for.endswith("its last heartbeat came 11 s ago")
