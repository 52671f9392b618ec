"""The learning signal: lost and regained. Written by the controller, on the spine; see `streams/folds/signal.py`."""

from __future__ import annotations

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Index


@event("signal.lost", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalLost(Event, frozen=True, kw_only=True):
    """The loss of the learning signal from batch `step` on, with its cause; written once per change of cause."""

    number: Index
    """Number of losses and returns of the experiment's signal so far, this one included; a repeated number has no
    effect.
    """
    stage: Index
    step: Index
    """The first batch without a learning signal; of one that cannot be formed, its step."""
    cause: str
    """A name of `CAUSES` in `streams/folds/signal.py`."""
    reason: str
    fix: str


@event("signal.regained", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalRegained(Event, frozen=True, kw_only=True):
    """The return of the learning signal with batch `step`."""

    number: Index
    stage: Index
    step: Index
