"""Sections `trainer.best_checkpoint`, `trainer.early_stop` and `trainer.rules`: what evaluations decide."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from rftd.daemon.config.schema.section import Count, Natural, Section, word
from rftd.streams.declaration import PLAIN, InUnit

Metric: TypeAlias = Annotated[str, Field(min_length=1, max_length=256), PLAIN]
"""A figure of an evaluation: `eval/TASKSET/FIGURE`, or `FIGURE` where there is one held-out taskset."""
Mode: TypeAlias = Annotated[Literal["max", "min"], word()]
Bound: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12)]
ChangeShare: TypeAlias = Annotated[float, Field(gt=0, le=1000)]


class BestCheckpoint(Section):
    """`trainer.best_checkpoint`: rftd only."""

    metric: Metric = "score"
    """The figure of an evaluation that tells which checkpoint is best."""
    mode: Mode = "max"
    """`max`: more of it is better; `min`: less."""
    keep: Count = 1
    """The checkpoints that are kept for it, beside the newest `max_checkpoints_to_keep`."""


class EarlyStop(Section):
    """`trainer.early_stop`: rftd only."""

    metric: Metric = "score"
    """The figure of an evaluation that decides."""
    mode: Mode = "max"
    """`max`: more of it is better; `min`: less."""
    patience: Annotated[Natural, InUnit("evaluations")] = 0
    """Number of evaluations in a row without an improvement after which the stage ends; 0 = no limit."""
    min_delta: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """An evaluation is better if it is so by more than this."""
    bound: Bound | None = None
    """The stage ends once the figure is at least so good."""


class EvalRule(Section):
    """An entry of `trainer.rules`: rftd only; one of the four conditions."""

    metric: Metric = "score"
    """The figure of an evaluation that the rule is about."""
    falls_by: ChangeShare | None = None
    """Applies when the figure falls by this share of its highest value: 0.2 is 20 %."""
    rises_by: ChangeShare | None = None
    """Applies when the figure rises by this share of its lowest value."""
    below: Bound | None = None
    """Applies when the figure is below this value."""
    above: Bound | None = None
    """Applies when the figure is above this value."""
    then: Annotated[Literal["pause", "stop"], word()] = "pause"
    """The experiment pauses until it is resumed, or the stage ends."""
