"""Leases one by one: how long an attempt may take, who has room, which place of the dataset, which weights."""

from __future__ import annotations

from itertools import islice
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.ops.ids import derive
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsActivated, WeightsRetired
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.group import Group
from rftd.streams.log.group_id import group_id
from rftd.streams.spec.sections import DynamicTimeout
from rftd.streams.spec.spec import RolloutSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import locate, located, task_place, turn_of
from rftd.workers.control.closing import attempts_of, close_groups
from rftd.workers.control.holds import AllGivenOut, NoCredits, PolicyFull
from rftd.workers.control.leasing import (
    LEASE_GRACE_S,
    Credits,
    attempt_timeout_s,
    held_version,
    lease_groups,
    next_lease,
    parts_of,
    sequences_to_lease,
)
from rftd.workers.control.planner import Planner

MAX_S = 100.0


def timed(*, enable: bool = True, warmup: int = 1) -> StageSpec:
    rollout = RolloutSpec(
        max_timeout_s=MAX_S, dynamic_timeout=DynamicTimeout(enable=enable, ratio=2.0, warmup_min_steps=warmup)
    )
    return stage_of(rollout=rollout)


def closed_groups(desk: Desk, groups: int, duration_s: float) -> None:
    """So many more groups whose rollouts took so long."""
    for _ in range(groups):
        spine = desk.state.spine
        lease = desk.lease(desk.state.groups.next_sequence.get(spine.stage, 0), desk.id)
        desk.produce(lease, range(REPEAT), duration_s=duration_s)
        desk.obey(close_groups(desk.state, stage_over=False))


def train(desk: Desk, steps: int) -> None:
    """So many more steps, each with weights that are announced."""
    for _ in range(steps):
        desk.supply(BATCH // REPEAT, version=desk.state.spine.version)
        desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events)
        desk.publish(desk.execute())


def explorers(desk: Desk, *capacities: int) -> list[WorkerStarted]:
    for slot, capacity in enumerate(capacities):
        desk.join(slot, capacity=capacity)
    return list(desk.state.roster.explorers())


def test_an_attempt_has_the_longest_time_until_durations_of_its_stage_are_known() -> None:
    stage = timed(warmup=2)
    desk = Desk(stage, stage)
    assert attempt_timeout_s(desk.state, stage) == MAX_S
    closed_groups(desk, 2 * stage.batch_size - 1, 10.0)
    assert attempt_timeout_s(desk.state, stage) == MAX_S, "one group is missing of the two steps of warm-up"
    closed_groups(desk, 1, 10.0)
    assert attempt_timeout_s(desk.state, stage) == 20.0
    assert attempt_timeout_s(desk.state, timed(enable=False)) == MAX_S, "only the longest time counts"


def test_a_later_stage_begins_to_measure_anew() -> None:
    stage = timed(warmup=1)
    desk = Desk(stage, stage)
    closed_groups(desk, stage.batch_size, 10.0)
    assert attempt_timeout_s(desk.state, stage) == 20.0
    desk.next_stage()
    assert attempt_timeout_s(desk.state, stage) == MAX_S


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [
        (0.001, limits.DYNAMIC_TIMEOUT_LEAST_S),
        (limits.DYNAMIC_TIMEOUT_LEAST_S / 2, limits.DYNAMIC_TIMEOUT_LEAST_S),
        (limits.DYNAMIC_TIMEOUT_LEAST_S, 2 * limits.DYNAMIC_TIMEOUT_LEAST_S),
        (MAX_S / 2, MAX_S),
        (MAX_S, MAX_S),
    ],
)
def test_the_measured_time_has_a_floor_and_a_ceiling(duration_s: float, expected: float) -> None:
    stage = timed()
    desk = Desk(stage)
    closed_groups(desk, stage.batch_size, duration_s)
    assert attempt_timeout_s(desk.state, stage) == pytest.approx(expected)


def test_the_time_and_the_deadline_are_in_the_lease() -> None:
    desk = Desk()
    [worker] = explorers(desk, 64)
    leases, _ = lease_groups(desk.state, stage_of(), Credits(desk.state, [worker], REPEAT))
    for decision in leases:
        assert decision.event.timeout_s == 20.0  # type: ignore[attr-defined]
        assert decision.event.deadline_s == 20.0 + LEASE_GRACE_S  # type: ignore[attr-defined]


def test_credits_go_to_the_freest_explorer_and_of_equals_to_the_lowest_slot() -> None:
    desk = Desk()
    credits = Credits(desk.state, explorers(desk, 4, 6, 6), 2)
    assert credits.most == 8
    taken = [credits.take(2) for _ in range(5)]
    assert [worker.slot for worker in taken if worker is not None] == [1, 2, 0, 1, 2]
    assert credits.rollouts == 10
    assert credits.most == 4


