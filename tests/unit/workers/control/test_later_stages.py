"""Deciders in the second stage of an experiment: its counts, its holds and its versions begin where the first ended."""

from __future__ import annotations

import msgspec
import pytest
from synthetic.worlds.desk import BATCH, REPEAT, Desk, lease_of, stage_of

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import StageCompleted
from rftd.streams.events.step import GenerationStarted
from rftd.streams.events.task import GroupClosed, TaskExpired, TaskLeased
from rftd.streams.events.worker import WorkerLost, WorkerStopped
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.spec.spec import PolicySpec, StageSpec, TasksetSpec
from rftd.workers.control.closing import close_groups
from rftd.workers.control.dispatcher import Dispatcher, stale_groups
from rftd.workers.control.hold import NoStage, StagePlanned
from rftd.workers.control.holds import TrainsDataset
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner, oldest_flight_of, view_of
from rftd.workers.control.planner_holds import NoTrainer, PlannedAhead, StepsAgain, TooFewExperiences

FIRST_STEPS = 3


def plan(desk: Desk) -> list[BatchPlanned]:
    events = desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events)
    return [event for event in events if isinstance(event, BatchPlanned)]


def train(desk: Desk, steps: int) -> None:
    for _ in range(steps):
        desk.supply(BATCH // REPEAT, version=desk.state.spine.version)
        plan(desk)
        desk.publish(desk.execute())


@pytest.fixture
def desk() -> Desk:
    """The second stage has just begun, after three steps of the first."""
    made = Desk(stage_of(total_steps=FIRST_STEPS), stage_of(total_steps=5))
    train(made, FIRST_STEPS)
    made.next_stage()
    return made


def lease_in_second(desk: Desk, sequence: int = 0) -> TaskLeased:
    """A lease of the second stage, as the dispatcher writes it."""
    group = group_id(desk.id, 1, sequence)
    leased = lease_of(group, stage=1, worker=desk.id, sequence=sequence, min_version=desk.state.spine.version)
    desk.put(leased, partition=Partition(TASKS, 0))
    return leased


def supply_second(desk: Desk, groups: int, *, version: int) -> None:
    for _ in range(groups):
        lease = lease_in_second(desk, desk.state.groups.next_sequence.get(1, 0))
        desk.produce(lease, range(REPEAT), version=version)
    desk.obey(close_groups(desk.state, stage_over=False))


def test_a_policy_sees_the_steps_and_experiences_of_its_own_stage(desk: Desk) -> None:
    stage = desk.state.spine.stage_spec()
    view = view_of(desk.state, stage)
    assert (view.version, view.first_version, view.published_version) == (FIRST_STEPS,) * 3
    assert (view.planned_steps, view.planned_experiences, view.waiting_experiences) == (0, 0, 0)
    supply_second(desk, 3, version=FIRST_STEPS)
    assert view_of(desk.state, stage).waiting_experiences == 3 * REPEAT
    [planned] = plan(desk)
    assert planned.step == FIRST_STEPS + 1
    view = view_of(desk.state, stage)
    assert (view.planned_steps, view.planned_experiences, view.waiting_experiences) == (1, BATCH, REPEAT)
    desk.publish(desk.execute())
    view = view_of(desk.state, stage)
    assert (view.version, view.published_version, view.planned_steps) == (FIRST_STEPS + 1, FIRST_STEPS + 1, 1)


def test_its_steps_follow_those_of_the_first_and_end_with_its_own_number(desk: Desk) -> None:
    steps = []
    for _ in range(5):
        supply_second(desk, BATCH // REPEAT, version=desk.state.spine.version)
        steps += [planned.step for planned in plan(desk)]
        desk.publish(desk.execute())
    assert steps == [4, 5, 6, 7, 8]
    supply_second(desk, BATCH // REPEAT, version=8)
    decided = Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns())
    assert [event.reason for event in decided.events] == ["stage_ended"]  # type: ignore[attr-defined]
    assert decided.hold == StagePlanned()


def test_the_planner_tells_why_nothing_is_planned(desk: Desk) -> None:
    def hold() -> object:
        return Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).hold

    missing = hold()
    assert isinstance(missing, TooFewExperiences)
    assert (missing.step, missing.have, missing.need, missing.passed_over) == (FIRST_STEPS + 1, 0, BATCH, 0)
    now_ns = desk.recorder.clock.now_ns()
    assert "incomplete batch is planned in" in missing.told(desk.state, now_ns).unblock
    served = msgspec.structs.replace(missing, read_until_ns=now_ns + 10**18)
    assert served.told(desk.state, now_ns).unblock == "groups close"
    supply_second(desk, 1, version=FIRST_STEPS)
    missing = hold()
    assert isinstance(missing, TooFewExperiences)
    assert (missing.have, missing.need, missing.passed_over, missing.resting) == (REPEAT, BATCH, 0, 0)
    supply_second(desk, 9, version=FIRST_STEPS)
    assert [planned.step for planned in plan(desk)] == [4, 5]
    assert hold() == PlannedAhead(FIRST_STEPS + 1, 5)


def test_a_trainer_that_comes_back_has_its_steps_to_do_again_first(desk: Desk) -> None:
    supply_second(desk, 4, version=FIRST_STEPS)
    plan(desk)
    desk.execute()
    desk.put(GenerationStarted(generation=1, version=1))
    decided = Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns())
    assert decided.events == ()
    assert decided.hold == StepsAgain(2, FIRST_STEPS + 1)


