"""`Signal`: the learning signal of the newest batches, or the beginning of its loss; a fold of the spine alone.

A batch is *idle* if it has a cause of `CAUSES` other than `solved`. One batch proves nothing, so the cause changes
after several batches in a row. A change is kept until declared by the controller (`signal.lost`, `signal.regained`):
declarations follow from the steps, however late the controller reads them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.events.batch import ExperienceRetired
from rftd.streams.events.experiment import ExperimentResumed, SignalLost, SignalRegained, StageStarted
from rftd.streams.events.registry import Event
from rftd.streams.events.step import ANSWERS_CUT, ANSWERS_EMPTY, EQUAL_GROUPS, PROMPTS_CUT, StepCompleted

NOT_FINITE: Final = "not_finite"
"""The step was skipped because its loss, gradient or input was not finite."""
ALL_PROMPTS_CUT: Final = "prompts_cut"
"""Every prompt is too long, and none is trained."""
ALL_ANSWERS_CUT: Final = "answers_cut"
"""Every answer reached its length limit, and none is trained, or every group has equal rewards."""
ALL_ANSWERS_EMPTY: Final = "answers_empty"
"""Every answer is empty."""
NO_TOKENS: Final = "no_tokens"
"""No token was trained, for a mixture of the causes above."""
LEARNING_RATE_ZERO: Final = "learning_rate_zero"
"""The learning rate is zero."""
SOLVED: Final = "solved"
"""All rewards of every group are equal, and every answer is right: the task is learned, and nothing is wrong."""
REWARDS_EQUAL: Final = "rewards_equal"
"""All rewards of every group are equal."""
ADVANTAGE_ZERO: Final = "advantage_zero"
"""The advantage of every trained token is zero, although rewards differ."""
GRADIENT_ZERO: Final = "gradient_zero"
"""The gradient is zero."""
FILTERED: Final = "filtered"
"""Every group is left out as uninformative, so no batch is formed."""
ROLLOUTS_FAILED: Final = "rollouts_failed"
"""Rollouts fail, so that no group can be trained; detected by the controller, not by this fold."""

CAUSES: Final = (
    NOT_FINITE,
    ALL_PROMPTS_CUT,
    ALL_ANSWERS_CUT,
    ALL_ANSWERS_EMPTY,
    NO_TOKENS,
    LEARNING_RATE_ZERO,
    SOLVED,
    REWARDS_EQUAL,
    ADVANTAGE_ZERO,
    GRADIENT_ZERO,
    FILTERED,
    ROLLOUTS_FAILED,
)
"""All causes, as values of a metrics label."""

FILTERED_BATCHES: Final = 4
"""Batches' worth of consecutive uninformative groups, without other waiting ones, after which the signal counts as
lost.

