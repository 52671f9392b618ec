"""Runs that come to nothing fail, and say why."""

from __future__ import annotations

from synthetic.log.eval_lease import eval_lease
from synthetic.worlds.desk import BATCH, REPEAT, Desk, lease_of, scores_of, stage_of

from rftd.ops import limits
from rftd.ops.errors import DataError, NonFiniteLossError, TrainError
from rftd.ops.ids import derive
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import (
    ExperimentFailed,
    ExperimentPaused,
    ExperimentResumed,
    SignalLost,
    StageCompleted,
)
from rftd.streams.events.step import EvalCompleted
from rftd.streams.events.worker import WorkerLost, WorkerStarted, WorkerStopped
from rftd.streams.folds.evaluations import eval_id
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.control.closing import close_groups
from rftd.workers.control.controller import Controller
from rftd.workers.control.evaluation import complete_evals
from rftd.workers.control.hold import REFUSED, obstacle_of_error
from rftd.workers.control.planner import Planner

BOUND = limits.INCOMPLETE_BATCHES_IN_A_ROW * BATCH // REPEAT


def close(desk: Desk, members: int) -> None:
    """One more group, with so many good rollouts."""
    lease = desk.lease(desk.state.groups.next_sequence.get(0, 0), desk.id)
    desk.produce(lease, range(members))
    for rollout in range(members, REPEAT):
        desk.fail(lease, rollout)
    desk.obey(close_groups(desk.state, stage_over=False))


def test_groups_of_one_member_each_fail_the_experiment_in_the_end() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for _ in range(BOUND - 1):
        close(desk, 1)
    [lost] = desk.obey(controller.decide().events)
    assert isinstance(lost, SignalLost)
    assert controller.decide().events == ()
    close(desk, 1)
    [failed] = controller.decide().events
    assert isinstance(failed, ExperimentFailed)
    assert failed.code == "RFTD-WRK-003"
    assert f"fewer than 2 of {REPEAT} rollouts succeeded in each of {BOUND} groups in a row" in failed.reason
    assert "fix: " in failed.reason
    assert failed.reason.endswith("the last: no")


def test_one_group_that_can_be_trained_starts_the_count_anew() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for members in [1] * (BOUND - 1) + [2] + [1] * (BOUND - 1):
        close(desk, members)
        said = desk.obey(controller.decide().events)
        assert not any(isinstance(each, ExperimentFailed) for each in said)


def test_groups_without_any_member_fail_it_sooner() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for number in range(limits.FAILED_GROUPS_IN_A_ROW):
        assert len(desk.obey(controller.decide().events)) == (number == 4), "the signal is lost"
        close(desk, 0)
    [failed] = controller.decide().events
    assert isinstance(failed, ExperimentFailed)
    assert failed.reason.startswith(f"no rollout of {limits.FAILED_GROUPS_IN_A_ROW} groups in a row succeeded")


def answer(desk: Desk, *, version: int) -> None:
    """An explorer scores all four held-out rows with one version, for the lease of that number."""
    id = eval_id(desk.id, 0, version, 0)
    scored = scores_of([1.0, 0.0, 1.0, 1.0], eval=id, lease=derive(id, "lease", 0, 1), version=version)
    desk.put(scored, key=id)


def ask(desk: Desk, *, version: int) -> None:
    """An explorer is given all four held-out rows, to be answered with one version."""
    id = eval_id(desk.id, 0, version, 0)
    leased = eval_lease(id, desk.id, version, lease=derive(id, "lease", 0, 1), stage=0)
    desk.put(leased, partition=Partition(TASKS, 0))


