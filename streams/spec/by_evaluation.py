"""`ByEvaluation`: decisions by the figures of evaluations in a stage, as stored in its specification."""

from __future__ import annotations

import msgspec

from rftd.streams.log.bounds import Finite, Index

MAX = "max"
PAUSE = "pause"
STOP = "stop"


class FigureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the evaluations on one held-out taskset."""

    taskset: str
    figure: str = "score"
    """`score`, or a name of `EvalCompleted.metrics`."""

    @property
    def name(self) -> str:
        """The figure's name in trackers and `rftd steps`."""
        return f"eval/{self.taskset}/{self.figure}"


class BestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the figure of checkpoints kept for their evaluation, beside the newest."""

    figure: FigureSpec
    mode: str = MAX
    """`max` or `min`."""
    keep: Index = 1


class EarlyStopSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The condition for ending a stage before its last step."""

    figure: FigureSpec
    mode: str = MAX
    patience: Index = 0
    """Consecutive evaluations no better than the best one after which the stage ends; 0: never."""
    min_delta: Finite = 0.0
    """Minimum difference to the best value for counting as better."""
    bound: Finite | None = None
    """A figure at least as good ends the stage."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: an action when a figure crosses a threshold."""

    figure: FigureSpec
    kind: str
    """`falls_by` or `rises_by`: by a share of its highest or lowest value; `below` or `above`: a value."""
    threshold: Finite
    then: str = PAUSE
    """`pause`, or `stop`: end the stage."""


class ByEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions by evaluations in one stage: best checkpoints, early stopping and rules."""

    best: BestSpec | None = None
    early_stop: EarlyStopSpec | None = None
    rules: tuple[RuleSpec, ...] = ()

    @property
    def figures(self) -> tuple[FigureSpec, ...]:
        """The figures used by the decisions, each once."""
        several = (self.best, self.early_stop, *self.rules)
        return tuple(dict.fromkeys(spec.figure for spec in several if spec is not None))
