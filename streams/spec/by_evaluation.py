"""`ByEvaluation`: what the figures of evaluations decide in a stage, as its specification says it."""

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
        """The name under which trackers and `rftd steps` show it."""
        return f"eval/{self.taskset}/{self.figure}"


class BestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that are kept for their evaluation, beside the newest."""

    figure: FigureSpec
    mode: str = MAX
    """`max` or `min`."""
    keep: Index = 1


class EarlyStopSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a stage before its last step."""

    figure: FigureSpec
    mode: str = MAX
    patience: Index = 0
    """Evaluations in a row that are no better than the best one, after which the stage ends; 0: it does not."""
    min_delta: Finite = 0.0
    """An evaluation is better if it is so by more than this."""
    bound: Finite | None = None
    """A figure that is at least so good ends the stage."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: what happens when a figure crosses a threshold."""

    figure: FigureSpec
    kind: str
    """`falls_by` or `rises_by`: by a share of its highest or lowest value; `below` or `above`: a value."""
    threshold: Finite
    then: str = PAUSE
    """`pause`, or `stop`: the stage ends."""


class ByEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that evaluations decide in one stage."""

    best: BestSpec | None = None
    early_stop: EarlyStopSpec | None = None
    rules: tuple[RuleSpec, ...] = ()

    @property
    def figures(self) -> tuple[FigureSpec, ...]:
        """The figures that it looks at, each once."""
        several = (self.best, self.early_stop, *self.rules)
        return tuple(dict.fromkeys(spec.figure for spec in several if spec is not None))