def test_answers_to_leases_without_effect_count_for_nothing_and_hold_no_stage_open() -> None:
    """A fence made the leases void; who had begun to answer them answers all the same."""
    held_out = TasksetSpec(name="held_out", path="none", rows=4)
    desk = Desk(stage_of(total_steps=1, evals=(held_out,), eval_interval=1))
    controller, planner = Controller(desk.state), Planner(desk.state)
    desk.supply(BATCH // REPEAT)
    desk.obey(planner.decide(desk.positions, 0).events)
    desk.execute()
    committed = CheckpointCommitted(
        step=1, generation=0, stage=0, stage_step=1, path="p", files=(), size_bytes=1, checksum="c1", sha256="s"
    )
    desk.put(committed)
    unknown = derive(desk.id, "group", 0, 99)
    desk.produce(lease_of(unknown, sequence=99), range(REPEAT))
    answer(desk, version=0)
    answer(desk, version=1)
    assert list(complete_evals(desk.state)) == []
    assert controller.decide().events == ()
    for version in (0, 1):
        ask(desk, version=version)
        answer(desk, version=version)
    completed = desk.obey(list(complete_evals(desk.state)))
    assert [(each.version, each.score) for each in completed if isinstance(each, EvalCompleted)] == [
        (0, 0.75),
        (1, 0.75),
    ]
    [over] = controller.decide().events
    assert isinstance(over, StageCompleted)


def left(desk: Desk, role: str, code: str, *, lost_first: bool = False) -> None:
    """A worker of the role joins and leaves with an error, after it was declared lost or before."""
    id = desk.recorder.ids.new()
    desk.put(WorkerStarted(worker=id, role=role, slot=-1, host="h", pid=1, process_start_s=1.0, capacity=0))
    lost = WorkerLost(worker=id, role=role, slot=-1, reason="no heartbeat")
    said = WorkerStopped(worker=id, role=role, slot=-1, code=code, reason="a file is missing; fix: restore it")
    for event in (lost, said) if lost_first else (said, lost):
        desk.put(event)


def test_what_a_trainer_says_after_it_was_declared_lost_means_nothing() -> None:
    """Its successor may have removed the files that it missed when it woke."""
    for lost_first in (True, False):
        desk = Desk()
        left(desk, "trainer", DataError.code, lost_first=lost_first)
        decided = Controller(desk.state, starts=frozenset()).decide().events
        assert [type(each) for each in decided] == ([] if lost_first else [ExperimentPaused])


def test_refusal_of_the_only_worker_pauses_until_another_worker_joins() -> None:
    desk = Desk()
    controller = Controller(desk.state, starts=frozenset(("trainer",)))
    left(desk, "trainer", DataError.code)
    assert controller.decide().events == (), "whoever started it says what that means"
    left(desk, "explorer", DataError.code)
    [paused] = controller.decide().events
    assert isinstance(paused, ExperimentPaused)
    assert paused.cause == REFUSED
    assert paused.reason.endswith("a file is missing; fix: restore it")
    desk.obey([paused])
    late_ns = desk.state.spine.status_ns + int(1e9 * limits.PAUSE_BACKOFF_S[-1])
    assert controller.decide(now_ns=late_ns).events == (), "there is still none that would do it"
    id = desk.recorder.ids.new()
    desk.put(WorkerStarted(worker=id, role="explorer", slot=0, host="h", pid=2, process_start_s=1.0, capacity=1))
    assert controller.decide(now_ns=desk.state.spine.status_ns).events == ()
    [resumed] = controller.decide(now_ns=late_ns).events
    assert isinstance(resumed, ExperimentResumed)
    desk.obey([resumed])
    left(desk, "explorer", DataError.code)
    assert controller.decide().events == (), "an error of one while another works is its own"


def test_what_cannot_be_mended_fails_it() -> None:
    for code in (NonFiniteLossError.code, TrainError.code):
        desk = Desk()
        left(desk, "trainer", code)
        [failed] = Controller(desk.state, starts=frozenset()).decide().events
        assert isinstance(failed, ExperimentFailed)
        assert failed.code == code


def test_a_pause_for_an_error_ends_later_each_time_until_a_step_is_done() -> None:
    desk = Desk(stage_of(total_steps=9))
    controller, planner = Controller(desk.state), Planner(desk.state)
    trouble = obstacle_of_error("planner", ZeroDivisionError("no"))

    def waited_s() -> float:
        desk.obey(controller.decide(trouble).events)
        status_ns = desk.state.spine.status_ns
        delays = [s for s in limits.PAUSE_BACKOFF_S if controller.decide(now_ns=status_ns + int(s * 1e9)).events]
        desk.obey(controller.decide(now_ns=status_ns + int(delays[0] * 1e9)).events)
        return delays[0]

    assert [waited_s() for _ in range(7)] == [*limits.PAUSE_BACKOFF_S, *limits.PAUSE_BACKOFF_S[-1:] * 2]
    desk.supply(BATCH // REPEAT)
    desk.obey(planner.decide(desk.positions, 0).events)
    desk.execute()
    assert waited_s() == limits.PAUSE_BACKOFF_S[0]
