"""`Spending`: an experiment's use of its budgets, and the time of the last view by a person; a fold of the spine."""

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
"""The cause of a pause after a budget is spent."""
UNSEEN: Final = "unseen"
"""The cause of a pause after too long a time without a view by a person."""
_LOOKS: Final = (ExperimentSubmitted, ExperimentPrioritized, ExperimentStarted, ExperimentSeen)


class Spending(msgspec.Struct):
    """Time and tokens spent by an experiment, with the grants and the views that reset its pauses."""

    ran_ns: int = 0
    """Running time in nanoseconds, up to `last_ns`."""
    running: bool = False
    last_ns: int = 0
    """The time of the newest record written by a daemon."""
    row_tokens: int = 0
    """Tokens of the steps of stages training on rows alone."""
    granted: int = 1
    """Number of grants of the budgets: one, and one more with each resume after they were spent."""
    cause: str = ""
    """The cause of its pause, if one of the two above."""
    seen_ns: int = 0
    """Time of the last view or command by a person."""

    def pass_time(self, event: Event, time_ns: int) -> None:
        """Counts the time since the previous record, if the experiment ran until then."""
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
        """Folds a view, a command, a pause or a resume."""
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
        """Returns the running time of the experiment by `now_ns`, in nanoseconds."""
        return self.ran_ns + (max(0, now_ns - self.last_ns) if self.running else 0)
