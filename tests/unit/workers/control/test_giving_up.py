"""An experience that is gone for good: its batch is abandoned if nobody ever executed it, and the books balance."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of

from rftd.daemon.run.supervisor.inbox import check_giving_up
from rftd.ops.errors import ConflictError
from rftd.streams.events.batch import BatchAbandoned, BatchPlanned, ExperienceGivenUp, ExperienceRetired
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.events.step import StepCompleted
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec
from rftd.workers.control.planner import Planner

GROUPS = BATCH // REPEAT


def decided(desk: Desk) -> list[object]:
    """What the planner decides now, written down."""
    return list(desk.obey(Planner(desk.state).decide(desk.positions, desk.recorder.clock.now_ns()).events))


def give_up(desk: Desk, experience: UUID) -> None:
    """Gives the experience up, as a command does."""
    event = ExperienceGivenUp(experience=experience, reason="the disk broke")
    check_giving_up(desk.state, event)
    desk.put(event)


def two_plans(**policy: object) -> tuple[Desk, list[BatchPlanned]]:
    """A desk with the plans of steps 1 and 2."""
    desk = Desk(stage_of(total_steps=9, **({"policy": PolicySpec(**policy)} if policy else {})))
    desk.supply(3 * GROUPS)
    plans = [event for _ in range(3) for event in decided(desk) if isinstance(event, BatchPlanned)]
    assert [plan.step for plan in plans[:2]] == [1, 2]
    return desk, plans


def test_later_batches_go_with_it_and_everything_else_returns() -> None:
    desk, plans = two_plans()
    lost = plans[0].experiences[2].experience
    give_up(desk, lost)
    desk.put(ExperimentPaused(reason="refused", cause="refused"))  # it may have paused for this
    abandoned = decided(desk)
    assert [(type(each), each.step) for each in abandoned] == [(BatchAbandoned, 2), (BatchAbandoned, 1)]  # type: ignore[attr-defined]
    reasons = [each.reason for each in abandoned if isinstance(each, BatchAbandoned)]
    assert reasons == ["the batch of step 1 before it cannot run", f"experience {lost} was given up: the disk broke"]
    [retired] = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert (retired.reason, retired.uses) == ("given_up", 0)
    assert retired.experiences == (lost,)
    assert decided(desk) == []
    assert desk.state.replay_buffer.counts()["balance"] == 0
    assert len(desk.state.replay_buffer.waiting) == 3 * BATCH - 1
    assert not desk.state.replay_buffer.given_up


def test_what_was_executed_stays_whoever_is_first_on_the_spine() -> None:
    desk, plans = two_plans()
    first, second = plans
    desk.execute()
    with pytest.raises(ConflictError, match="it was trained"):
        give_up(desk, first.experiences[0].experience)
    spine = desk.state.spine
    desk.put(BatchAbandoned(batch=first.batch, step=1, code="X", reason="too late"))
    assert spine.furthest == 1
    assert first.batch not in spine.batches.abandoned
    assert spine.planned == 2
    assert desk.state.replay_buffer.books.planned == 2 * BATCH
    give_up(desk, second.experiences[0].experience)
    assert [each.step for each in decided(desk) if isinstance(each, BatchAbandoned)] == [2]
    desk.put(
        StepCompleted(
            batch=second.batch, step=2, stage=0, generation=0, checksum="c", items=BATCH, tokens=1, duration_s=0.1
        )
    )
    assert (spine.version, spine.furthest) == (1, 1), "its trainer was too late"
    decided(desk)
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_one_that_waits_is_retired_alone_and_one_that_rests_with_its_uses() -> None:
    desk, plans = two_plans(bounded=False, max_inflight_batches=9, max_uses=3, cooldown_s=100.0)
    waits = next(iter(desk.state.replay_buffer.waiting))
    give_up(desk, waits)
    [retired] = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert retired.experiences == (waits,)
    desk.execute()
    rests = plans[0].experiences[0].experience
    give_up(desk, rests)
    [retired] = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert (retired.experiences, retired.uses) == ((rests,), 1)
    assert desk.state.replay_buffer.counts()["balance"] == 0


def test_where_a_group_is_read_whole_it_goes_as_one() -> None:
    algorithm = AlgorithmSpec(kind="grpo", repeat_times=REPEAT, advantage="gigpo")
    desk = Desk(stage_of(total_steps=9, algorithm=algorithm))
    desk.supply(GROUPS)
    [plan] = decided(desk)
    assert isinstance(plan, BatchPlanned)
    give_up(desk, plan.experiences[0].experience)
    assert [type(each) for each in decided(desk)] == [BatchAbandoned]
    [retired] = decided(desk)
    assert isinstance(retired, ExperienceRetired)
    assert len(retired.experiences) == REPEAT
    assert desk.state.replay_buffer.counts()["balance"] == 0
    assert not desk.state.replay_buffer.given_up