def test_an_explorer_is_never_given_more_than_it_has_room_for() -> None:
    desk = Desk()
    credits = Credits(desk.state, explorers(desk, 3), 2)
    assert credits.take(6) is None
    assert credits.take(5) is not None
    assert credits.take(1) is None
    assert credits.rollouts == 5
    assert credits.no_credits_hold() == NoCredits(1, 5)
    assert Credits(desk.state, [], 2).most == 0
    assert Credits(desk.state, [], 2).take(1) is None


def test_what_is_under_way_takes_room() -> None:
    desk = Desk()
    [worker] = explorers(desk, 8)
    desk.lease(0, worker.worker)
    credits = Credits(desk.state, [worker], REPEAT)
    assert credits.most == 8 + REPEAT - REPEAT
    assert credits.rollouts == REPEAT


def test_a_second_lease_goes_to_another_explorer_on_which_it_begins_at_once() -> None:
    desk = Desk()
    slow, small, large, larger = explorers(desk, 9, 2, 4, 5)
    credits = Credits(desk.state, [slow, small, large, larger], REPEAT)
    assert credits.take_idle(6, but=slow.worker) is None, "room behind others is no room that begins at once"
    assert credits.take_idle(5, but=slow.worker) == larger
    assert credits.take_idle(4, but=slow.worker) == large, "exactly as many as it has free"
    assert credits.take_idle(2, but=slow.worker) == small
    assert credits.take_idle(1, but=slow.worker) is None
    assert credits.take_idle(9, but=small.worker) == slow
    assert credits.rollouts == 5 + 4 + 2 + 9


@settings(max_examples=40, deadline=None)
@given(
    capacities=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    asked=st.lists(st.integers(1, 9), max_size=12),
    ahead=st.integers(0, 4),
)
def test_no_explorer_is_overbooked_and_nobody_waits_while_one_has_room(
    capacities: list[int], asked: list[int], ahead: int
) -> None:
    desk = Desk()
    workers = explorers(desk, *capacities)
    credits = Credits(desk.state, workers, ahead)
    room = {worker.worker: worker.capacity + ahead for worker in workers}
    for rollouts in asked:
        freest = max(room.values())
        worker = credits.take(rollouts)
        assert (worker is None) == (freest < rollouts)
        if worker is not None:
            assert room[worker.worker] == freest
            room[worker.worker] -= rollouts
    assert min(room.values()) >= 0
    assert credits.most == max(room.values())


@settings(max_examples=40, deadline=None)
@given(rollouts=st.integers(1, 20), most=st.integers(0, 21))
def test_parts_are_the_rollouts_in_order_and_none_is_too_large(rollouts: int, most: int) -> None:
    stage = stage_of(rollout=RolloutSpec(lease_rollouts=most))
    parts = list(parts_of(stage, tuple(range(rollouts))))
    assert [each for part in parts for each in part] == list(range(rollouts))
    assert all(1 <= len(part) <= (most or rollouts) for part in parts)
    assert len(parts) == (1 if most == 0 else -(-rollouts // most))


def test_a_fork_gives_out_what_the_shared_history_left_undone_and_then_goes_on() -> None:
    desk = Desk()
    assert list(islice(sequences_to_lease(desk.state), 3)) == [0, 1, 2]
    desk.state.spine.forked = ExperimentForked(
        parent=UUID(int=9),
        at_step=2,
        checksum="c",
        stage=0,
        first_versions=(0,),
        decided_at_ns=0,
        next_sequence=7,
        redo=(3, 5),
    )
    assert list(islice(sequences_to_lease(desk.state), 5)) == [3, 5, 7, 8, 9]
    desk.lease(3, desk.id)
    assert list(islice(sequences_to_lease(desk.state), 4)) == [5, 7, 8, 9]
    desk.lease(5, desk.id)
    assert list(islice(sequences_to_lease(desk.state), 3)) == [7, 8, 9]
    desk.lease(7, desk.id)
    assert list(islice(sequences_to_lease(desk.state), 2)) == [8, 9]


def test_a_fork_at_the_beginning_of_its_stage_begins_at_its_first_task() -> None:
    desk = Desk()
    desk.state.spine.forked = ExperimentForked(
        parent=UUID(int=9), at_step=0, checksum="c", stage=0, first_versions=(0,), decided_at_ns=0, redo=(1,)
    )
    assert list(islice(sequences_to_lease(desk.state), 2)) == [0, 1]


def group_of(desk: Desk, *, version: int, pinned: bool = True) -> Group:
    group = Group(group_id(desk.id, 0, 0))
    group.repeat_times = REPEAT
    group.min_version = version
    group.pinned = pinned
    return group


def test_a_group_of_a_window_is_pinned_to_its_weights_for_as_long_as_they_are_kept() -> None:
    desk = Desk()
    [worker] = explorers(desk, 64)
    train(desk, 1)

    def pinned(group: Group) -> bool:
        return bool(next_lease(desk.state, stage_of(), worker, group, (0,)).event.pinned)  # type: ignore[attr-defined]

    assert pinned(group_of(desk, version=1))
    assert not pinned(group_of(desk, version=1, pinned=False))
    assert not pinned(group_of(desk, version=2)), "not announced yet, so nobody could load it"
    desk.put(WeightsRetired(version=0, generation=0, reason="newer ones are kept"))
    assert not pinned(group_of(desk, version=0)), "retired: newer ones do"
    assert pinned(group_of(desk, version=1))


def test_the_same_lease_is_made_again_after_a_crash_and_another_for_the_next_part() -> None:
    desk = Desk()
    [worker] = explorers(desk, 64)
    group = group_of(desk, version=0)
    first, again, second = (
        next_lease(desk.state, stage_of(), worker, group, (0,), number=number).event for number in (0, 0, 1)
    )
    assert first == again
    assert first.lease == derive(group.id, "lease", 1)  # type: ignore[attr-defined]
    assert second.lease == derive(group.id, "lease", 2)  # type: ignore[attr-defined]
    assert second.attempt == 2  # type: ignore[attr-defined]


def test_an_explorer_holds_what_it_loaded_last_else_what_is_newest() -> None:
    desk = Desk()
    [worker] = explorers(desk, 64)
    train(desk, 3)
    assert held_version(desk.state, worker) == 3
    loaded = WeightsActivated(
        worker=worker.worker, version=2, generation=0, manifest="m", checksum="c2", duration_s=0.1
    )
    desk.put(loaded, key=desk.id)
    assert held_version(desk.state, worker) == 2


@pytest.mark.parametrize("taskset", [None, TasksetSpec(name="t", path="p", rows=0)])
def test_a_stage_without_tasks_cannot_be_explored_and_says_so(taskset: TasksetSpec | None) -> None:
    stage = stage_of(taskset=taskset)
    desk = Desk(stage)
    [worker] = explorers(desk, 64)
    with pytest.raises(ConfigError, match="explores and has no tasks"):
        lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT))


