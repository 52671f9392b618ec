"""Every wait has a name: a state is put into each, through events, and asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.daemon.run.why.answer import WaitWatch, waits_of
from rftd.daemon.run.why.pause import RELEASED_PAUSE, pause_of
from rftd.daemon.run.why.run_snapshot import Phase, Process, RunSnapshot
from rftd.daemon.run.why.wait import Wait
from rftd.ops.clock import ManualClock
from rftd.ops.errors import LogFullError
from rftd.ops.words import Level, Words
from rftd.streams.events import experiment, step, worker
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.worker import Heartbeat
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.sections import OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import PolicySpec, RolloutSpec, TasksetSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner

NOBODY = UUID(int=5)


def scene_of(desk: Desk, liveness: Liveness | None = None, **changes: Any) -> RunSnapshot:
    known, now_ns = liveness or Liveness(), desk.recorder.clock.now_ns()
    scene = RunSnapshot(state=desk.state, liveness=known, now_s=10.0, now_ns=now_ns)
    return replace(scene, **changes)


def wait_of(scene: RunSnapshot, role: str) -> Wait:
    return next(wait for wait in waits_of(scene) if wait.role == role)


def name_of(desk: Desk, role: str, **changes: Any) -> str:
    return wait_of(scene_of(desk, **changes), role).state


def plan(desk: Desk) -> None:
    desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events)


def train(desk: Desk, steps: int) -> None:
    for _ in range(steps):
        desk.supply(BATCH // REPEAT, version=max(0, desk.state.spine.version))
        plan(desk)
        desk.execute()
        desk.publish(desk.state.spine.version)


def test_the_planner() -> None:
    desk = Desk()
    wait = wait_of(scene_of(desk), "planner")
    assert (wait.state, wait.on_whom) == ("experiences", "dispatcher") and "0 of 8" in wait.waiting_for
    desk.lease(0, desk.join())
    wait = wait_of(scene_of(desk), "planner")
    assert wait.on_whom == "explorers" and "4 rollouts are under way in 1 groups" in wait.waiting_for
    desk.produce(desk.lease(0, desk.id), range(REPEAT))
    desk.supply(8)
    assert name_of(desk, "planner") == "plans"
    plan(desk)
    assert name_of(desk, "planner") == "plan_ahead"
    desk.execute()
    desk.execute()
    desk.put(step.GenerationStarted(generation=1, version=0))
    wait = wait_of(scene_of(desk), "planner")
    assert wait.state == "steps_again" and "steps 1 to 2" in wait.waiting_for and wait.on_whom == "trainer"


def test_groups_without_a_verdict_of_the_pipeline_are_counted() -> None:
    desk = Desk(stage_of(pipeline=(OperatorSpec(name="reward_filter"),)))
    desk.produce(desk.lease(0, desk.join()), range(REPEAT))
    wait = wait_of(scene_of(desk), "task")
    assert (wait.state, wait.on_whom) == ("pipeline", "dispatcher")
    assert "1 groups with 4 experiences are without a verdict, 0 of them leased" in wait.waiting_for
    desk.obey(Dispatcher(desk.state, Liveness()).decide(1.0).decisions)
    wait = wait_of(scene_of(desk), "task")
    assert wait.on_whom == "explorer 0" and "1 of them leased" in wait.waiting_for


def test_a_straggler_is_named() -> None:
    rollout = RolloutSpec(
        max_timeout_s=20.0,
        over_rollout=OverRollout(ratio=0.5, wait_after_min=9.0),
        straggler_reissue=StragglerReissue(enable=True, ratio=4.0),
    )
    stage = stage_of(rollout=rollout)
    desk = Desk(stage)
    desk.supply(1)  # 1 ms each
    lease = desk.lease(1, desk.join(3), slot=3)
    desk.produce(lease, (0, 2))
    assert not [wait for wait in waits_of(scene_of(desk)) if wait.role == "task"]
    desk.recorder.clock.advance(34.0)
    wait = wait_of(scene_of(desk), "task")
    assert (wait.state, wait.slot, wait.on_whom, wait.level) == ("straggler", 3, "explorer 3", Level.WAITS)
    assert wait.waiting_for.startswith(
        "task 1 of explore step 1 (row 1 of epoch 0): rollout 1, 3 of 4 with explorer 3, for 34 s"
    )
    assert wait.since_ns == desk.state.groups.leases[lease.lease].leased_ns
    assert "9 s after 1 of the 2 tasks" in wait.unblock and "an idle explorer gets it as well" in wait.unblock
    assert "each attempt ends after 20 s, and 3 are allowed" in wait.unblock
    desk.produce(lease, (1, 3))
    assert not [wait for wait in waits_of(scene_of(desk)) if wait.role == "task"]


def test_the_planner_before_a_trainer_and_at_the_end() -> None:
    desk = Desk(stage_of(total_steps=1))
    desk.state.spine.generation = -1
    assert name_of(desk, "planner") == "trainer_takes_up"
    desk.state.spine.generation = 0
    train(desk, 1)
    assert name_of(desk, "planner") == name_of(desk, "dispatcher") == "stage_planned"
    desk.supply(1, version=1)
    assert name_of(desk, "planner") == "closes_books"


def test_the_dispatcher() -> None:
    desk = Desk()
    assert wait_of(scene_of(desk), "dispatcher").level is Level.WAITS
    external = wait_of(scene_of(desk, roles=frozenset()), "dispatcher")
    assert (external.state, external.level, external.unblock) == ("explorers", Level.STUCK, "rftd worker explorer")
    desk.join(0, capacity=REPEAT)
    assert name_of(desk, "dispatcher") == "leases"
    dispatcher = Dispatcher(desk.state, Liveness())
    desk.obey(dispatcher.decide(1.0).decisions)
    wait = wait_of(scene_of(desk), "dispatcher")
    assert (wait.state, wait.on_whom) == ("credits", "explorers") and "8 rollouts" in wait.waiting_for
    desk.join(1)
    desk.obey(dispatcher.decide(2.0).decisions)
    wait = wait_of(scene_of(desk), "dispatcher")
    assert (wait.state, wait.on_whom) == ("policy", "trainer") and "24 in flight" in wait.waiting_for


def test_the_dispatcher_waits_for_weights() -> None:
    desk = Desk(
        stage_of(
            synchronizer=Synchronizer(sync_style="fixed", sync_interval=1, sync_offset=0),
            policy=PolicySpec(kind="in_order", max_staleness_versions=2, max_inflight_batches=3),
        )
    )
    desk.join()
    desk.supply(BATCH // REPEAT)
    plan(desk)
    wait = wait_of(scene_of(desk), "dispatcher")
    assert (wait.state, wait.on_whom) == ("weights", "trainer") and "weight version 1" in wait.waiting_for


def test_a_dataset_needs_no_rollouts() -> None:
    desk = Desk(stage_of(kind="train", taskset=None))
    assert (name_of(desk, "dispatcher"), name_of(desk, "planner")) == ("no_rollouts", "plans")


def test_the_controller() -> None:
    desk = Desk(stage_of(total_steps=1, evals=(TasksetSpec(name="held", path="x", rows=3),), eval_at_end=True))
    assert name_of(desk, "controller") == "steps"
    train(desk, 1)
    assert wait_of(scene_of(desk), "controller").state == "checkpoint"
    committed = CheckpointCommitted(
        step=1, generation=0, stage=0, stage_step=1, path="p", files=(), size_bytes=1, checksum="c1", sha256="s"
    )
    desk.put(committed)
    assert name_of(desk, "controller") == "evaluations"
    lease = desk.lease(99, NOBODY)
    assert name_of(desk, "controller") == "groups_close"
    desk.produce(lease, range(REPEAT), version=1)
    desk.obey(Dispatcher(desk.state, Liveness()).decide(0.0).decisions)
    assert name_of(desk, "controller") == "books_close"


def test_evaluations() -> None:
    held = TasksetSpec(name="held", path="x", rows=3)
    desk = Desk(stage_of(evals=(held,), eval_on_startup=True))
    assert name_of(desk, "evaluation") == "explorers"
    desk.join()
    assert name_of(desk, "evaluation") == "explorer_free"
    desk.obey(Dispatcher(desk.state, Liveness()).decide(0.0).decisions)
    wait = wait_of(scene_of(desk), "evaluation")
    assert (wait.state, wait.level) == ("scores", Level.WORKS) and "0 of 3 rows" in wait.waiting_for
    bare = Desk(stage_of(evals=(held,), eval_on_startup=True))
    nobody = wait_of(scene_of(bare, roles=frozenset()), "evaluation")
    assert (nobody.state, nobody.level, nobody.unblock) == ("explorers", Level.STUCK, "rftd worker explorer")
    bare.state.weights.retired.add((0, 0))
    assert name_of(bare, "evaluation") == "weights"


@pytest.mark.parametrize(
    ("said", "level", "on_whom"),
    [
        ("wait_tasks", Level.WAITS, "dispatcher"),
        ("wait_weights", Level.WAITS, "trainer"),
        ("wait_version", Level.WAITS, "trainer"),
        ("load_weights", Level.WORKS, ""),
        ("load_failed", Level.STUCK, "trainer"),
        ("busy", Level.WORKS, ""),
        ("drain", Level.WORKS, ""),
        ("something_newer", Level.WORKS, ""),
    ],
)
def test_a_worker_is_what_it_says(said: str, level: Level, on_whom: str) -> None:
    desk, liveness = Desk(), Liveness()
    id = desk.join(3)
    liveness.note(Heartbeat(worker=id, role="explorer", slot=3, state=said, version=7))
    liveness.tick(9.0)
    wait = wait_of(scene_of(desk, liveness), "explorer")
    assert (wait.slot, wait.worker, wait.state, wait.level, wait.on_whom) == (3, str(id), said, level, on_whom)
    assert "weight version 7" in wait.waiting_for


def test_a_worker_that_says_nothing() -> None:
    desk, liveness = Desk(), Liveness()
    id = desk.join()
    assert wait_of(scene_of(desk, liveness), "explorer").state == "first_heartbeat"
    liveness.note(Heartbeat(worker=id, role="explorer", slot=0, state="busy"))
    for second in range(1, 11):
        liveness.tick(float(second))
    wait = wait_of(scene_of(desk, liveness), "explorer")
    assert (wait.state, wait.level) == ("no_heartbeat", Level.STUCK) and "9 s ago" in wait.waiting_for
    before = dict(liveness._heard_s)
    waits_of(scene_of(desk, liveness))
    assert liveness._heard_s == before, "looking changes nothing"


def process(**changes: Any) -> Process:
    fields: dict[str, Any] = {
        "role": "trainer",
        "slot": -1,
        "pid": 7,
        "joined": False,
        "start_in_s": 0.0,
        "restarts": 0,
        "last_why": "",
    }
    return Process(**fields | changes)


def test_workers_that_are_not_there() -> None:
    desk = Desk()
    starting = wait_of(scene_of(desk, processes=[process()]), "trainer")
    assert (starting.state, starting.level) == ("starting", Level.WAITS)
    again = process(pid=None, start_in_s=4.5, restarts=3, last_why="RFTD-X: no")
    restarting = wait_of(scene_of(desk, processes=[again]), "trainer")
    assert (restarting.state, restarting.level) == ("restarting", Level.STUCK)
    assert "RFTD-X: no" in restarting.waiting_for and "in 4.5 s" in restarting.unblock
    placing = process(pid=None, last_why="its node is lost", waits=Words("placing", "1 GPU on one node; none is free"))
    waiting = wait_of(scene_of(desk, processes=[placing]), "trainer").waiting_for
    assert waiting == "1 GPU on one node; none is free; the previous one: its node is lost"
    assert wait_of(scene_of(desk, processes=[process(joined=True)]), "trainer").state == "leaving"
    absent = wait_of(scene_of(desk, roles=frozenset()), "trainer")
    assert (absent.state, absent.unblock) == ("not_joined", "rftd worker trainer")


def test_the_log() -> None:
    desk = Desk()
    full = wait_of(scene_of(desk, failure=LogFullError("no space", fix="free some")), "log")
    assert (full.state, full.level, full.unblock) == ("RFTD-LOG-004", Level.STUCK, "free some")
    assert waits_of(scene_of(desk, failure=LogFullError("no space")))[0].role == "log", "worst first"
    assert wait_of(scene_of(desk, append_s=6.0), "log").state == "append"
    assert "log" not in {wait.role for wait in waits_of(scene_of(desk, append_s=1.0))}


def test_paused_and_the_phases_of_a_run() -> None:
    desk = Desk()
    desk.join()
    assert {wait.role for wait in waits_of(scene_of(desk, phase=Phase.READING))} == {"experiment"}
    assert name_of(desk, "experiment", phase=Phase.READING) == "reading"
    assert name_of(desk, "experiment", phase=Phase.FENCING) == "fencing"
    assert name_of(desk, "experiment", phase=Phase.DRAINING) == "draining"
    desk.put(experiment.ExperimentPaused(reason="the machine is needed"))
    waits = waits_of(scene_of(desk))
    assert waits[0].state == "paused" and "the machine is needed" in waits[0].waiting_for
    assert waits[0].since_ns == desk.state.spine.status_ns and waits[0].unblock == "rftd resume n"
    assert {wait.state for wait in waits if wait.role in ("controller", "planner", "dispatcher")} == {"paused"}


def test_a_pause_drains_then_is_quiet_then_released() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.join())
    assert pause_of(scene_of(desk)) is None
    desk.put(experiment.ExperimentPaused(reason="lunch"))
    draining = pause_of(scene_of(desk))
    assert draining is not None
    assert (draining.stage, draining.rollouts) == ("draining", REPEAT)
    assert draining.words == f"draining: {REPEAT} rollouts end first"
    assert draining.words in wait_of(scene_of(desk), "experiment").waiting_for
    desk.produce(lease, range(REPEAT))
    assert (quiet := pause_of(scene_of(desk))) is not None
    assert (quiet.stage, quiet.rollouts) == ("quiet", 0)
    assert quiet.words in wait_of(scene_of(desk), "experiment").waiting_for
    desk.put(experiment.ExperimentReleased())
    assert pause_of(scene_of(desk)) == RELEASED_PAUSE


def test_between_stages_and_after_the_end() -> None:
    desk = Desk()
    desk.put(experiment.StageCompleted(stage=0, last_version=10))
    assert {name_of(desk, role) for role in ("planner", "dispatcher")} == {"stage"}
    assert name_of(desk, "controller") == "stage_starts"
    desk.put(experiment.ExperimentFailed(code="RFTD-WRK-002", reason="no luck"))
    [end] = waits_of(scene_of(desk))
    assert (end.state, end.level, end.waiting_for) == ("failed", Level.STUCK, "RFTD-WRK-002: no luck")
    assert end.unblock == "rftd explain RFTD-WRK-002"


def test_a_fork_counts_the_shared_steps_before_its_trainer_has_taken_them_up() -> None:
    desk = Desk()
    spine = desk.state.spine
    spine.generation, spine.version, spine.furthest = -1, -1, 4
    said = {wait.role: wait.waiting_for for wait in waits_of(scene_of(desk))}
    assert f"step 4 of {spine.last_version}" in said["experiment"]
    assert f"4 of {spine.last_version} steps are done" in said["controller"]


def test_halves_that_are_missing_or_elsewhere() -> None:
    desk = Desk()
    away = wait_of(scene_of(desk, roles=frozenset({"explorer"})), "trainer")
    assert (away.state, away.unblock) == (
        "not_joined",
        "rftd worker trainer, or rftd serve --roles trainer on the same log",
    )
    desk.state.spine.halves = frozenset({"train"})
    waits = {wait.role: wait for wait in waits_of(scene_of(desk))}
    assert (waits["explorer"].state, waits["explorer"].level) == ("half_missing", Level.STUCK)
    assert waits["explorer"].unblock == "submit the same file with mode: explore, or rftd worker explorer"
    assert waits["dispatcher"].state == "explorers"
    assert waits["dispatcher"].on_whom == "you"
    desk.join()
    assert "half_missing" not in {wait.state for wait in waits_of(scene_of(desk))}, "one has joined by itself"


def test_since_when() -> None:
    watch = WaitWatch(MemoryLog(), Desk().state, Liveness(), tuple, roles=frozenset(), clock=ManualClock())
    first = Wait("planner", "experiences", "0 of 8", "explorers", "groups close", Level.WAITS)
    assert [wait.since_ns for wait in watch.dated([first], 5)] == [5]
    more = msgspec.structs.replace(first, waiting_for="4 of 8")
    assert watch.dated([more], 9)[0].since_ns == 5, "the same wait, further on"
    other = msgspec.structs.replace(first, state="plan_ahead")
    assert watch.dated([other], 11)[0].since_ns == 11
    assert watch.dated([first], 12)[0].since_ns == 12
    watch.dated([], 13)
    assert watch.dated([first], 14)[0].since_ns == 14
    known = msgspec.structs.replace(first, since_ns=1)
    assert watch.dated([known], 15)[0].since_ns == 1


def test_every_state_of_a_heartbeat_is_named() -> None:
    from rftd.daemon.run.why.workers import _ACTIVITY_BY_STATE, _WAIT_BY_STATE

    assert {WorkerState.PAUSED, *_ACTIVITY_BY_STATE, *_WAIT_BY_STATE} == set(WorkerState)
    assert not _ACTIVITY_BY_STATE.keys() & _WAIT_BY_STATE.keys()


def test_a_lost_worker_has_no_line_of_its_own() -> None:
    desk = Desk()
    id = desk.join()
    desk.put(worker.WorkerLost(worker=id, role="explorer", slot=0, reason="x"), key=id)
    assert "explorer" not in {wait.role for wait in waits_of(scene_of(desk))}
