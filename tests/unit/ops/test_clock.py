"""A clock for decisions: it goes on from what is recorded, however the machine's clock is set."""

from __future__ import annotations

import pytest

from rftd.ops.clock import ManualClock, RecordedClock

HOUR_S = 3600.0


class Run:
    """Whoever records readings."""

    def __init__(self) -> None:
        self.machine = ManualClock()
        self.recorded_ns = 0
        self.clock = RecordedClock(self.machine, lambda: self.recorded_ns)

    def record(self) -> int:
        """A decision; the next turn of the run, which comes at once, sees that it is recorded."""
        self.recorded_ns = max(self.recorded_ns, self.clock.now_ns())
        self.clock.now_ns()
        return self.recorded_ns

    def since_s(self, reading_ns: int) -> float:
        return round((self.clock.now_ns() - reading_ns) / 1e9, 3)


def test_it_is_the_wall_clock_while_nothing_is_recorded_and_nobody_sets_it() -> None:
    run = Run()
    assert run.clock.now_ns() == run.machine.now_ns()
    began_ns = run.record()
    run.machine.advance(7.5)
    assert run.since_s(began_ns) == 7.5
    assert run.clock.now_ns() >= run.machine.now_ns()


@pytest.mark.parametrize("jump_s", [-HOUR_S, -24 * HOUR_S])
def test_a_clock_that_is_set_back_makes_nobody_wait_longer(jump_s: float) -> None:
    run = Run()
    began_ns = run.record()
    run.machine.advance(2.0)
    run.machine.set_by(jump_s)
    assert run.since_s(began_ns) == 2.0
    for waited_s in (3.0, 4.0, 5.0):
        run.machine.advance(1.0)
        assert run.since_s(began_ns) == waited_s
        run.record()


def test_forward_and_then_back() -> None:
    run = Run()
    run.record()
    run.machine.set_by(HOUR_S)
    later_ns = run.record()
    run.machine.advance(1.0)
    run.machine.set_by(-HOUR_S)
    assert run.since_s(later_ns) == 1.0
    run.machine.advance(4.0)
    assert run.since_s(later_ns) == 5.0


def test_what_was_recorded_ahead_and_read_late_does_not_stand_still() -> None:
    """Another daemon's clock was an hour ahead: this one goes on from there at once."""
    run = Run()
    ahead_ns = run.recorded_ns = run.machine.now_ns() + int(HOUR_S * 1e9)
    assert run.since_s(ahead_ns) == 0.0
    run.machine.advance(5.0)
    assert run.since_s(ahead_ns) == 5.0


async def slept(run: Run) -> float:
    await run.clock.sleep(3.0)
    return run.clock.monotonic_s()


@pytest.mark.anyio
async def test_waits_are_monotonic() -> None:
    run = Run()
    before_s = run.clock.monotonic_s()
    run.machine.set_by(-HOUR_S)
    assert round(await slept(run) - before_s, 3) == 3.0