def test_nothing_is_planned_before_there_is_a_trainer() -> None:
    desk = Desk(stage_of())
    desk.supply(2)
    desk.state.spine.generation = -1
    decided = Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns())
    assert decided.events == ()
    assert decided.hold == NoTrainer()


def test_between_two_stages_nothing_is_planned_and_nothing_given_out(desk: Desk) -> None:
    desk.join()
    desk.put(StageCompleted(stage=1, last_version=FIRST_STEPS))
    assert Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).hold == NoStage()
    dispatched = Dispatcher(desk.state, Liveness()).decide(0.0)
    assert list(dispatched.decisions) == []
    assert dispatched.hold == NoStage()


def test_leftovers_of_a_completed_stage_expire_and_close_without_a_fault(desk: Desk) -> None:
    leased = lease_in_second(desk)
    desk.put(StageCompleted(stage=1, last_version=FIRST_STEPS))
    dispatcher = Dispatcher(desk.state, Liveness())
    [expired] = desk.obey(dispatcher.decide(0.0).decisions)
    assert isinstance(expired, TaskExpired)
    assert (expired.lease, expired.reason) == (leased.lease, STAGE_ENDED)
    [closed] = desk.obey(dispatcher.decide(1.0).decisions)
    assert isinstance(closed, GroupClosed)
    assert (closed.group, closed.reason, closed.failed) == (leased.group, STAGE_ENDED, REPEAT)
    assert desk.obey(dispatcher.decide(2.0).decisions) == []


def test_a_stage_of_rows_gives_nothing_out_whoever_is_there() -> None:
    rows = TasksetSpec(name="rows", path="none", rows=7)
    desk = Desk(stage_of(kind="train", taskset=None, dataset=rows))
    dispatcher = Dispatcher(desk.state, Liveness())
    for _ in range(2):
        dispatched = dispatcher.decide(0.0)
        assert list(dispatched.decisions) == []
        assert dispatched.hold == TrainsDataset()
        desk.join()


def test_the_oldest_flight_is_the_oldest_lease_of_a_group_with_rollouts_under_way() -> None:
    desk = Desk()
    assert oldest_flight_of(desk.state) is None
    old = desk.lease(0, desk.id, held_version=1)
    new = desk.lease(1, desk.id, held_version=4)
    assert oldest_flight_of(desk.state) == 1
    desk.produce(old, range(REPEAT - 1))
    assert oldest_flight_of(desk.state) == 1
    desk.produce(old, [REPEAT - 1])
    assert oldest_flight_of(desk.state) == 4, "all of it has ended, though it is not closed yet"
    for rollout in range(REPEAT):
        desk.fail(new, rollout)
    assert oldest_flight_of(desk.state) is None


def test_a_group_is_as_old_as_the_oldest_lease_that_may_have_begun_it() -> None:
    desk = Desk()
    desk.lease(0, desk.id, held_version=5)
    desk.lease(0, desk.id, attempt=2, held_version=3)
    assert oldest_flight_of(desk.state) == 3


def aborting() -> StageSpec:
    return stage_of(policy=PolicySpec(max_staleness_versions=0, max_inflight_batches=9, args={"abort_inflight": True}))


def test_no_group_is_given_up_of_which_a_rollout_may_be_fresh_or_of_unknown_age() -> None:
    stage = aborting()
    desk = Desk(stage)
    old, mixed, unknown, fresh = range(4)
    for sequence, versions in ((old, (0,)), (mixed, (0, 2)), (unknown, (0, -1)), (fresh, (2,))):
        for attempt, version in enumerate(versions, start=1):
            desk.lease(sequence, desk.id, attempt=attempt, held_version=version)
    lease = None
    for sequence in range(10, 14):
        lease = desk.lease(sequence, desk.id, held_version=0)
        desk.produce(lease, range(REPEAT))
    desk.obey(close_groups(desk.state, stage_over=False))
    plan(desk)
    desk.publish(desk.execute())
    given_up = stale_groups(desk.state, stage)
    assert set(given_up) == {group_id(desk.id, 0, old)}
    reason = given_up[group_id(desk.id, 0, old)].reason
    assert "began on weight version 0" in reason
    assert "hard_bound" in reason


@pytest.mark.parametrize(
    ("alone", "gone", "excused", "says"),
    [
        (False, "stopped", True, "its worker left: it drained"),
        (True, "stopped", True, "its worker left: it drained"),
        (False, "lost", False, "its worker left: no sign of life"),
        (True, "lost", False, "its worker left, with nothing else to do: no sign of life"),
    ],
)
def test_a_lease_of_a_worker_that_left_says_how_and_whether_it_was_its_own_doing(
    alone: bool, gone: str, excused: bool, says: str
) -> None:
    desk = Desk()
    worker = desk.join()
    group = group_id(desk.id, 0, 0)
    desk.put(lease_of(group, worker=worker, alone=alone), partition=Partition(TASKS, 0))
    if gone == "lost":
        desk.put(WorkerLost(worker=worker, role="explorer", slot=0, reason="no sign of life"), key=worker)
    else:
        desk.put(WorkerStopped(worker=worker, role="explorer", slot=0), key=worker)
    events = desk.obey(Dispatcher(desk.state, Liveness()).decide(0.0).decisions)
    [expired] = [event for event in events if isinstance(event, TaskExpired)]
    assert expired.lease == derive(group, "lease", 1)
    assert (expired.excused, expired.worker_gone, expired.reason) == (excused, True, says)
