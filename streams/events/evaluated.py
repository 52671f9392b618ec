"""What evaluations decided: the best checkpoint, the early end of a stage. Written by the controller, on the spine."""

from __future__ import annotations

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Finite, Index


@event("checkpoint.chosen", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class CheckpointChosen(Event, frozen=True, kw_only=True):
    """The checkpoint of `version` is the best of its stage by its evaluation; said when one that is kept changes."""

    number: Index
    """Choices of the experiment so far, with this one: one that comes again changes nothing."""
    stage: Index
    version: Index
    generation: Index
    """The generation of the weights that were evaluated."""
    figure: str
    """`eval/TASKSET/FIGURE`."""
    value: Finite
    before: Finite | None = None
    """The best value until then, the same if only others changed; None: there was none."""
    base: Finite | None = None
    """The value of the weights with which the stage began, where they were evaluated."""
    kept: tuple[Index, ...]
    """The versions whose checkpoints are kept for their evaluation, the best first."""


@event("stage.stopped", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageStopped(Event, frozen=True, kw_only=True):
    """The stage ends before its last step: with `last_version`, or with what was planned by then."""

    stage: Index
    last_version: Index
    version: Index
    """The version whose evaluation decided it."""
    figure: str
    value: Finite | None
    """None: it was no number."""
    cause: str
    """`bound`, `patience` or `rule`."""
    reason: str
