"""Every hold of the planner: reasons against a further plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from rftd.ops.words import Level, Words
from rftd.workers.control.hold import Hold, NoStage, Paused, StagePlanned

if TYPE_CHECKING:
    from rftd.streams.folds.run_state import RunState


class Collects(Hold, frozen=True):
    """The stage only explores: it collects experiences without training on them."""

    words = Words("collects", "stage {stage.name} only collects experiences, and trains nothing", level=Level.WORKS)


class NoTrainer(Hold, frozen=True):
    """No trainer has loaded the model or a checkpoint since the experiment or its trainer started."""

    words = Words(
        "trainer_takes_up", "a trainer to load the model or the newest checkpoint", "trainer", "the model is loaded"
    )


class StepsAgain(Hold, frozen=True):
    """Steps have to be trained again, after a restart from a checkpoint before them."""

    words = Words("steps_again", "steps {first} to {last} to be executed again", "trainer", "step {last} is executed")
    first: int
    """First step to be trained again."""
    last: int
    """Last step trained before the restart."""


class PlannedAhead(Hold, frozen=True):
    """Hold of the planner: the maximum number of batches is planned ahead of the trainer."""

    words = Words(
        "plan_ahead",
        "steps {first} to {last}, which are already planned, to be trained",
        "trainer",
        "step {first} is executed",
    )
    first: int
    """First planned step not trained yet."""
    last: int
    """Last planned step."""


_FOR_EVER_S: Final = 365 * 86400.0
"""Seconds of a time-out above which the text names none: a served experiment waits for its clients indefinitely."""


class TooFewExperiences(Hold, frozen=True):
    """Too few experiences are ready to fill the next batch."""

    step: int
    """Step of the next batch."""
    have: int
    """Experiences fit for the batch: ready, and chosen by the stage's policy."""
    need: int
    """Number of experiences of a full batch."""
    passed_over: int
    """Ready experiences not yet chosen by the policy."""
    resting: int
    """Trained experiences in their cooldown before reuse."""
    rested_ns: int | None
    """End of the first cooldown; None without one."""
    read_until_ns: int
    """Time at which `max_read_timeout` has passed and an incomplete batch is planned."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text, with the number of unfinished rollouts as of this call."""
        groups = state.groups.open
        rollouts = sum(len(group.missing) for group in groups.values())
        wait = f"experiences for step {self.step}: {self.have} of {self.need} are ready"
        if self.passed_over:
            wait += f", and {self.passed_over} more that the policy does not choose yet"
        wait += f"; {rollouts} rollouts are under way in {len(groups)} groups"
        if in_pipeline := sum(group.processing is not None for group in groups.values()):
            wait += f", and {in_pipeline} finished groups are in the experience pipeline"
        if self.rested_ns is not None:
            cooldown_s = max(0.0, (self.rested_ns - now_ns) / 1e9)
            wait += f"; {self.resting} used ones rest, the first for {cooldown_s:.1f} s more"
        left_s = max(0.0, (self.read_until_ns - now_ns) / 1e9)
        ends = "groups close"
        if left_s < _FOR_EVER_S:
            ends += f", or an incomplete batch is planned in {left_s:.0f} s (max_read_timeout)"
        return Words("experiences", wait, "explorers" if groups else "dispatcher", ends)


class LastChance(Hold, frozen=True):
    """Unfinished groups would be too old for any batch but the next, and the policy lets the batch wait for them."""

    words = Words(
        "last_chance",
        "groups that began with weight version {oldest_version} or newer: step {step} is the last that may use them",
        "explorers",
        "they end (policy wait: true), or max_read_timeout",
    )
    step: int
    """Step of the next batch."""
    oldest_version: int
    """Oldest weight version with which one of these groups began."""


class EvalDecides(Hold, frozen=True):
    """The planner waits for an evaluation that may end the stage; only in deterministic runs, where no batch is planned
    meanwhile.
    """

    words = Words(
        "eval_decides",
        "the evaluation of step {step}, which decides whether stage {stage.name} continues",
        "evaluation",
        "every row is scored",
    )
    """Texts of the hold for `rftd why`."""
    step: int
    """Weight version under evaluation, and last step planned."""


TooFew: TypeAlias = TooFewExperiences | LastChance
"""Holds of the planner while the next batch lacks experiences."""
PlannerHold: TypeAlias = (
    NoStage | Paused | Collects | StagePlanned | NoTrainer | StepsAgain | EvalDecides | PlannedAhead | TooFew
)
"""Holds of the planner."""
