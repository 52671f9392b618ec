"""The end of a group: when it is over, what is still to be given out of it, and what its event says."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from synthetic.worlds.desk import REPEAT, Desk, lease_of, stage_of

from rftd.ops import limits
from rftd.ops.errors import ConfigError, DataError, DeadlyTaskError, RolloutTimeoutError
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.task import GroupClosed, TaskExpired, TaskLeased
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.group import Group
from rftd.streams.log.decision import Decision
from rftd.streams.log.group_id import group_id
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.control.closing import (
    GivenUp,
    attempts_of,
    close_groups,
    is_explored,
    leasable,
    left_to_collect,
    loose_groups,
)


def group_at(desk: Desk, sequence: int) -> Group:
    return desk.state.groups.open[group_id(desk.id, 0, sequence)]


def expire(desk: Desk, lease: TaskLeased, reason: str = "it was late", **changes: bool) -> None:
    event = TaskExpired(lease=lease.lease, slot=lease.slot, reason=reason, **changes)
    desk.put(event, partition=Partition(TASKS, lease.slot))


def closed(decisions: Sequence[Decision]) -> GroupClosed:
    [only] = [each.event for each in decisions if isinstance(each.event, GroupClosed)]
    return only


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (5, 6)])
def test_a_rollout_is_leased_as_often_as_its_taskset_says(retries: int, attempts: int) -> None:
    stage = stage_of(taskset=TasksetSpec(name="t", path="p", rows=7, max_retry_times=retries))
    assert attempts_of(stage, 0) == attempts
    desk = Desk(stage)
    for attempt in range(1, attempts + 1):
        lease = desk.lease(0, desk.id, attempt=attempt)
        group = group_at(desk, 0)
        assert leasable(stage, group) == (), "all of it is under way"
        assert list(close_groups(desk.state)) == []
        expire(desk, lease)
        assert leasable(stage, group) == (tuple(range(REPEAT)) if attempt < attempts else ())
    event = closed(list(close_groups(desk.state)))
    assert (event.code, event.failed) == (RolloutTimeoutError.code, REPEAT)
    assert event.reason == f"no worker finished it in {attempts} attempts; the last: it was late"


def test_an_expired_lease_without_a_reason_expired() -> None:
    desk = Desk()
    for attempt in (1, 2):
        expire(desk, desk.lease(0, desk.id, attempt=attempt), "")
    assert closed(list(close_groups(desk.state))).reason.endswith("the last: it expired")


def test_a_stage_without_a_taskset_has_no_attempts_to_count() -> None:
    with pytest.raises(ConfigError, match="has no taskset"):
        attempts_of(stage_of(taskset=None), 0)


def test_what_ended_and_what_is_under_way_is_not_leased_again() -> None:
    stage = stage_of()
    desk = Desk(stage)
    first = lease_of(group_id(desk.id, 0, 0), worker=desk.id, rollouts=(0, 1, 2))
    desk.put(first, partition=Partition(TASKS, 0))
    group = group_at(desk, 0)
    assert leasable(stage, group) == (3,)
    desk.produce(first, [0])
    desk.fail(first, 1)
    assert leasable(stage, group) == (3,)
    expire(desk, first)
    assert leasable(stage, group) == (2, 3)
    desk.produce(first, [2])  # it was only late
    assert leasable(stage, group) == (3,)


def test_a_group_of_which_workers_die_alone_is_given_up_with_the_reason_of_the_last() -> None:
    stage = stage_of(taskset=TasksetSpec(name="t", path="p", rows=7, max_retry_times=9))
    desk = Desk(stage)
    group = None
    for attempt in range(1, limits.LOSSES_ALONE + 1):
        assert group is None or leasable(stage, group)
        lease = lease_of(group_id(desk.id, 0, 0), worker=UUID(int=50 + attempt), attempt=attempt, alone=True)
        desk.put(lease, partition=Partition(TASKS, 0))
        group = group_at(desk, 0)
        expire(desk, lease, f"signal {attempt}", worker_gone=True)
    assert group is not None
    assert leasable(stage, group) == ()
    event = closed(list(close_groups(desk.state)))
    assert event.code == DeadlyTaskError.code
    assert f"ran nothing else ({limits.LOSSES_ALONE})" in event.reason
    assert event.reason.endswith(f"signal {limits.LOSSES_ALONE}")


def test_members_are_in_the_order_of_their_number_however_they_came() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    desk.fail(lease, 1)
    desk.produce(lease, [3, 0, 2], duration_s=0.25)
    event = closed(list(close_groups(desk.state)))
    assert [member.rollout for member in event.members] == [0, 2, 3]
    assert (event.failed, event.code, event.reason) == (1, "RFTD-WRK-003", "no")
    assert event.busy_ms == 750


def test_the_last_failure_by_number_gives_the_reason() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    for rollout, reason in ((2, "two"), (0, "zero"), (3, "three"), (1, "one")):
        failed = RolloutFailed(
            group=lease.group, rollout=rollout, stage=0, lease=lease.lease, code=f"RFTD-{rollout}", reason=reason
        )
        desk.put(failed, key=lease.group)
    event = closed(list(close_groups(desk.state)))
    assert (event.code, event.reason, event.members) == ("RFTD-3", "three", ())


def test_given_up_groups_close_with_or_without_members_and_explorers_are_told() -> None:
    for keep, members, words in ((True, 2, "2 of 4 rollouts were done"), (False, 0, "were done, none is used")):
        desk = Desk()
        lease = desk.lease(0, desk.id)
        desk.produce(lease, [0, 3])
        why = {lease.group: GivenUp("RFTD-X", "enough others are done", keep)}
        decisions = list(close_groups(desk.state, given_up=why))
        assert [type(each.event) for each in decisions] == [TaskExpired, GroupClosed]
        expired = decisions[0].event
        assert isinstance(expired, TaskExpired)
        assert (expired.lease, expired.reason) == (lease.lease, "enough others are done")
        assert decisions[0].partition == Partition(TASKS, lease.slot)
        event = closed(decisions)
        assert (len(event.members), event.failed, event.code) == (members, REPEAT - members, "RFTD-X")
        assert event.reason.startswith("enough others are done; ")
        assert event.reason.endswith(words)


def test_a_group_that_is_complete_closes_whole_even_if_it_would_be_given_up_now() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    desk.produce(lease, range(REPEAT))
    why = {lease.group: GivenUp("RFTD-X", "too late", keep_members=False)}
    event = closed(list(close_groups(desk.state, given_up=why)))
    assert (len(event.members), event.failed, event.code, event.reason) == (REPEAT, 0, "", "")


def test_the_end_of_a_stage_closes_what_nobody_works_on_and_says_so() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    assert list(close_groups(desk.state, stage_over=True)) == [], "its rollouts may still arrive"
    expire(desk, lease, STAGE_ENDED)
    assert list(close_groups(desk.state)) == [], "it could be leased again"
    event = closed(list(close_groups(desk.state, stage_over=True)))
    assert (event.code, event.reason) == (RolloutTimeoutError.code, STAGE_ENDED)


def test_a_second_lease_ends_with_its_group() -> None:
    desk = Desk()
    slow = desk.lease(0, desk.id)
    again = lease_of(slow.group, worker=desk.id, attempt=2, slot=3, reissue=True)
    desk.put(again, partition=Partition(TASKS, 3))
    desk.produce(again, range(REPEAT))
    decisions = list(close_groups(desk.state))
    expired = [each.event.lease for each in decisions if isinstance(each.event, TaskExpired)]
    assert set(expired) == {slow.lease, again.lease}
    assert closed(decisions).failed == 0
    alone = Desk()
    lease = alone.lease(0, alone.id)
    alone.produce(lease, range(REPEAT))
    assert [type(each.event) for each in close_groups(alone.state)] == [GroupClosed], "its one lease is over anyway"


def test_a_group_of_a_stage_that_there_is_not_stops_the_decider_and_names_verify() -> None:
    desk = Desk()
    for attempt in (1, 2):
        lease = lease_of(group_id(desk.id, 7, 0), stage=7, worker=desk.id, attempt=attempt)
        desk.put(lease, partition=Partition(TASKS, 0))
        expire(desk, lease)
    assert len(loose_groups(desk.state)) == 1
    with pytest.raises(DataError, match="stage 7, which does not exist") as raised:
        list(close_groups(desk.state))
    assert "rftd verify" in str(raised.value)


def test_groups_are_looked_at_in_the_order_of_the_dataset() -> None:
    desk = Desk()
    for sequence in (4, 0, 2):
        desk.produce(desk.lease(sequence, desk.id), range(REPEAT))
    assert [group.sequence for group in loose_groups(desk.state)] == [0, 2, 4]
    events = [each.event for each in close_groups(desk.state)]
    assert [event.sequence for event in events if isinstance(event, GroupClosed)] == [0, 2, 4]


def test_an_answer_that_came_twice_counts_once() -> None:
    desk = Desk()
    lease = desk.lease(0, desk.id)
    desk.produce(lease, [0, 1])
    desk.produce(lease, [1, 0])
    desk.fail(lease, 0)
    group = group_at(desk, 0)
    assert sorted(group.members) == [0, 1]
    assert group.failed == {}
    assert not group.terminal


@pytest.mark.parametrize(("given_out", "left"), [(0, 3), (2, 1), (3, 0), (4, 0)])
def test_a_stage_that_collects_counts_what_is_given_out(given_out: int, left: int) -> None:
    stage = stage_of(kind="explore", collect_groups=3)
    desk = Desk(stage)
    for sequence in range(given_out):
        desk.lease(sequence, desk.id)
    assert left_to_collect(desk.state, stage) == left
    assert not is_explored(desk.state, stage)


def test_a_stage_that_collects_is_explored_once_its_last_group_is_closed() -> None:
    stage = stage_of(kind="explore", collect_groups=2)
    desk = Desk(stage)
    desk.supply(1)
    assert not is_explored(desk.state, stage)
    lease = desk.lease(1, desk.id)
    assert not is_explored(desk.state, stage)
    desk.produce(lease, range(REPEAT))
    assert not is_explored(desk.state, stage), "its answers are there, and it is not closed"
    desk.obey(close_groups(desk.state))
    assert is_explored(desk.state, stage)
