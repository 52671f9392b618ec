"""Waits that the log records, by a clock that somebody sets: a rest of 5 s is 5 s, a read time-out of 10 s is 10 s."""

from __future__ import annotations

import pytest
from synthetic.worlds.desk import Desk, stage_of

from rftd.ops.clock import Clock, RecordedClock
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.planner import Planner

HOUR_S = 3600.0
JUMPS = [(-HOUR_S,), (HOUR_S, -HOUR_S), (-HOUR_S, 2 * HOUR_S, -2 * HOUR_S)]


class Watch:
    """A planner, and who reads the clock for it once a second."""

    def __init__(self, *, wall_only: bool = False) -> None:
        policy = PolicySpec(bounded=False, max_inflight_batches=9, max_uses=2, cooldown_s=5.0)
        self.desk = Desk(stage_of(policy=policy, max_read_timeout_s=10.0))
        self.machine = self.desk.recorder.clock
        self.clock: Clock = self.machine
        if not wall_only:
            self.clock = RecordedClock(self.machine, lambda: self.desk.state.spine.recorded_ns)
        self._planner = Planner(self.desk.state)

    def plans(self) -> list[BatchPlanned]:
        """What is planned now; each is executed at once."""
        events = self.desk.obey(self._planner.decide(self.desk.positions, self.clock.now_ns()).events)
        plans = [event for event in events if isinstance(event, BatchPlanned)]
        for _ in plans:
            self.desk.execute()
        return plans

    def wait(self, limit_s: int = 60) -> tuple[int, BatchPlanned | None]:
        """Seconds until the next plan, and that plan."""
        for waited_s in range(1, limit_s + 1):
            self.machine.advance(1.0)
            if plans := self.plans():
                return waited_s, plans[0]
        return limit_s, None


@pytest.mark.parametrize("jumps", JUMPS, ids=["back", "forward-back", "to-and-fro"])
def test_what_rests_and_what_is_waited_for_is_not_waited_for_longer(jumps: tuple[float, ...]) -> None:
    watch = Watch()
    watch.desk.supply(2)
    assert len(watch.plans()) == 1
    for jump_s in jumps:
        watch.machine.set_by(jump_s)
    waited_s, plan = watch.wait()
    assert plan is not None
    assert {item.use for item in plan.experiences} == {2}
    assert waited_s <= 6
    watch.desk.supply(1)
    for jump_s in jumps:
        watch.machine.set_by(jump_s)
    waited_s, plan = watch.wait()
    assert plan is not None
    assert plan.incomplete
    assert waited_s <= 11


def test_by_the_wall_clock_alone_they_would_be() -> None:
    watch = Watch(wall_only=True)
    watch.desk.supply(2)
    assert len(watch.plans()) == 1
    watch.machine.set_by(-HOUR_S)
    assert watch.wait() == (60, None)


def test_a_clock_that_was_ahead_while_nothing_was_planned_shortens_no_rest() -> None:
    """What is planned after it was set back rests from then on, whatever hour was read in between."""
    watch = Watch()
    watch.machine.set_by(HOUR_S)
    assert watch.plans() == []
    watch.machine.set_by(-HOUR_S)
    watch.desk.supply(2)
    assert len(watch.plans()) == 1
    waited_s, plan = watch.wait()
    assert plan is not None
    assert {item.use for item in plan.experiences} == {2}
    assert waited_s == 5
