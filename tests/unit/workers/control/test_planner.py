"""What the planner plans and retires."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchAbandoned, BatchPlanned, ExperienceRetired, GroupRef
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed
from rftd.streams.spec.schedule import plan_ahead
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, TasksetSpec
from rftd.workers.control import planner as planner_module
from rftd.workers.control import retiring
from rftd.workers.control.batches import rows_of_step
from rftd.workers.control.closing import close_groups
from rftd.workers.control.planner import Planner


def decided(desk: Desk, now_ns: int | None = None) -> list[BatchPlanned | ExperienceRetired]:
    """What the planner decides now, written down."""
    events = (
        Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns() if now_ns is None else now_ns).events
    )
    return desk.obey(events)  # type: ignore[return-value]


def test_nothing_is_planned_before_a_batch_is_full() -> None:
    desk = Desk()
    desk.supply(1)
    assert decided(desk) == []
    desk.supply(1)
    (plan,) = decided(desk)
    assert isinstance(plan, BatchPlanned)
    assert plan.step == 1
    assert not plan.incomplete
    assert len(plan.experiences) == BATCH
    assert len(plan.groups) == 2
    assert [(item.group, item.member) for item in plan.experiences] == [(g, m) for g in (0, 1) for m in range(REPEAT)]


@pytest.mark.parametrize("reuse", [{}, {"max_uses": 2, "cooldown_s": 5.0}])
def test_one_decision_plans_as_far_ahead_as_asking_again_would(reuse: dict[str, Any]) -> None:
    policy = PolicySpec(max_staleness_versions=2, max_inflight_batches=3, **reuse)
    at_once, one_by_one = Desk(stage_of(policy=policy)), Desk(stage_of(policy=policy))
    for desk in (at_once, one_by_one):
        desk.supply(7)
    together = decided(at_once)
    assert [plan.step for plan in together] == [1, 2]
    now_ns = one_by_one.recorder.clock.now_ns()
    alone = [*Planner(one_by_one.state).decide(one_by_one.positions, now_ns).events[:1]]
    one_by_one.obey(alone)
    alone += decided(one_by_one)
    assert [[item.offset for item in plan.experiences] for plan in alone] == [
        [item.offset for item in plan.experiences] for plan in together
    ]
    assert decided(at_once) == []
    at_once.execute()
    assert [plan.step for plan in decided(at_once)] == [3]


def test_batch_waits_while_it_is_the_last_that_can_hold_running_rollouts() -> None:
    args = {"wait": True}
    policy = PolicySpec(kind="weight_fifo", max_staleness_versions=1, max_inflight_batches=9, args=args)
    desk = Desk(stage_of(policy=policy, max_read_timeout_s=1e6))
    slow = desk.lease(0, desk.id, held_version=0)
    desk.supply(3, version=0)
    (first,) = decided(desk)
    assert first.step == 1
    assert decided(desk) == []  # the slow one could still be in step 2, but in none after it
    desk.supply(2, version=1)
    assert decided(desk) == []
    desk.produce(slow, range(REPEAT), version=0)
    desk.obey(close_groups(desk.state, stage_over=False))
    (second,) = decided(desk)
    assert {item.experience for item in second.experiences} >= {
        derive(slow.group, "rollout", rollout, "experience") for rollout in range(REPEAT)
    }
    assert desk.state.replay_buffer.counts()["retired"] == 0


def test_no_batch_waits_for_longer_than_the_read_timeout() -> None:
    policy = PolicySpec(max_staleness_versions=0, max_inflight_batches=9, args={"wait": True})
    desk = Desk(stage_of(policy=policy, max_read_timeout_s=60.0))
    desk.lease(0, desk.id, held_version=0)
    desk.supply(2)
    assert decided(desk) == []
    (plan,) = decided(desk, desk.state.spine.stage_started_ns + 60 * 10**9)
    assert plan.step == 1
    assert len(plan.experiences) == BATCH


def test_a_plan_names_only_what_it_observed() -> None:
    desk = Desk()
    desk.supply(2)
    (plan,) = decided(desk)
    observed = {(seen.stream, seen.partition): seen.next_offset for seen in plan.observed}
    for item in plan.experiences:
        assert item.offset < observed["rftd.experiences", item.partition]
    for group in plan.groups:
        assert group.offset < observed["rftd.tasks", group.partition]


def test_staleness_is_exact_and_what_is_over_the_bound_is_retired() -> None:
    desk = Desk(stage_of(policy=PolicySpec(max_staleness_versions=1)))
    desk.supply(5)
    first = decided(desk)
    # The third batch would be two versions stale: what is left can never be trained.
    assert [item.staleness_versions for plan in first for item in plan.experiences] == [0] * BATCH + [1] * BATCH
    assert decided(desk) == []
    desk.execute()
    (retired,) = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert retired.reason == "stale"
    assert len(retired.experiences) == REPEAT
    assert not desk.state.replay_buffer.waiting
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_groups_with_too_few_members_are_retired_first() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    desk.produce(lease, [2])
    for rollout in (0, 1, 3):
        desk.fail(lease, rollout)
    desk.obey(close_groups(desk.state, stage_over=False))
    desk.supply(2)
    retired, plan = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert isinstance(plan, BatchPlanned)
    assert retired.reason == "group_incomplete"
    assert len(retired.experiences) == 1
    assert {item.experience for item in plan.experiences}.isdisjoint(retired.experiences)
    assert desk.state.replay_buffer.counts()["balance"] == 0


THRESHOLD = AlgorithmSpec(
    kind="grpo", repeat_times=REPEAT, advantage="grpo", advantage_args={"std_threshold": 0.0}, policy_loss="ppo"
)


def test_groups_that_teach_nothing_are_retired_and_others_planned() -> None:
    desk = Desk(stage_of(algorithm=THRESHOLD))
    desk.supply(2)
    desk.supply(1, spread=0.5)
    (retired,) = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert retired.reason == "uninformative"
    assert len(retired.experiences) == 2 * REPEAT
    assert decided(desk) == []
    desk.supply(1, spread=0.5)
    (plan,) = decided(desk)
    assert isinstance(plan, BatchPlanned)
    assert len(plan.experiences) == BATCH
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_uninformative_groups_are_retired_with_the_plan_and_again_if_unwritten() -> None:
    desk = Desk(stage_of(algorithm=THRESHOLD))
    planner, now_ns = Planner(desk.state), desk.recorder.clock.now_ns()
    assert planner.decide(desk.positions, now_ns).events == []
    desk.supply(1)
    desk.supply(2, spread=0.5)
    retired, plan = planner.decide(desk.positions, now_ns).events
    assert isinstance(retired, ExperienceRetired)
    assert isinstance(plan, BatchPlanned)
    assert retired.reason == "uninformative"
    assert len(retired.experiences) == REPEAT
    assert planner.decide(desk.positions, now_ns).events == [retired, plan]
    desk.obey([retired, plan])
    assert planner.decide(desk.positions, now_ns).events == []
    assert desk.state.replay_buffer.counts() == {"produced": 3 * REPEAT, "waiting": 0, "cooling": 0} | {
        "planned": 2 * REPEAT,
        "retired": REPEAT,
        "balance": 0,
    }


def test_what_is_too_much_for_one_event_is_retired_with_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retiring, "MAX_RETIRED_IDS", REPEAT + 1)
    desk = Desk(stage_of(algorithm=THRESHOLD))
    desk.supply(3)
    assert [len(each.experiences) for each in decided(desk)] == [REPEAT + 1, REPEAT + 1, REPEAT - 2]
    assert not desk.state.replay_buffer.waiting
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_a_decision_that_was_not_written_is_made_again() -> None:
    """Several batches at once, and the first of them alone: what was chosen for the others is there as before."""
    desk = Desk(stage_of(policy=PolicySpec(max_staleness_versions=8, max_inflight_batches=9)))
    desk.supply(6)
    planner, now_ns = Planner(desk.state), desk.recorder.clock.now_ns()
    plans = planner.decide(desk.positions, now_ns).events
    assert len(plans) == 2
    assert planner.decide(desk.positions, now_ns).events == plans
    desk.obey(plans[:1])
    desk.execute()
    again = planner.decide(desk.positions, now_ns).events
    assert [plan.step for plan in again if isinstance(plan, BatchPlanned)] == [2, 3]
    assert isinstance(plans[1], BatchPlanned)
    assert isinstance(again[0], BatchPlanned)
    assert again[0].experiences == plans[1].experiences


def test_the_clock_of_a_decision_never_runs_backwards() -> None:
    desk = Desk()
    desk.supply(2)
    (first,) = decided(desk, now_ns=1_900_000_000_000_000_000)
    desk.supply(2)
    (second,) = decided(desk, now_ns=5)
    assert second.decided_at_ns == first.decided_at_ns


def test_a_batch_that_does_not_fill_in_time_is_planned_as_it_is_and_only_one() -> None:
    desk = Desk(stage_of(max_read_timeout_s=100.0))
    desk.supply(1)
    began_ns = desk.state.spine.stage_started_ns
    assert decided(desk, began_ns + int(99e9)) == []
    (plan,) = decided(desk, began_ns + int(101e9))
    assert plan.incomplete
    assert len(plan.experiences) == REPEAT
    assert decided(desk, began_ns + int(102e9)) == []


def test_what_rests_is_no_reason_to_wait_longer_and_is_not_lost() -> None:
    """A batch of new experiences, one group more, and a read time-out that passes while the first ones rest."""
    policy = PolicySpec(bounded=False, max_inflight_batches=9, max_uses=2, cooldown_s=100.0)
    desk = Desk(stage_of(policy=policy, max_read_timeout_s=30.0))
    began_ns = desk.recorder.clock.now_ns()
    desk.supply(3)
    shapes = []
    for after_s in (0, 29, 31, 60, 99, 100, 101, 130, 132, 170):
        for plan in decided(desk, began_ns + round(after_s * 1e9)):
            assert isinstance(plan, BatchPlanned)
            shapes.append((after_s, len(plan.experiences), {item.use for item in plan.experiences}, plan.incomplete))
            desk.execute()
    assert shapes == [
        (0, BATCH, {1}, False),
        (31, REPEAT, {1}, True),
        (100, BATCH, {2}, False),
        (132, REPEAT, {2}, True),
    ]
    counts = desk.state.replay_buffer.counts()
    assert (counts["planned"], counts["cooling"], counts["waiting"], counts["balance"]) == (3 * REPEAT, 0, 0, 0)


class Counting(float):
    """A priority that counts how often it is compared with another."""

    compared = 0

    def __neg__(self) -> Counting:
        return Counting(super().__neg__())

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return super().__eq__(other)

    __hash__ = float.__hash__


def test_planning_from_100_000_that_wait_looks_at_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes two of 25,000 groups, puts one back and sees one more: it may sort none of the others again."""
    policy = PolicySpec(max_staleness_versions=0, bounded=False, max_uses=2, cooldown_s=1.0)
    desk = Desk(stage_of(policy=policy, total_steps=1000))
    desk.supply(1)
    (template,) = {entry.group for entry in desk.state.replay_buffer.waiting.values()}
    one = next(iter(desk.state.replay_buffer.waiting.values()))
    for number in range(REPEAT, 100_000):
        group = GroupRef(UUID(int=number // REPEAT), template.partition, 10 + number // REPEAT)
        member = msgspec.structs.replace(one.member, experience=UUID(int=10**6 + number))
        entry = msgspec.structs.replace(one, member=member, group=group, index=number % REPEAT)
        desk.state.replay_buffer.waiting[member.experience] = entry
    monkeypatch.setattr(planner_module, "make_priority", lambda _: lambda entry: Counting(-entry.uses))
    planner = Planner(desk.state)
    now_ns = desk.recorder.clock.now_ns()
    desk.obey(planner.decide(desk.positions, now_ns).events)
    desk.execute()
    asked = 0
    for turn in range(1, 6):
        Counting.compared = 0
        desk.supply(1)
        assert len(desk.obey(planner.decide(desk.positions, now_ns + turn * 10**9).events)) == 1
        desk.execute()
        asked = max(asked, Counting.compared)
    assert 0 < asked < 5000, asked


def test_nothing_is_planned_while_paused_and_an_abandoned_batch_is_planned_again() -> None:
    desk = Desk()
    desk.supply(2)
    desk.put(ExperimentPaused(reason="lunch"))
    assert decided(desk) == []
    desk.put(ExperimentResumed(reason=""))
    (plan,) = decided(desk)
    desk.put(BatchAbandoned(batch=plan.batch, step=1, code="X", reason="no"))
    (again,) = decided(desk)
    assert again.step == 1
    assert again.batch != plan.batch
    assert again.experiences == plan.experiences


def test_the_books_close_after_the_last_plan() -> None:
    desk = Desk(stage_of(total_steps=1))
    desk.supply(3)
    (plan,) = decided(desk)
    (left,) = decided(desk)
    assert isinstance(plan, BatchPlanned)
    assert left.reason == "stage_ended"
    assert len(left.experiences) == REPEAT
    assert decided(desk) == []


def test_a_stage_on_a_dataset_takes_rows_in_order() -> None:
    dataset = TasksetSpec(name="rows", path="none", rows=5, digest="d")
    stage = stage_of(kind="train", dataset=dataset, taskset=None, train_batch_size=4)
    desk = Desk(stage)
    assert [[(row.row, row.epoch) for row in plan.rows] for plan in decided(desk)] == [
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        [(4, 0), (0, 1), (1, 1), (2, 1)],
    ]
    assert [row.row for row in rows_of_step(stage, 3)] == [3, 4, 0, 1]


def test_only_a_wide_bound_is_planned_far_ahead() -> None:
    ahead = {bound: plan_ahead(PolicySpec(max_staleness_versions=bound)) for bound in (0, 2, 23, 32, 64, 256, 1000)}
    assert ahead == {0: 2, 2: 2, 23: 2, 32: 4, 64: 8, 256: 32, 1000: 32}


def test_a_mixed_batch_holds_an_experts_rows_beside_the_experiences() -> None:
    """The rows go on from batch to batch, epoch after epoch, however many experiences there are."""
    expert = TasksetSpec(name="expert", path="none", rows=5, digest="d" * 64)
    desk = Desk(stage_of(dataset=expert, expert_rows=4))
    desk.supply(2)
    plans = decided(desk)
    assert [len(plan.experiences) for plan in plans] == [BATCH - 4, BATCH - 4]
    rows = [(row.row, row.epoch) for plan in plans for row in plan.rows]
    assert rows == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (1, 1), (2, 1)]
    assert desk.state.replay_buffer.counts()["planned"] == BATCH
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_a_used_experience_comes_back_when_it_has_rested() -> None:
    replay = PolicySpec(max_staleness_versions=9, max_inflight_batches=3, max_uses=2, cooldown_s=5.0)
    desk = Desk(stage_of(policy=replay))
    desk.supply(2)
    now_ns = desk.recorder.clock.now_ns()
    (first,) = decided(desk, now_ns)
    assert first.max_uses == 2
    assert first.eligible_at_ns == now_ns + 5_000_000_000
    assert desk.state.replay_buffer.counts() == {
        "produced": BATCH, "waiting": 0, "cooling": BATCH, "planned": 0, "retired": 0, "balance": 0
    }  # fmt: skip
    assert decided(desk, first.eligible_at_ns - 1) == []
    (second,) = decided(desk, first.eligible_at_ns)
    assert [item.experience for item in second.experiences] == [item.experience for item in first.experiences]
    assert {item.use for item in second.experiences} == {2}
    assert {item.staleness_versions for item in second.experiences} == {1}
    assert desk.state.replay_buffer.counts()["planned"] == BATCH
    assert not desk.state.replay_buffer.cooling
    assert decided(desk, now_ns + 10**12) == []


def test_a_full_buffer_is_planned_from_whatever_arrives() -> None:
    replay = PolicySpec(max_staleness_versions=9, max_inflight_batches=99, capacity=2 * BATCH, evict_when_full=True)
    desk = Desk(stage_of(policy=replay))
    for step in range(1, 9):
        desk.supply(9)  # more than there is room for, in every turn
        reasons = [event.reason for event in decided(desk) if isinstance(event, ExperienceRetired)]
        assert reasons == ["capacity"]
        assert desk.state.spine.planned >= step
        desk.execute()
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_beyond_its_capacity_a_replay_buffer_retires_what_comes_last() -> None:
    replay = PolicySpec(max_staleness_versions=9, max_inflight_batches=9, capacity=BATCH, evict_when_full=True)
    desk = Desk(stage_of(policy=replay))
    desk.supply(3)
    retired, plan = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert (retired.reason, retired.uses) == ("capacity", 0)
    assert len(retired.experiences) == REPEAT
    assert isinstance(plan, BatchPlanned)
