"""An experiment pauses once a budget is spent, or nobody has looked for too long; a resume grants as much once more."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import BATCH, Desk, stage_of

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed, ExperimentSeen, ExperimentStarted
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spending import BUDGET, UNSEEN
from rftd.streams.folds.spine import Status
from rftd.streams.spec.sections import Budgets
from rftd.streams.spec.spec import RolloutSpec, StageSpec, TasksetSpec, TrainerSpec
from rftd.workers.control.budgets import budget_uses, reader_record_is_due, spent_of, unseen_use
from rftd.workers.control.controller import Controller

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Watch:
    """An experiment with budgets, and the controller that decides on it now."""

    def __init__(self, limits: Budgets, stage: StageSpec | None = None) -> None:
        self.desk = Desk(stage or stage_of())
        spine = self.desk.state.spine
        assert spine.spec is not None
        spine.spec = msgspec.structs.replace(spine.spec, limits=limits)
        self.clock = self.desk.recorder.clock

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def decide(self) -> list[Event]:
        """What the controller decides now, written and folded."""
        return self.desk.obey(Controller(self.desk.state).decide(now_ns=self.now_ns).events)

    def reason(self) -> str:
        """The reason of the pause that is decided now; empty if none is."""
        decided = self.decide()
        if not decided:
            return ""
        [paused] = decided
        assert isinstance(paused, ExperimentPaused)
        assert self.desk.state.spine.status is Status.PAUSED
        return f"{paused.cause}: {paused.reason}"

    def spent(self, field: str) -> float:
        spent = spent_of(self.desk.state)
        assert spent is not None
        uses = budget_uses(spent, self.now_ns)
        return next(budget.spent for budget in uses if budget.field == field)


def test_hours_are_those_that_it_runs() -> None:
    watch = Watch(Budgets(hours=2.0))
    watch.clock.advance(HOUR_S)
    assert watch.reason() == ""
    watch.desk.put(ExperimentPaused(reason="lunch"))
    watch.clock.advance(10 * HOUR_S)
    assert watch.spent("hours") == pytest.approx(1.0, abs=0.01)
    watch.desk.put(ExperimentResumed(by="me"))
    watch.clock.advance(0.9 * HOUR_S)
    assert watch.reason() == ""
    watch.clock.advance(0.2 * HOUR_S)
    assert watch.reason() == (
        f"{BUDGET}: limits.hours: 2.1 of 2 hours spent; fix: grant the same amount again: rftd resume; or end it: rftd "
        "cancel"
    )
    watch.clock.advance(HOUR_S)
    assert watch.decide() == [], "only a person ends this pause"


def test_when_it_will_pause() -> None:
    watch = Watch(Budgets(hours=2.0, accelerator_hours=3.0, tokens=5, unseen_days=2.0))

    def pauses_h() -> list[float | None]:
        spent = spent_of(watch.desk.state)
        assert spent is not None
        uses = [*budget_uses(spent, watch.now_ns), unseen_use(spent, watch.now_ns)]
        left_ns = [None if use.pauses_ns is None else use.pauses_ns - watch.now_ns for use in uses]
        return [None if left is None else round(left / 1e9 / HOUR_S, 1) for left in left_ns]

    watch.clock.advance(HOUR_S)
    assert pauses_h() == [1.0, None, 0.5, None, 47.0]
    watch.desk.put(ExperimentSeen(by="me"))
    assert pauses_h() == [1.0, None, 0.5, None, 48.0]
    watch.desk.put(ExperimentPaused(reason="lunch"))
    assert pauses_h() == [None] * 5, "a paused run spends no time"


def test_a_resume_grants_as_much_once_more() -> None:
    watch = Watch(Budgets(hours=1.0))
    for hours in (1, 2, 3):
        watch.clock.advance(HOUR_S)
        assert f"{hours} of {hours} hours spent" in watch.reason()
        watch.desk.put(ExperimentPaused(reason="a person says so, too"))
        watch.desk.put(ExperimentResumed(by="me"))
        assert watch.reason() == ""
    resumed = ExperimentResumed(by="me")
    watch.desk.put(resumed)
    assert watch.desk.state.spine.spending.granted == 4, "a resume of what is not paused grants nothing"


def test_the_time_until_a_daemon_takes_it_up_again_is_nobodys() -> None:
    watch = Watch(Budgets(hours=2.0))
    watch.clock.advance(HOUR_S)
    watch.desk.put(ExperimentSeen(by="me"))
    watch.clock.advance(50 * HOUR_S)
    watch.desk.fence("controller")
    assert watch.spent("hours") == pytest.approx(1.0, abs=0.01)
    watch.clock.advance(HOUR_S)
    assert "2 of 2 hours" in watch.reason()


def test_a_clock_that_goes_back_or_a_trainers_clock_spends_nothing() -> None:
    watch = Watch(Budgets(hours=2.0))
    watch.clock.advance(HOUR_S)
    watch.desk.put(ExperimentSeen(by="me"))
    watch.clock.set_by(99 * HOUR_S)
    skewed = StepCompleted(
        batch=UUID(int=1), step=1, stage=0, generation=0, checksum="c", items=1, tokens=1, duration_s=0.1
    )
    watch.desk.put(skewed)
    watch.clock.set_by(-99 * HOUR_S)
    assert watch.spent("hours") == pytest.approx(1.0, abs=0.01)
    watch.clock.set_by(-HOUR_S)
    watch.desk.put(ExperimentSeen(by="me"))
    assert watch.spent("hours") == pytest.approx(1.0, abs=0.01)


def test_tokens_are_those_of_closed_groups_each_once() -> None:
    watch = Watch(Budgets(tokens=3 * BATCH))
    watch.desk.supply(1)
    assert watch.reason() == ""
    watch.desk.supply(1)
    assert watch.spent("tokens") == 3 * BATCH
    repeated = list(watch.desk.recorder.records)
    for record in repeated:
        watch.desk.fold(record)
    assert watch.spent("tokens") == 3 * BATCH, "a record that comes again changes nothing"
    assert watch.reason().startswith(f"{BUDGET}: limits.tokens: {3 * BATCH} of {3 * BATCH} tokens spent")


def test_tokens_of_rows_count_once_whatever_is_trained_again() -> None:
    stage = stage_of(kind="train", taskset=None, dataset=TasksetSpec(name="rows", path="none", rows=80))
    watch = Watch(Budgets(tokens=100), stage)
    planned = BatchPlanned(batch=UUID(int=1), step=1, stage=0, observed=(), decided_at_ns=0)
    watch.desk.put(planned)
    for generation in (0, 1):
        completed = StepCompleted(
            batch=planned.batch,
            step=1,
            stage=0,
            generation=generation,
            checksum="c1",
            items=8,
            tokens=60,
            duration_s=0.1,
        )
        watch.desk.put(completed)
    assert watch.spent("tokens") == 60


def test_accelerators_and_what_they_cost() -> None:
    stage = stage_of(rollout=RolloutSpec(explorers=3), trainer=TrainerSpec(devices=2))
    limits = Budgets(cost=20.0, accelerator_hour_price=2.0, million_tokens_price=0.5)
    watch = Watch(limits, stage)
    watch.clock.advance(HOUR_S)
    watch.desk.supply(2)
    assert watch.spent("accelerator_hours") == pytest.approx(2 + 3, abs=0.01)
    assert watch.spent("cost") == pytest.approx(10.0 + 3 * BATCH / 1e6 * 0.5, abs=0.01)
    assert watch.reason() == ""
    watch.clock.advance(HOUR_S)
    assert watch.reason().startswith(f"{BUDGET}: limits.cost: 20 of 20 spent")


def test_a_run_at_which_nobody_looks_pauses() -> None:
    watch = Watch(Budgets(unseen_days=2.0))
    assert not reader_record_is_due(watch.desk.state, watch.now_ns), "it was just submitted"
    watch.clock.advance(1.5 * DAY_S)
    assert watch.reason() == ""
    assert reader_record_is_due(watch.desk.state, watch.now_ns)
    watch.desk.put(ExperimentSeen(by="me"))
    assert not reader_record_is_due(watch.desk.state, watch.now_ns), "at most once an hour"
    watch.clock.advance(1.9 * DAY_S)
    assert watch.reason() == ""
    watch.clock.advance(0.2 * DAY_S)
    assert watch.reason().startswith(f"{UNSEEN}: limits.unseen_days: not viewed for 2.1 days")
    watch.clock.advance(DAY_S)
    watch.desk.put(ExperimentSeen(by="me"))
    assert watch.decide() == [], "who looks decides nothing"
    watch.desk.put(ExperimentResumed(by="me"))
    assert watch.reason() == ""


def test_what_the_controller_does_by_itself_is_no_look() -> None:
    watch = Watch(Budgets(unseen_days=1.0))
    watch.clock.advance(0.6 * DAY_S)
    watch.desk.put(ExperimentPaused(reason="full", cause="disk_full"))
    watch.desk.put(ExperimentResumed(reason="disk_full is over"))
    watch.clock.advance(0.5 * DAY_S)
    assert watch.reason().startswith(UNSEEN)


def test_the_days_in_the_queue_are_not_counted() -> None:
    watch = Watch(Budgets(unseen_days=1.0, hours=1.0))
    watch.desk.put(ExperimentPaused(reason="later"))
    watch.desk.put(ExperimentResumed(queued=True, by="me"))
    watch.clock.advance(9 * DAY_S)
    watch.desk.put(ExperimentStarted())
    assert watch.reason() == ""
    assert watch.spent("hours") == pytest.approx(0.0, abs=0.01)
