"""What the dispatcher leases to the experience pipeline, and how groups close with its verdicts."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.worlds.desk import REPEAT, Desk, stage_of

from rftd.ops import limits
from rftd.ops.errors import PipelineError
from rftd.streams.events.experience import GroupProcessed
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, GroupLeased, MemberVerdict, TaskExpired
from rftd.streams.events.worker import WorkerLost
from rftd.streams.log.writers import source_of
from rftd.streams.spec.spec import PolicySpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner

PIPELINE = (OperatorSpec(name="pass_rate_calculator"), OperatorSpec(name="reward_filter"))


@pytest.fixture
def desk() -> Desk:
    """A stage with two operators, and one finished group of worker 0."""
    desk = Desk(stage_of(pipeline=PIPELINE, policy=PolicySpec(max_inflight_batches=1)))
    desk.produce(desk.lease(0, desk.join()), range(REPEAT), spread=1.0)
    return desk


@pytest.fixture
def dispatcher(desk: Desk) -> Dispatcher:
    return Dispatcher(desk.state, Liveness())


def decided(desk: Desk, dispatcher: Dispatcher, now_s: float, *kinds: type[Event]) -> list[Event]:
    """What it decides at this time, written down; events of these types alone."""
    events = desk.obey(dispatcher.decide(now_s).decisions)
    return [event for event in events if isinstance(event, kinds)]


def answer(
    desk: Desk, lease: GroupLeased, *, dropped: tuple[int, ...] = (), source: str = "", reason: str = ""
) -> None:
    """The verdicts on a leased group, by its explorer unless somebody else is named."""
    verdicts = tuple(
        MemberVerdict(member.reward + 10, dropped_by=1 if member.rollout in dropped else -1) for member in lease.members
    )
    event = GroupProcessed(
        group=lease.group,
        lease=lease.lease,
        stage=lease.stage,
        rollouts=tuple(member.rollout for member in lease.members),
        verdicts=() if reason else verdicts,
        reason=reason,
    )
    desk.recorder.write(event, desk.id, key=lease.group, source=source or source_of("explorer", lease.worker))
    desk.fold(desk.recorder.records[-1])


def test_a_finished_group_is_leased_once_and_closes_with_the_verdicts(desk: Desk, dispatcher: Dispatcher) -> None:
    (lease,) = decided(desk, dispatcher, 1.0, GroupLeased, GroupClosed)
    assert isinstance(lease, GroupLeased)
    assert [member.rollout for member in lease.members] == list(range(REPEAT))
    assert decided(desk, dispatcher, 2.0, GroupLeased, GroupClosed) == []
    answer(desk, lease, dropped=(2,))
    (closed,) = decided(desk, dispatcher, 3.0, GroupLeased, GroupClosed)
    assert isinstance(closed, GroupClosed)
    assert [member.reward for member in closed.members] == [1.0, 2.0, 3.0, 4.0]
    assert [member.reward for member in closed.trained_members] == [11.0, 12.0, 14.0]
    assert not desk.state.groups.processing
    (retired,) = Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events
    assert retired.reason == "filtered by reward_filter"  # type: ignore[attr-defined]
    assert retired.experiences == (closed.members[2].experience,)  # type: ignore[attr-defined]


def test_an_answer_of_anybody_else_does_not_count(desk: Desk, dispatcher: Dispatcher) -> None:
    (lease,) = decided(desk, dispatcher, 1.0, GroupLeased)
    assert isinstance(lease, GroupLeased)
    answer(desk, lease, dropped=(0, 1, 2, 3), source=source_of("explorer", UUID(int=77)))
    assert decided(desk, dispatcher, 2.0, GroupLeased, GroupClosed) == []
    answer(desk, lease)
    answer(desk, lease, dropped=(0, 1, 2, 3))  # the first counts
    (closed,) = decided(desk, dispatcher, 3.0, GroupClosed)
    assert isinstance(closed, GroupClosed)
    assert len(closed.trained_members) == REPEAT


def test_a_failed_pipeline_closes_its_group_without_members(desk: Desk, dispatcher: Dispatcher) -> None:
    (lease,) = decided(desk, dispatcher, 1.0, GroupLeased)
    assert isinstance(lease, GroupLeased)
    answer(desk, lease, reason="operator 'own' raised OSError: no")
    (closed,) = decided(desk, dispatcher, 2.0, GroupClosed)
    assert isinstance(closed, GroupClosed)
    assert (closed.members, closed.failed, closed.code) == ((), REPEAT, PipelineError.code)
    assert "operator 'own' raised OSError: no" in closed.reason


def test_a_group_whose_explorers_die_is_leased_alone_and_then_fails(desk: Desk, dispatcher: Dispatcher) -> None:
    desk.produce(desk.lease(1, desk.join(1)), range(REPEAT))
    leased: list[GroupLeased] = []
    now_s = 1.0
    for _ in range(2 * limits.PIPELINE_ATTEMPTS + 2):
        fresh = [event for event in decided(desk, dispatcher, now_s, GroupLeased) if isinstance(event, GroupLeased)]
        leased += fresh
        suspects = [lease for lease in fresh if lease.attempt > 1]
        assert len({lease.worker for lease in suspects}) == len(suspects)
        for worker in {lease.worker for lease in fresh}:
            desk.put(WorkerLost(worker=worker, role="explorer", slot=0, reason="killed"), key=worker)
        now_s += 1.0
        expired = decided(desk, dispatcher, now_s, TaskExpired)
        assert {event.lease for event in expired if isinstance(event, TaskExpired)} >= {lease.lease for lease in fresh}
        desk.join(0)
        desk.join(1)
        now_s += 1.0
    closed = [event for event in leased if event.attempt == limits.PIPELINE_ATTEMPTS]
    assert len(closed) == 2
    assert not [group for group in desk.state.groups.open.values() if group.terminal]
    assert not desk.state.groups.processing


def test_a_verdict_read_before_its_lease_counts_once_the_lease_is_read(desk: Desk, dispatcher: Dispatcher) -> None:
    (lease,) = dispatcher.decide(1.0).decisions[:1]
    assert isinstance(lease.event, GroupLeased)
    answer(desk, lease.event)
    desk.obey([lease])
    assert not desk.state.groups.processing
    (closed,) = decided(desk, dispatcher, 2.0, GroupClosed)
    assert isinstance(closed, GroupClosed)
    assert len(closed.verdicts) == REPEAT
