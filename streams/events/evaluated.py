"""Decisions by evaluations: the best checkpoint, the early end of a stage. Written by the controller, on the spine."""

from __future__ import annotations

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Finite, Index


@event("checkpoint.chosen", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class CheckpointChosen(Event, frozen=True, kw_only=True):
    """The checkpoint of `version` as the best of its stage by its evaluation; written when the kept ones change."""

    number: Index
    """Number of the experiment's choices so far, this one included; a repeated number has no effect."""
    stage: Index
    version: Index
    generation: Index
    """The generation of the evaluated weights."""
    figure: str
    """`eval/TASKSET/FIGURE`."""
    value: Finite
    before: Finite | None = None
    """The best value until then, equal to `value` if only other kept checkpoints changed; None without an earlier
    choice.
    """
    base: Finite | None = None
    """The value of the stage's first weights, if they were evaluated."""
    kept: tuple[Index, ...]
    """The versions whose checkpoints are kept for their evaluation, the best first."""


@event("stage.stopped", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageStopped(Event, frozen=True, kw_only=True):
    """The early end of a stage, with `last_version` or with the last batch already planned."""

    stage: Index
    last_version: Index
    version: Index
    """The version whose evaluation decided the stop."""
    figure: str
    value: Finite | None
    """The deciding figure; None if it was not a number."""
    cause: str
    """`bound`, `patience` or `rule`."""
    reason: str
