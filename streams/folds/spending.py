"""`Spending`: an experiment's use of its budgets, and when a person last read about it; a fold of the spine."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.events.experiment import (
    ExperimentPaused,
    ExperimentPrioritized,
    ExperimentResumed,
    ExperimentSeen,
    ExperimentStarted,
    ExperimentSubmitted,
    Fence,
)
from rftd.streams.events.registry import Event
from rftd.streams.events.step import GenerationStarted, StepCompleted

BUDGET: Final = "budget"
"""Cause of the pause after a budget is spent."""
UNSEEN: Final = "unseen"
"""Cause of the pause after `limits.unseen_days` without a reader."""
_LOOKS: Final = (ExperimentSubmitted, ExperimentPrioritized, ExperimentStarted, ExperimentSeen)
"""Types of events at which the time without a look by a person begins anew."""


class Spending(msgspec.Struct):
    """Running time and tokens spent by an experiment, and when a person last read about it."""

    ran_ns: int = 0
    """Nanoseconds of running up to `last_ns`."""
    running: bool = False
    """True while the experiment is running."""
    last_ns: int = 0
    """Time of the newest record written by a daemon."""
    row_tokens: int = 0
    """Tokens trained in stages without rollouts."""
    granted: int = 1
    """Number of times the budgets apply: 1, and one more for each resume after they were spent."""
    cause: str = ""
    """`BUDGET` or `UNSEEN` during a pause with that cause; empty otherwise."""
    seen_ns: int = 0
    """Time of the last reader or command of a person."""

    def pass_time(self, event: Event, time_ns: int) -> None:
        """Adds the time since the previous record to `ran_ns`, if the experiment was running."""
        # By the clocks of daemons alone: a trainer's clock spends no budget.
        if isinstance(event, StepCompleted | GenerationStarted):
            return
        time_ns = max(time_ns, self.last_ns)
        # A daemon adopting the experiment writes a fence first: until then it was not driven.
        taken_up = isinstance(event, Fence) and event.role == "controller"
        if self.running and not taken_up:
            self.ran_ns += time_ns - self.last_ns
        self.last_ns = time_ns

    def lived(self, event: Event) -> None:
        """Folds a life event: a reader, a command, a pause or a resume."""
        looks = isinstance(event, _LOOKS)
        if isinstance(event, ExperimentPaused):
            self.cause = event.cause if event.cause in (BUDGET, UNSEEN) else self.cause
            looks = not event.cause
        elif isinstance(event, ExperimentResumed):
            # Only a person ends these two pauses; the controller ends several of the others by itself.
            looks = bool(self.cause or event.by)
            self.granted += self.cause == BUDGET
            self.cause = ""
        if looks:
            self.seen_ns = self.last_ns

    def ran_until_ns(self, now_ns: int) -> int:
        """Returns the nanoseconds of running up to the time `now_ns`."""
        return self.ran_ns + (max(0, now_ns - self.last_ns) if self.running else 0)