def test_new_groups_take_the_rows_of_the_dataset_in_its_order() -> None:
    stage = stage_of(taskset=TasksetSpec(name="t", path="p", rows=5, selector="shuffle", seed=11))
    desk = Desk(stage)
    [worker] = explorers(desk, 64)
    leases, hold = lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT))
    events = [decision.event for decision in leases]
    assert [event.sequence for event in events] == list(range(6))  # type: ignore[attr-defined]
    assert [(event.row, event.epoch) for event in events] == [  # type: ignore[attr-defined]
        locate(sequence, rows=5, selector="shuffle", seed=11) for sequence in range(6)
    ]
    assert sorted(event.row for event in events[:5]) == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    assert hold == PolicyFull(0, 0, 3 * BATCH)


def test_groups_of_several_tasksets_resume_with_their_own_digests_and_attempts() -> None:
    small = TasksetSpec(name="small", path="p", rows=2, digest="S", max_retry_times=0)
    large = TasksetSpec(name="large", path="q", rows=3, digest="L", selector="shuffle", seed=11, max_retry_times=2)
    stage = stage_of(taskset=small, more_tasksets=(large,), kind="explore", collect_groups=10)
    desk = Desk(stage)
    [worker] = explorers(desk, 8)
    seen: list[TaskLeased] = []
    for _ in range(10):
        # Whoever decides keeps nothing: the position is a fold of the log, as after a restart.
        leases, _ = lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT))
        (event,) = desk.obey(leases[:1])
        assert isinstance(event, TaskLeased)
        desk.produce(event, range(REPEAT))
        desk.obey(close_groups(desk.state, stage_over=False))
        seen.append(event)
    assert [event.sequence for event in seen] == list(range(10))
    assert [(event.row, event.epoch) for event in seen] == [
        located(stage, turn_of(stage, number)) for number in range(10)
    ]
    assert [event.digest for event in seen] == ["S" if event.row < 2 else "L" for event in seen]
    assert [task_place(stage, row) for row in range(5)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [attempts_of(stage, row) for row in range(5)] == [1, 1, 3, 3, 3]


def test_the_hold_of_a_stage_that_collects_counts_what_is_given_out() -> None:
    stage = stage_of(kind="explore", collect_groups=3)
    desk = Desk(stage)
    [worker] = explorers(desk, 64)
    leases, hold = lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT))
    assert len(leases) == 3
    assert hold == AllGivenOut(3)
    desk.obey(leases)
    assert lease_groups(desk.state, stage, Credits(desk.state, [worker], REPEAT)) == ([], AllGivenOut(3))


def test_without_room_for_a_part_no_new_group_begins() -> None:
    stage = stage_of(rollout=RolloutSpec(lease_rollouts=3))
    desk = Desk(stage)
    workers = explorers(desk, 2)
    leases, hold = lease_groups(desk.state, stage, Credits(desk.state, workers, 0))
    assert leases == []
    assert hold == NoCredits(1, 0)
    leases, hold = lease_groups(desk.state, stage, Credits(desk.state, workers, 1))
    assert [decision.event.rollouts for decision in leases] == [(0, 1, 2)]  # type: ignore[attr-defined]
    assert hold == NoCredits(1, 3)
