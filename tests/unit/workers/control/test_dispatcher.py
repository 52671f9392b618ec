"""What the dispatcher leases, expires and closes."""

from __future__ import annotations

from uuid import UUID

from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.ops import limits
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskExpired, TaskLeased
from rftd.streams.events.worker import Heartbeat, WorkerLost
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness

DEADLINE_S = 50.0
"""The rollout's time-out and the grace."""


class Scheduler:
    """A dispatcher at a desk, with a clock."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.liveness = Liveness()
        self._dispatcher = Dispatcher(desk.state, self.liveness)
        self._looked_s = 0
        self._beats: list[Heartbeat] = []

    def at(self, now_s: float) -> list[Event]:
        """What it decides at this time, written down; until then it looked every second."""
        while self._looked_s + 1 < now_s:
            self._looked_s += 1
            self.liveness.tick(self._looked_s)
        return self.after_a_pause(now_s)

    def after_a_pause(self, now_s: float) -> list[Event]:
        """What it decides at this time if it did not look since the last time."""
        for heartbeat in self._beats:
            self.liveness.note(heartbeat)
        self._beats.clear()
        self._looked_s = int(now_s)
        return self.desk.obey(self._dispatcher.decide(now_s).decisions)

    def beat(self, worker: UUID, *leases: UUID, state: str = "busy") -> None:
        self._beats.append(Heartbeat(worker=worker, role="explorer", slot=0, state=state, leases=leases))


def test_groups_are_leased_as_far_as_the_policy_admits_and_the_workers_can_take() -> None:
    desk = Desk()
    scheduler = Scheduler(desk)
    assert scheduler.at(0.0) == []
    desk.join(0, capacity=REPEAT)
    first = scheduler.at(1.0)
    assert [lease.sequence for lease in first] == [0, 1]  # its capacity, and one group more
    desk.join(3, capacity=64)
    second = scheduler.at(2.0)
    assert [lease.sequence for lease in second] == [2, 3, 4, 5]  # three batches in all
    assert {lease.slot for lease in second} == {3}
    assert [lease.row for lease in first + second] == [0, 1, 2, 3, 4, 5]
    assert scheduler.at(3.0) == []


def test_silence_while_the_daemon_did_not_look_says_nothing() -> None:
    """It was stopped for an hour, and so may have been nobody else: everybody gets a full deadline again."""
    desk = Desk(stage_of(policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    worker = desk.join()
    scheduler.at(0.0)
    scheduler.beat(worker)
    scheduler.at(1.0)
    assert not [event for event in scheduler.after_a_pause(3600.0) if isinstance(event, TaskExpired)]
    assert not scheduler.liveness.silent(worker, 3600.0)
    scheduler.at(3600.0 + limits.WORKER_LOST_AFTER_S - 3)
    assert not scheduler.liveness.silent(worker, 3600.0 + limits.WORKER_LOST_AFTER_S - 3)
    scheduler.at(3600.0 + limits.WORKER_LOST_AFTER_S + 1)
    assert scheduler.liveness.silent(worker, 3600.0 + limits.WORKER_LOST_AFTER_S + 1)


def test_a_group_closes_once_every_rollout_is_terminal() -> None:
    desk = Desk()
    scheduler = Scheduler(desk)
    lease = desk.lease(0, desk.join())
    desk.produce(lease, [0, 2, 3])
    assert not [event for event in scheduler.at(0.0) if isinstance(event, GroupClosed)]
    desk.fail(lease, 1)
    (closed,) = (event for event in scheduler.at(0.1) if isinstance(event, GroupClosed))
    assert [member.rollout for member in closed.members] == [0, 2, 3]
    assert closed.failed == 1
    assert closed.code == "RFTD-WRK-003"
    assert len(desk.state.replay_buffer.waiting) == 3
    desk.produce(lease, [1])  # too late: no effect
    assert len(desk.state.replay_buffer.waiting) == 3
    assert lease.group not in desk.state.groups.open


def test_a_lease_whose_explorer_waits_for_weights_expires_and_was_no_attempt() -> None:
    desk = Desk(stage_of(policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    worker = desk.join()
    first, _ = scheduler.at(0.0)
    for now_s in range(10, int(DEADLINE_S), 10):
        scheduler.beat(worker, state="load_failed")
        assert not [event for event in scheduler.at(now_s) if isinstance(event, TaskExpired)]
    scheduler.beat(worker, state="load_failed")
    decided = scheduler.at(DEADLINE_S + 15)
    expired = {event.lease: event for event in decided if isinstance(event, TaskExpired)}
    assert expired[first.lease].excused
    assert "waits for weights" in expired[first.lease].reason
    assert desk.state.groups.open[first.group].attempts_spent <= 1
    again = [event for event in (*decided, *scheduler.at(DEADLINE_S + 16)) if isinstance(event, TaskLeased)]
    assert first.group in {event.group for event in again}
    spent = desk.state.groups.open[first.group].spent
    assert set(spent.values()) == {1}  # the attempt that is under way


def test_a_lease_without_progress_expires_and_what_is_missing_is_leased_again() -> None:
    desk = Desk(stage_of(policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    worker = desk.join()
    first, _ = scheduler.at(0.0)
    assert isinstance(first, TaskLeased)
    assert first.deadline_s == DEADLINE_S
    desk.produce(first, [1])
    scheduler.at(1.0)
    scheduler.beat(worker, first.lease)
    assert not [event for event in scheduler.at(45.0) if isinstance(event, TaskExpired)]
    scheduler.beat(worker)
    late = scheduler.at(45.0 + DEADLINE_S - 1)
    assert first.lease not in {event.lease for event in late if isinstance(event, TaskExpired)}
    scheduler.beat(worker)
    expired = [event for event in scheduler.at(45.0 + DEADLINE_S + 1) if isinstance(event, TaskExpired)]
    assert first.lease in {event.lease for event in expired}
    scheduler.beat(worker)
    again = next(event for event in scheduler.at(97.0) if isinstance(event, TaskLeased) and event.sequence == 0)
    assert again.attempt == 2
    assert again.rollouts == (0, 2, 3)
    assert again.lease != first.lease


def test_a_group_whose_attempts_are_spent_closes_with_what_it_has() -> None:
    desk = Desk(stage_of(policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    now_s, closed = 0.0, []
    while not closed and now_s < 10 * DEADLINE_S:
        scheduler.beat(next(iter(desk.state.roster.live), None) or desk.join())
        events = scheduler.at(now_s)
        for lease in (event for event in events if isinstance(event, TaskLeased) and event.attempt == 1):
            desk.produce(lease, [0])
        closed = [event for event in events if isinstance(event, GroupClosed)]
        now_s += limits.WORKER_LOST_AFTER_S / 2
    assert {len(event.members) for event in closed} == {1}
    assert {event.failed for event in closed} == {REPEAT - 1}
    assert "2 attempts" in closed[0].reason


def test_leases_of_a_worker_that_left_go_to_another() -> None:
    desk = Desk(stage_of(policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    first, second = desk.join(0), desk.join(1)
    scheduler.at(0.0)
    held = {lease.id for lease in desk.state.groups.leases.values() if lease.worker == first}
    assert held
    desk.put(WorkerLost(worker=first, role="explorer", slot=0, reason="killed"), key=first)
    expired = {event.lease for event in scheduler.at(1.0) if isinstance(event, TaskExpired)}
    assert expired == held
    scheduler.at(1.1)
    assert {lease.worker for lease in desk.state.groups.leases.values()} == {second}
    assert {lease.slot for lease in desk.state.groups.leases.values()} == {1}


def test_a_silent_worker_is_given_nothing() -> None:
    desk = Desk()
    scheduler = Scheduler(desk)
    worker = desk.join()
    scheduler.liveness.note(Heartbeat(worker=worker, role="explorer", slot=0, state="wait_tasks"))
    scheduler.liveness.tick(0.0)
    assert scheduler.at(limits.WORKER_LOST_AFTER_S + 1) == []
    scheduler.beat(worker)
    assert scheduler.at(limits.WORKER_LOST_AFTER_S + 2)


def test_a_fixed_schedule_waits_for_its_weights() -> None:
    stage = stage_of(
        synchronizer=Synchronizer(sync_style="fixed", sync_interval=1, sync_offset=0),
        policy=PolicySpec(max_staleness_versions=0),
    )
    desk = Desk(stage)
    scheduler = Scheduler(desk)
    desk.join()
    leases = scheduler.at(0.0)
    assert [(lease.min_version, lease.pinned) for lease in leases] == [(0, True)] * (BATCH // REPEAT)
    for lease in leases:
        desk.produce(lease, range(REPEAT))
    assert not [event for event in scheduler.at(0.1) if isinstance(event, TaskLeased)]


def test_groups_end_with_their_stage() -> None:
    desk = Desk(stage_of(total_steps=1, policy=PolicySpec(max_inflight_batches=1)))
    scheduler = Scheduler(desk)
    lease = desk.lease(0, desk.join())
    desk.produce(lease, [0])
    desk.state.spine.planned = 1
    assert [type(event) for event in scheduler.at(0.0)] == [TaskExpired]
    (closed,) = scheduler.at(0.1)
    assert isinstance(closed, GroupClosed)
    assert len(closed.members) == 1
    assert closed.reason == "the stage ended"
