"""Groups in parts, time-outs that follow durations, explore steps without their slowest tasks, second leases."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest
from synthetic.worlds.desk import REPEAT, Desk, stage_of

from rftd.ops import limits
from rftd.ops.errors import OverRolloutError, StaleFlightError
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskExpired, TaskLeased
from rftd.streams.events.weights import WeightsActivated
from rftd.streams.events.worker import WorkerLost
from rftd.streams.spec.sections import DynamicTimeout, OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import PolicySpec, RolloutSpec, StageSpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner

E = TypeVar("E", bound=Event)
MAX_S = 20.0


class Scheduler:
    """A dispatcher at a desk, that looks every second; every worker is heard of."""

    def __init__(self, stage: StageSpec) -> None:
        self.desk = Desk(stage)
        self._liveness = Liveness(lost_after_s=1e9)
        self._dispatcher = Dispatcher(self.desk.state, self._liveness)
        self.now_s = 0.0

    def restart(self) -> None:
        """Another process goes on with the same log."""
        self._liveness = Liveness(lost_after_s=1e9)
        self._dispatcher = Dispatcher(self.desk.state, self._liveness)

    def now(self, kind: type[E]) -> list[E]:
        """What it decides, until nothing is due; those of one kind."""
        done: list[Event] = []
        while events := self.desk.obey(self._dispatcher.decide(self.now_s).decisions):
            done += events
        return [event for event in done if isinstance(event, kind)]

    def after(self, seconds: int, kind: type[E]) -> list[E]:
        """What it decides within so many seconds from now."""
        done: list[E] = []
        for _ in range(seconds):
            self.now_s += 1.0
            done += self.now(kind)
        return done


TWICE = DynamicTimeout(enable=True, ratio=2.0, warmup_min_steps=1)
REISSUED = StragglerReissue(enable=True, ratio=3.0)


def stage(*, groups: int = 2, inflight: int = 1, **rollout: object) -> StageSpec:
    """Explore steps of so many groups, which make one batch."""
    return stage_of(
        rollout=RolloutSpec(max_timeout_s=MAX_S, **rollout),  # type: ignore[arg-type]
        policy=PolicySpec(max_staleness_versions=9, max_inflight_batches=inflight),
        batch_size=groups,
        train_batch_size=groups * REPEAT,
    )


def test_a_group_is_leased_in_parts_to_several_explorers() -> None:
    scheduler = Scheduler(stage(groups=1, lease_rollouts=2))
    first, second = scheduler.desk.join(0, capacity=2), scheduler.desk.join(1, capacity=2)
    leases = scheduler.now(TaskLeased)
    assert [(lease.rollouts, lease.worker) for lease in leases] == [((0, 1), first), ((2, 3), second)]
    assert len({lease.lease for lease in leases}) == 2
    assert len({lease.group for lease in leases}) == 1
    scheduler.desk.produce(leases[0], (0, 1))
    assert scheduler.now(GroupClosed) == []
    scheduler.desk.produce(leases[1], (2, 3))
    [closed] = scheduler.now(GroupClosed)
    assert [member.rollout for member in closed.members] == [0, 1, 2, 3]
    assert not closed.failed


def test_parts_that_find_no_room_wait_for_it() -> None:
    scheduler = Scheduler(stage(groups=2, lease_rollouts=3))
    scheduler.desk.join(0, capacity=3)  # and one group ahead
    leases = scheduler.now(TaskLeased)
    assert [(lease.sequence, lease.rollouts) for lease in leases] == [(0, (0, 1, 2)), (0, (3,)), (1, (0, 1, 2))]
    scheduler.desk.join(1)
    [late] = scheduler.now(TaskLeased)
    assert (late.group, late.rollouts, late.slot) == (leases[2].group, (3,), 1)
    group = scheduler.desk.state.groups.open[late.group]
    assert group.spent == {0: 1, 1: 1, 2: 1, 3: 1}
    assert group.attempts == 2


def test_attempts_are_counted_for_each_rollout() -> None:
    """One part answers, the other never does: it is leased as often as allowed, then the group closes."""
    scheduler = Scheduler(stage(groups=1, lease_rollouts=2))
    scheduler.desk.join()
    first, _ = scheduler.now(TaskLeased)
    scheduler.desk.produce(first, (0, 1))
    closed: list[GroupClosed] = []
    leased = 1
    while not closed and scheduler.now_s < 1000:
        scheduler.now_s += 1.0
        events = scheduler.now(Event)
        leased += sum(isinstance(event, TaskLeased) and event.group == first.group for event in events)
        closed = [event for event in events if isinstance(event, GroupClosed)]
    assert leased == 2  # max_retry_times 1
    assert (len(closed[0].members), closed[0].failed) == (2, 2)
    assert "2 attempts" in closed[0].reason


def test_one_death_with_several_parts_of_a_group_is_one_loss() -> None:
    scheduler = Scheduler(stage(groups=1, lease_rollouts=1))
    worker = scheduler.desk.join()
    assert len(scheduler.now(TaskLeased)) == REPEAT
    scheduler.desk.put(WorkerLost(worker=worker, role="explorer", slot=0, reason="signal 9"), key=worker)
    assert len(scheduler.now(TaskExpired)) == REPEAT
    [group] = scheduler.desk.state.groups.open.values()
    assert (group.losses, group.attempts_spent) == (1, 0)


def test_a_timeout_follows_recent_durations_once_enough_steps_are_done() -> None:
    scheduler = Scheduler(stage(groups=2, inflight=3, dynamic_timeout=TWICE))
    scheduler.desk.join()
    leases = scheduler.now(TaskLeased)
    assert {lease.timeout_s for lease in leases} == {MAX_S}
    scheduler.desk.produce(leases[0], range(REPEAT), duration_s=3.0)
    scheduler.now(Event)
    scheduler.desk.produce(leases[1], range(REPEAT), duration_s=5.0)
    scheduler.now(Event)
    [closed] = [scheduler.desk.state.groups.mean_duration_s]
    assert closed == pytest.approx(4.0)
    # Another group starts when one fails.
    for rollout in range(REPEAT):
        scheduler.desk.fail(leases[2], rollout)
    [late] = scheduler.now(TaskLeased)
    assert (late.timeout_s, late.deadline_s) == (pytest.approx(8.0), pytest.approx(38.0))


@pytest.mark.parametrize(("duration_s", "timeout_s"), [(0.001, limits.DYNAMIC_TIMEOUT_LEAST_S), (15.0, MAX_S)])
def test_a_timeout_has_a_floor_and_a_ceiling(duration_s: float, timeout_s: float) -> None:
    scheduler = Scheduler(stage(groups=1, inflight=2, dynamic_timeout=TWICE))
    scheduler.desk.join()
    first, second = scheduler.now(TaskLeased)
    scheduler.desk.produce(first, range(REPEAT), duration_s=duration_s)
    scheduler.now(Event)
    for rollout in range(REPEAT):
        scheduler.desk.fail(second, rollout)
    [late] = scheduler.now(TaskLeased)
    assert late.timeout_s == pytest.approx(timeout_s)


def over(*, partial: bool = False) -> tuple[Scheduler, TaskLeased]:
    """Three of the four tasks of a step are done; the fourth has one rollout of four."""
    rule = OverRollout(ratio=0.25, wait_after_min=10.0, return_partial_tasks=partial)
    scheduler = Scheduler(stage(groups=4, over_rollout=rule))
    scheduler.desk.join()
    leases = scheduler.now(TaskLeased)
    assert [lease.sequence for lease in leases] == [0, 1, 2, 3]
    for lease in leases[:1] + leases[2:]:
        scheduler.desk.produce(lease, range(REPEAT), duration_s=1.0)
    scheduler.desk.produce(leases[1], (0, 1))
    assert len(scheduler.now(GroupClosed)) == 3
    return scheduler, leases[1]


@pytest.mark.parametrize("partial", [False, True])
def test_a_step_is_over_without_its_slowest_task(partial: bool) -> None:
    scheduler, slow = over(partial=partial)
    assert scheduler.after(9, GroupClosed) == []
    scheduler.now_s += 2
    events = scheduler.now(Event)
    assert [type(event) for event in events[:2]] == [TaskExpired, GroupClosed]
    expired, closed, *_ = events
    assert isinstance(expired, TaskExpired)
    assert expired.lease == slow.lease
    assert isinstance(closed, GroupClosed)
    assert closed.group == slow.group
    assert (closed.code, len(closed.members), closed.failed) == (
        OverRolloutError.code,
        2 if partial else 0,
        2 if partial else 4,
    )
    assert "2 of 4 rollouts were done" in closed.reason
    assert "3 of the 4 tasks of explore step 1" in closed.reason
    state = scheduler.desk.state
    books = state.replay_buffer.counts()
    assert books["balance"] == 0
    assert books["produced"] == (14 if partial else 12)
    assert state.groups.short_in_a_row(0, 1) == 0, "it is no sign that rollouts come to nothing"
    scheduler.desk.produce(slow, (2, 3))  # too late: no effect
    assert len(state.replay_buffer.waiting) == books["waiting"]
    assert slow.group not in state.groups.open


def test_after_a_restart_a_step_gets_its_full_wait_again() -> None:
    scheduler, slow = over()
    assert scheduler.after(8, GroupClosed) == []
    scheduler.restart()
    assert scheduler.after(8, GroupClosed) == []
    assert [event.group for event in scheduler.after(4, GroupClosed)] == [slow.group]


def test_a_task_that_is_given_out_late_has_the_whole_wait_for_itself() -> None:
    scheduler = Scheduler(stage(groups=4, over_rollout=OverRollout(ratio=0.5, wait_after_min=10.0)))
    scheduler.desk.join(capacity=2 * REPEAT)
    leases = scheduler.now(TaskLeased)
    assert [lease.sequence for lease in leases] == [0, 1, 2]
    for lease in leases[:2]:
        scheduler.desk.produce(lease, range(REPEAT))
    scheduler.desk.state.roster.live.clear()  # nobody is there for the last one
    assert len(scheduler.now(GroupClosed)) == 2
    assert scheduler.after(6, TaskLeased) == []
    scheduler.desk.join(1)
    [last] = scheduler.now(TaskLeased)
    assert last.sequence == 3
    assert [event.group for event in scheduler.after(6, GroupClosed)] == [leases[2].group]
    assert scheduler.after(3, GroupClosed) == []
    assert [event.group for event in scheduler.after(3, GroupClosed)] == [last.group]


def test_the_policy_gives_up_what_is_too_stale_while_it_is_under_way() -> None:
    """The worker held version 0 at both leases of group 0 and loaded version 3 before that of group 1."""
    policy = PolicySpec(max_staleness_versions=2, max_inflight_batches=9, args={"abort_inflight": True})
    scheduler = Scheduler(stage_of(policy=policy, rollout=RolloutSpec(max_timeout_s=MAX_S, lease_rollouts=2)))
    desk = scheduler.desk
    worker = desk.join(capacity=0)
    stale = scheduler.now(TaskLeased)
    assert [(lease.sequence, lease.held_version) for lease in stale] == [(0, 0), (0, 0)]
    desk.publish(3)
    desk.put(WeightsActivated(worker=worker, version=3, generation=0, manifest="m", checksum="c3", duration_s=0.1))
    desk.produce(stale[0], (0, 1))
    fresh = scheduler.now(TaskLeased)
    assert [(lease.sequence, lease.held_version) for lease in fresh] == [(1, 3)]
    desk.state.spine.planned = 2
    assert scheduler.now(GroupClosed) == []
    desk.state.spine.planned = 3
    events = scheduler.now(Event)
    assert [event.lease for event in events if isinstance(event, TaskExpired)] == [lease.lease for lease in stale]
    [closed] = [event for event in events if isinstance(event, GroupClosed)]
    assert (closed.group, closed.code, len(closed.members)) == (stale[0].group, StaleFlightError.code, 2)
    assert "began on weight version 0" in closed.reason
    assert fresh[0].group in desk.state.groups.open


def test_explorer_on_stale_weights_gets_no_lease_before_loading_newer_ones() -> None:
    policy = PolicySpec(kind="windowed", max_staleness_versions=1, max_inflight_batches=9)
    scheduler = Scheduler(stage_of(policy=policy))
    desk = scheduler.desk
    behind, fresh = desk.join(0, capacity=0), desk.join(1, capacity=0)
    desk.supply(4)
    for version in range(3):
        if version:
            desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events)
            desk.execute()
            desk.publish(version)
        for worker in (fresh, behind)[: 1 if version else 2]:
            desk.put(activated(worker, version))
    assert desk.state.spine.planned == 2
    assert {lease.worker for lease in scheduler.now(TaskLeased)} == {fresh}
    desk.put(activated(behind, 1))
    assert {lease.worker for lease in scheduler.now(TaskLeased)} == {behind}


def activated(worker: UUID, version: int) -> WeightsActivated:
    """An explorer has loaded these weights."""
    return WeightsActivated(
        worker=worker, version=version, generation=0, manifest="m", checksum=f"c{version}", duration_s=0.1
    )


def test_task_waiting_for_newer_weights_is_not_given_up_for_held_ones() -> None:
    policy = PolicySpec(max_staleness_versions=0, max_inflight_batches=9, args={"abort_inflight": True})
    sync = Synchronizer(sync_style="fixed", sync_interval=1)
    scheduler = Scheduler(stage_of(policy=policy, synchronizer=sync, batch_size=1, train_batch_size=REPEAT))
    desk = scheduler.desk
    worker = desk.join()
    desk.put(activated(worker, 0))
    [first] = scheduler.now(TaskLeased)
    desk.produce(first, range(REPEAT))
    assert len(scheduler.now(GroupClosed)) == 1
    desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events)
    desk.execute()
    desk.publish(1)
    [second] = scheduler.now(TaskLeased)
    assert (second.min_version, second.held_version) == (1, 0)
    assert scheduler.now(GroupClosed) == []


def slow_one(**rollout: object) -> tuple[Scheduler, TaskLeased, UUID]:
    """A lease of two of which one rollout is left, and an idle explorer."""
    scheduler = Scheduler(stage(groups=2, straggler_reissue=REISSUED, **rollout))
    first = scheduler.desk.join(0)
    leases = scheduler.now(TaskLeased)
    assert {lease.worker for lease in leases} == {first}
    scheduler.desk.produce(leases[0], range(REPEAT), duration_s=2.0)
    scheduler.desk.produce(leases[1], (0, 1, 3), duration_s=2.0)
    scheduler.now(Event)
    return scheduler, leases[1], scheduler.desk.join(1)


def test_a_slow_lease_is_given_to_an_idle_explorer_too() -> None:
    scheduler, slow, idle = slow_one()
    assert scheduler.after(6, TaskLeased) == []
    [second] = scheduler.after(2, TaskLeased)
    assert (second.worker, second.rollouts, second.group, second.reissue) == (idle, (2,), slow.group, True)
    assert scheduler.after(5, TaskLeased) == [], "once"
    [group] = scheduler.desk.state.groups.open.values()
    assert group.spent[2] == 1, "no attempt"
    scheduler.desk.produce(second, (2,))
    events = scheduler.now(Event)
    assert {event.lease for event in events if isinstance(event, TaskExpired)} == {slow.lease, second.lease}
    [closed] = [event for event in events if isinstance(event, GroupClosed)]
    assert len(closed.members) == REPEAT
    scheduler.desk.produce(slow, (2,))  # the loser: no effect
    assert len(scheduler.desk.state.replay_buffer.waiting) == 2 * REPEAT
    assert scheduler.desk.state.replay_buffer.counts()["balance"] == 0


def test_the_second_lease_stays_when_the_first_ones_worker_dies() -> None:
    scheduler, slow, idle = slow_one()
    [second] = scheduler.after(8, TaskLeased)
    scheduler.desk.put(WorkerLost(worker=slow.worker, role="explorer", slot=0, reason="signal 9"), key=slow.worker)
    assert [event.lease for event in scheduler.now(TaskExpired)] == [slow.lease]
    assert scheduler.now(TaskLeased) == []
    scheduler.desk.put(WorkerLost(worker=idle, role="explorer", slot=1, reason="signal 9"), key=idle)
    assert [event.lease for event in scheduler.now(TaskExpired)] == [second.lease]
    scheduler.desk.join(2)
    [again] = scheduler.now(TaskLeased)
    assert again.rollouts == (2,)
    assert not again.reissue
    assert len({slow.lease, second.lease, again.lease}) == 3


def test_two_leases_of_a_group_in_one_decision_are_two() -> None:
    """A part is given out again while another part of the group is slow."""
    scheduler = Scheduler(stage(groups=2, straggler_reissue=REISSUED, lease_rollouts=2))
    desk = scheduler.desk
    first, second = desk.join(0, capacity=REPEAT), desk.join(1, capacity=REPEAT)
    leases = scheduler.now(TaskLeased)
    done, slow = leases[:2], leases[2:]
    for lease in done:
        desk.produce(lease, lease.rollouts, duration_s=1.0)
    scheduler.now(Event)
    assert {lease.worker for lease in slow} == {first, second}
    scheduler.after(1, Event)
    desk.state.roster.live.pop(first)  # there is no place for the part that expires
    desk.put(WorkerLost(worker=second, role="explorer", slot=1, reason="signal 9"), key=second)
    assert len(scheduler.now(TaskExpired)) == 1
    scheduler.after(5, Event)
    desk.join(2)
    again = scheduler.now(TaskLeased)
    assert sorted((lease.rollouts, lease.reissue) for lease in again) == [((0, 1), True), ((2, 3), False)]
    assert len({lease.lease for lease in [*slow, *again]}) == 4


def test_new_tasks_come_before_second_leases() -> None:
    scheduler = Scheduler(stage(groups=2, inflight=9, straggler_reissue=REISSUED))
    scheduler.desk.join(0, capacity=REPEAT)
    first, slow = scheduler.now(TaskLeased)
    scheduler.desk.produce(first, range(REPEAT), duration_s=1.0)
    scheduler.now(Event)
    assert scheduler.after(9, TaskLeased) == []
    scheduler.desk.join(1, capacity=REPEAT)
    assert not [lease for lease in scheduler.after(3, TaskLeased) if lease.reissue or lease.group == slow.group]
