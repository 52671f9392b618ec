"""Parts of a stage's specification: optimizer steps, corrections, decisions by evaluations; and trackers."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from rftd.streams.log.bounds import Finite, Index

# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.


class UpdatesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is trained: epochs over the batch in mini-batches, one optimizer step each."""

    epochs: Index = 1
    mini_batch_items: Index = 0
    """Items of the batch in one optimizer step; 0: all of them."""
    shuffle: bool = False
    """True if each epoch over the batch uses another order, drawn from the experiment's seed and the step."""


class CorrectionPart(msgspec.Struct, frozen=True, kw_only=True):
    """One registered correction and its arguments."""

    kind: str
    args: dict[str, Any] = {}


class OperatorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of the experience pipeline and its arguments."""

    name: str
    args: dict[str, Any] = {}


class CorrectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of the loss for tokens sampled with older weights."""

    old_logprobs: str = "rollout"
    """`rollout`, `recomputed` or `approximated`: the denominator of the policy loss's ratio."""
    parts: tuple[CorrectionPart, ...] = ()
    """Corrections in the order of their application."""


MAX = "max"
"""Mode of a figure whose highest value is the best."""
PAUSE = "pause"
"""The action that pauses the experiment."""
STOP = "stop"
"""The action that ends the stage."""


class FigureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the evaluations on one held-out taskset, such as its score."""

    taskset: str
    figure: str = "score"
    """`score`, or a name of `EvalCompleted.metrics`."""

    @property
    def name(self) -> str:
        """The figure's name in trackers and `rftd steps`."""
        return f"eval/{self.taskset}/{self.figure}"


class BestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints are kept, in addition to the newest ones: those with the best value of a figure."""

    figure: FigureSpec
    mode: str = MAX
    """`max` or `min`."""
    keep: Index = 1
    """Number of best checkpoints kept."""


class EarlyStopSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Condition on a figure for ending a stage before its last step."""

    figure: FigureSpec
    mode: str = MAX
    patience: Index = 0
    """Number of consecutive evaluations without improvement that ends the stage; 0: never."""
    min_delta: Finite = 0.0
    """Minimum improvement on the best value that counts."""
    bound: Finite | None = None
    """Value at which, or better, the stage ends; None without one."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An action taken when a figure crosses a threshold."""

    figure: FigureSpec
    kind: str
    """`falls_by` or `rises_by` (a share of the highest or lowest value), `below` or `above` (a value)."""
    threshold: Finite
    then: str = PAUSE
    """`pause` the experiment, or `stop` the stage."""


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


MOST_SAMPLES: Final = 64
"""Maximum of `TrackerSpec.samples`."""


class TrackerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tracker of an experiment: the guide's `monitor_type` with its part of `monitor_args`."""

    kind: str
    args: dict[str, Any] = {}
    """Arguments without secrets."""
    variables: dict[str, str] = {}
    """Arguments with values in the environment: the variable of each."""
    samples: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)] = 0
    """Maximum number of rows in each table of rollouts and of evaluation answers; 0: no tables."""
    sample_interval: Annotated[int, Meta(ge=1)] = 1
    """Training steps between two tables of rollouts; each evaluation has one."""
    single_run: bool = False
    """True: explorer and trainer share one run; False: the guide's two, `NAME_explorer` and `NAME_trainer`."""
