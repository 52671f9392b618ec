"""`Spending`: what an experiment has spent of its budgets, and when somebody last looked at it; a fold of the spine."""

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
"""The cause of a pause: a budget is spent."""
UNSEEN: Final = "unseen"
"""The cause of a pause: nobody has looked for too long."""
_LOOKS: Final = (ExperimentSubmitted, ExperimentPrioritized, ExperimentStarted, ExperimentSeen)


class Spending(msgspec.Struct):
    """The fold."""

    ran_ns: int = 0
    """The time that the experiment ran, up to `last_ns`."""
    running: bool = False
    last_ns: int = 0
    """The time of the newest record that a daemon wrote."""
    row_tokens: int = 0
    """Tokens of the steps of stages that train on rows alone."""
    granted: int = 1
    """The number of times that the budgets were granted: once, and once more with each resume after they were spent."""
    cause: str = ""
    """The cause of its pause, if that is one of the two above."""
    seen_ns: int = 0
    """When somebody last looked at it, or gave a command."""

    def pass_time(self, event: Event, time_ns: int) -> None:
        """Counts the time since the record before this one, if the experiment ran until then."""
        # By the clocks of daemons alone: what a trainer's machine takes for the time spends no budget.
        if isinstance(event, StepCompleted | GenerationStarted):
            return
        time_ns = max(time_ns, self.last_ns)
        # A daemon that takes the experiment up says so first: until then nobody drove it.
        taken_up = isinstance(event, Fence) and event.role == "controller"
        if self.running and not taken_up:
            self.ran_ns += time_ns - self.last_ns
        self.last_ns = time_ns

    def lived(self, event: Event) -> None:
        """Takes in a look, a command, a pause or a resume."""
        looks = isinstance(event, _LOOKS)
        if isinstance(event, ExperimentPaused):
            self.cause = event.cause if event.cause in (BUDGET, UNSEEN) else self.cause
            looks = not event.cause
        elif isinstance(event, ExperimentResumed):
            # Those two pauses only a person ends; of the others, the controller ends some by itself.
            looks = bool(self.cause or event.by)
            self.granted += self.cause == BUDGET
            self.cause = ""
        if looks:
            self.seen_ns = self.last_ns

    def ran_until_ns(self, now_ns: int) -> int:
        """The time that the experiment has run by `now_ns`."""
        return self.ran_ns + (max(0, now_ns - self.last_ns) if self.running else 0)