A few of them are the normal case of dynamic sampling.
"""
STEADY_BATCHES: Final = 3
"""Consecutive idle batches after which the signal counts as lost, and consecutive faultless batches ending the loss."""
SOLVED_BATCHES: Final = 8
"""Consecutive batches with every answer right after which the task counts as solved, or with learning to end that."""
_ROUNDED: Final = 1e-6
"""Upper bound of advantages and losses of equal rewards: a mean of equal numbers is rounded."""
_RIGHT: Final = 1.0
"""The reward of a right answer, until a batch has shown a larger one."""


class SignalChange(msgspec.Struct, frozen=True, kw_only=True):
    """A loss or return of the learning signal that the controller has to record."""

    number: int
    """Number of the change in its experiment, from 1."""
    stage: int
    """Index of the stage."""
    step: int
    """Step of the first batch with the changed signal or cause."""
    cause: str
    """Cause of the loss; empty if the signal is back."""
    detail: str = ""
    """Text of a skipped step; empty otherwise."""
    lowest: float = 0.0
    """Lowest mean reward of a group."""
    highest: float = 0.0
    """The lowest and the highest mean reward of a group."""


class Streak(msgspec.Struct, frozen=True):
    """Consecutive batches of one kind: kind, number of batches and first step."""

    kind: str = ""
    """Kind of the batches."""
    batches: int = 0
    """Number of batches."""
    step: int = 0
    """The first of them."""

    def followed(self, kind: str, step: int) -> Streak:
        """Returns the streak continued, or begun, by the batch of `step`."""
        if self.batches and kind == self.kind:
            return Streak(kind, self.batches + 1, self.step)
        return Streak(kind, 1, step)


class Signal(msgspec.Struct):
    """The learning signal of an experiment's newest batches: present, or lost for a cause."""

    cause: str = ""
    """Cause of the present loss; empty while batches have a learning signal."""
    same: Streak = Streak()
    """Newest consecutive batches with one cause (empty: with a learning signal)."""
    health: Streak = Streak()
    """Newest consecutive batches that are all idle, or all not idle."""
    idle_batches: int = 0
    """Consecutive batches without a learning signal although the task is unsolved, since the last resume."""
    number: int = 0
    """Number of changes until now."""
    told: int = 0
    """Number of the last change recorded by the controller."""
    undeclared: list[SignalChange] = []
    """Changes not recorded by the controller yet."""
    lost: SignalLost | None = None
    """The recorded loss, until a step ends it; None without one."""
    filtered: int = 0
    """Number of experiences retired as uninformative since the last plan, while no others waited."""
    retired_ns: int = -1
    """Time of the last of those retirements, by the planner's clock: a repeated event is not counted twice."""
    best: float | None = None
    """Highest reward of any batch of the stage with differing rewards; None before one."""

    def lived(self, event: Event) -> None:
        """Folds a life event: a new stage and a person's resume restart the counts; a lost signal stays lost until a
        step ends it.
        """
        if isinstance(event, StageStarted | ExperimentResumed):
            self.idle_batches = 0
            self.filtered = 0
            self.same = self.health = Streak()
        if isinstance(event, StageStarted):
            self.best = None

    def planned(self) -> None:
        """Restarts the count of uninformative experiences, because a batch was formed."""
        self.filtered = 0

    def executed(self, event: StepCompleted, *, last: bool, max_idle_steps: int = 0) -> None:
        """Folds a trained step; `last` is True for the stage's last step.

        `max_idle_steps` (0: none) is the number of idle batches after which the experiment pauses; the signal is then
        lost at the pause at the latest.
        """
        cause = self._cause_of(event, last=last)
        idle = _is_fault(cause)
        self.idle_batches = self.idle_batches + 1 if idle else 0
        self.same = self.same.followed(cause, event.step)
        self.health = self.health.followed("idle" if idle else "well", event.step)
        self._judge(event, min(max_idle_steps or STEADY_BATCHES, STEADY_BATCHES))
        highest = event.metrics.get("critic/rewards/max")
        if highest is not None and event.metrics.get(EQUAL_GROUPS, 0.0) < 1:
            self.best = highest if self.best is None else max(self.best, highest)

    def retired(self, event: ExperienceRetired, *, stage: int, step: int, batch: int) -> None:
        """Folds retirements of uninformative groups; `step` is the next step, to be filled with `batch` experiences."""
        groups = event.uninformative
        # For a decision split over several events because of many ids, the first counts: each has the bound of all.
        if groups is None or event.decided_at_ns <= self.retired_ns:
            return
        self.retired_ns = event.decided_at_ns
        if groups.waiting:
            self.filtered = 0
            return
        former_batches = self.filtered // batch
        self.filtered += len(event.experiences)
        batches = self.filtered // batch
        if batches < FILTERED_BATCHES or batches == former_batches:
            return
        solved = groups.lowest >= self._right_reward
        self.idle_batches = 0 if solved else batches
        change = SignalChange(
            number=self.number + 1,
            stage=stage,
            step=step,
            cause=SOLVED if solved else FILTERED,
            lowest=groups.lowest,
            highest=groups.highest,
        )
        self._add_change(change)

    def declared(self, event: SignalLost | SignalRegained) -> None:
        """Folds a loss or return recorded by the controller; a repeated event changes nothing."""
        if event.number > self.told:
            self.told = event.number
            self.lost = event if isinstance(event, SignalLost) else None
        self.undeclared = [change for change in self.undeclared if change.number > event.number]
        if event.number > self.number:
            # A change detected by the controller alone: failing rollouts.
            self.number = event.number
            self.cause = event.cause if isinstance(event, SignalLost) else ""

    @property
    def _right_reward(self) -> float:
        """Returns the reward of a right answer, as far as known."""
        return _RIGHT if self.best is None else self.best

    def _judge(self, event: StepCompleted, idle_batches: int) -> None:
        """Changes the cause if consecutive batches agree on another one; `idle_batches` idle batches are a loss."""
        same_cause = self.same
        health = self.health
        if _is_fault(same_cause.kind):
            # Batches of a loss share idleness, possibly of different causes; once the signal is lost, the exact cause
            # counts.
            streak = same_cause if _is_fault(self.cause) else health
            if streak.batches >= idle_batches:
                self._note_change(same_cause.kind, streak.step, event)
        elif same_cause.batches >= SOLVED_BATCHES:
            self._note_change(same_cause.kind, same_cause.step, event)
        elif _is_fault(self.cause) and health.batches >= STEADY_BATCHES:
            self._note_change("", health.step, event)

    def _note_change(self, cause: str, step: int, event: StepCompleted) -> None:
        """Notes a change to this cause (empty: the signal is back), from batch `step` on."""
        figures = event.metrics
        change = SignalChange(
            number=self.number + 1,
            stage=event.stage,
            step=step,
            cause=cause,
            detail=event.skipped,
            lowest=figures.get("group_advantages/reward_mean/min", 0.0),
            highest=figures.get("group_advantages/reward_mean/max", 0.0),
        )
        self._add_change(change)

    def _add_change(self, change: SignalChange) -> None:
        """Adds a change to be recorded, unless the cause is the present one."""
        if change.cause != self.cause:
            self.cause = change.cause
            self.number = change.number
            self.undeclared.append(change)

    def _cause_of(self, event: StepCompleted, *, last: bool) -> str:
        """Returns the cause of a batch's missing learning signal; empty if the batch has a signal."""
        figures = event.metrics
        if event.skipped:
            return NOT_FINITE
        if not event.tokens:
            return _without_tokens(figures) or NO_TOKENS
        # A schedule may end at zero: a zero in the last step stops nothing.
        if figures.get("actor/lr") == 0 and not last:
            return LEARNING_RATE_ZERO
        if _has_no_advantages(figures):
            if figures.get(EQUAL_GROUPS) != 1:
                return ADVANTAGE_ZERO
            lowest = figures.get("group_advantages/reward_mean/min", 0.0)
            if lowest >= self._right_reward - _ROUNDED:
                return SOLVED
            return _without_tokens(figures) or REWARDS_EQUAL
        norms = [figures[name] for name in ("actor/grad_norm", "critic/grad_norm") if name in figures]
        return GRADIENT_ZERO if norms and not any(norms) else ""


def _is_fault(cause: str) -> bool:
    """True for a fault; a solved task is none."""
    return cause not in ("", SOLVED)


def _without_tokens(figures: dict[str, float]) -> str:
    """Returns the cause holding for every rollout of the batch; empty without one."""
    for name, cause in (
        (PROMPTS_CUT, ALL_PROMPTS_CUT),
        (ANSWERS_EMPTY, ALL_ANSWERS_EMPTY),
        (ANSWERS_CUT, ALL_ANSWERS_CUT),
    ):
        if figures.get(name) == 1:
            return cause
    return ""


def _has_no_advantages(figures: dict[str, float]) -> bool:
    """True if the advantage of every trained token is zero, and nothing else is trained beside rollouts."""
    highest = figures.get("critic/advantages/max")
    lowest = figures.get("critic/advantages/min")
    if highest is None or lowest is None:
        return False
    # Rows of an expert in a batch have no advantage, but contribute to the loss.
    if abs(figures.get("actor/pg_loss", 0.0)) > _ROUNDED:
        return False
    size = max(abs(highest), abs(lowest))
    return size == 0 or (size <= _ROUNDED and figures.get(EQUAL_GROUPS) == 1)
