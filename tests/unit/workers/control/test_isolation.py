"""Tasks that workers die of: found, bounded, and of no consequence for the others."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.desk import REPEAT, Desk, stage_of

from rftd.ops import limits
from rftd.ops.errors import DeadlyTaskError, DiskFullError, RolloutTimeoutError
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskExpired, TaskLeased
from rftd.streams.events.worker import WorkerLost, WorkerStopped
from rftd.streams.log.decision import slot_partition
from rftd.streams.spec.spec import PolicySpec, TasksetSpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness


class Scheduler:
    """A dispatcher at a desk; every worker is heard of."""

    def __init__(self, *, retries: int = 3, batches: int = 2) -> None:
        taskset = TasksetSpec(name="tasks", path="none", rows=50, max_retry_times=retries)
        self.desk = Desk(
            stage_of(taskset=taskset, policy=PolicySpec(max_staleness_versions=20, max_inflight_batches=batches))
        )
        self.leased: dict[UUID, TaskLeased] = {}
        self._dispatcher = Dispatcher(self.desk.state, Liveness(lost_after_s=1e9))

    def decide(self) -> list[Event]:
        """Everything that is due, until nothing is."""
        done: list[Event] = []
        while events := self.desk.obey(self._dispatcher.decide(1.0).decisions):
            done += events
            self.leased.update({event.lease: event for event in events if isinstance(event, TaskLeased)})
        return done

    def held(self, worker: UUID) -> list[UUID]:
        """Groups that the worker has a lease of."""
        return [lease.group for lease in self.desk.state.groups.leases.values() if lease.worker == worker]

    def finishes(self, worker: UUID) -> None:
        """All that it has succeeds."""
        for lease in [lease for lease in self.desk.state.groups.leases.values() if lease.worker == worker]:
            self.desk.produce(self.leased[lease.id], lease.rollouts)

    def dies(self, worker: UUID, slot: int = 0) -> None:
        self.desk.put(WorkerLost(worker=worker, role="explorer", slot=slot, reason="signal 9"), key=worker)

    def leaves(self, worker: UUID, code: str = "") -> None:
        self.desk.put(WorkerStopped(worker=worker, role="explorer", slot=0, code=code, reason=""), key=worker)


def test_a_death_is_no_attempt_of_groups_that_were_together() -> None:
    scheduler = Scheduler(retries=0)
    worker = scheduler.desk.join()
    scheduler.decide()
    groups = scheduler.held(worker)
    assert len(groups) == 4
    for _ in range(limits.LOSSES_BEFORE_ALONE):
        scheduler.dies(worker)
        worker = scheduler.desk.join()
        events = scheduler.decide()
        expired = [event for event in events if isinstance(event, TaskExpired)]
        assert len(expired) == 4
        assert all(event.worker_gone and not event.excused for event in expired)
        assert not [event for event in events if isinstance(event, GroupClosed)]
    state = scheduler.desk.state.groups
    assert {(group.attempts, group.attempts_spent, group.losses) for group in state.open.values()} >= {(2, 0, 2)}
    assert len(scheduler.held(worker)) == 1, "now each is alone"
    [lease] = state.leases.values()
    assert lease.alone


@pytest.mark.parametrize(("retries", "deaths"), [(0, 1), (1, 2), (9, limits.LOSSES_ALONE)])
def test_a_group_that_is_alone_fails_with_its_cause(retries: int, deaths: int) -> None:
    scheduler = Scheduler(retries=retries)
    worker = scheduler.desk.join()
    scheduler.decide()
    first = scheduler.held(worker)[0]
    for _ in range(limits.LOSSES_BEFORE_ALONE):
        scheduler.dies(worker)
        worker = scheduler.desk.join()
        scheduler.decide()
    for _ in range(deaths):
        while scheduler.held(worker) != [first]:
            scheduler.finishes(worker)
            scheduler.decide()
        scheduler.dies(worker)
        worker = scheduler.desk.join()
        events = scheduler.decide()
    [closed] = [event for event in events if isinstance(event, GroupClosed)]
    assert not any(isinstance(event, TaskLeased) and event.group == first for event in events)
    assert (closed.group, closed.code, closed.failed) == (first, DeadlyTaskError.code, REPEAT)
    assert f"each time that it ran nothing else ({deaths})," in closed.reason
    assert closed.reason.endswith("signal 9")


def test_who_leaves_in_good_order_costs_nothing() -> None:
    scheduler = Scheduler(retries=0)
    for code in ("", DiskFullError.code, "") * 4:
        worker = scheduler.desk.join()
        scheduler.decide()
        assert len(scheduler.held(worker)) == 4
        scheduler.leaves(worker, code)
    scheduler.decide()
    groups = scheduler.desk.state.groups.open.values()
    assert {(group.losses, group.attempts_spent) for group in groups} == {(0, 0)}


def test_an_expiry_of_an_older_release_is_an_attempt() -> None:
    scheduler = Scheduler(retries=0)
    worker = scheduler.desk.join()
    scheduler.decide()
    lease = next(iter(scheduler.desk.state.groups.leases.values()))
    old = TaskExpired(lease=lease.id, slot=0, reason="its worker left: killed")
    assert not old.worker_gone
    assert lease.worker == worker
    scheduler.desk.put(old, partition=slot_partition(0))
    [closed] = [event for event in scheduler.decide() if isinstance(event, GroupClosed)]
    assert (closed.group, closed.code) == (lease.group, RolloutTimeoutError.code)


def test_half_of_the_explorers_go_on_with_the_rest() -> None:
    scheduler = Scheduler(batches=6)
    workers = [scheduler.desk.join(slot, capacity=2 * REPEAT) for slot in range(4)]
    scheduler.decide()
    for _ in range(limits.LOSSES_BEFORE_ALONE):
        scheduler.dies(workers[0])
        workers[0] = scheduler.desk.join(0, capacity=2 * REPEAT)
        scheduler.decide()
    for worker in workers[:2]:
        scheduler.finishes(worker)
    scheduler.decide()
    alone = {lease.worker for lease in scheduler.desk.state.groups.leases.values() if lease.alone}
    assert len(alone) == 2
    assert all(len(scheduler.held(worker)) == 3 for worker in set(workers) - alone)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_only_deadly_tasks_fail_and_the_others_finish(data: st.DataObject) -> None:
    """Whatever dies when: nothing is alone with another, and every death is accounted for."""
    scheduler = Scheduler(batches=data.draw(st.integers(1, 4)))
    desk, slots = scheduler.desk, data.draw(st.integers(1, 3))
    deadly = data.draw(st.sets(st.integers(0, 7), max_size=3))
    workers = {
        slot: desk.join(slot, capacity=data.draw(st.sampled_from([REPEAT, 4 * REPEAT]))) for slot in range(slots)
    }
    closed: dict[int, GroupClosed] = {}
    leased: dict[UUID, list[TaskLeased]] = {}
    for _ in range(200):
        for event in scheduler.decide():
            if isinstance(event, GroupClosed):
                closed[event.sequence] = event
            if isinstance(event, TaskLeased):
                leased.setdefault(event.group, []).append(event)
        leases = list(desk.state.groups.leases.values())
        for lease in leases:
            assert not lease.alone or scheduler.held(lease.worker) == [lease.group]
        if not leases:
            break
        slot = data.draw(st.sampled_from(sorted({lease.slot for lease in leases})))
        mine = [lease for lease in leases if lease.slot == slot]
        lease = data.draw(st.sampled_from(mine))
        group = desk.state.groups.open[lease.group]
        if group.sequence in deadly:
            scheduler.dies(workers[slot], slot)
            workers[slot] = desk.join(slot, capacity=4 * REPEAT)
        else:
            desk.produce(leased[lease.group][-1], group.missing[: data.draw(st.integers(1, REPEAT))])
    else:
        raise AssertionError("it never ended")
    assert closed
    assert not desk.state.groups.open
    for sequence, event in closed.items():
        if sequence in deadly:
            assert event.code == DeadlyTaskError.code
            assert len(leased[event.group]) == 5
        else:
            assert (event.failed, len(event.members)) == (0, REPEAT)
