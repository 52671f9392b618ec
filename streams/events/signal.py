"""The learning signal: lost and regained. Written by the controller, on the spine; see `streams/folds/signal.py`."""

from __future__ import annotations

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Index


@event("signal.lost", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalLost(Event, frozen=True, kw_only=True):
    """From batch `step` on nothing is learnt, for this cause; said once for each change of the cause."""

    number: Index
    """Losses and returns of the experiment's signal so far, with this one: one that comes again changes nothing."""
    stage: Index
    step: Index
    """The first batch that taught nothing; of one that cannot be formed, its step."""
    cause: str
    """A name of `CAUSES` in `streams/folds/signal.py`."""
    reason: str
    fix: str


@event("signal.regained", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalRegained(Event, frozen=True, kw_only=True):
    """Batch `step` taught something again."""

    number: Index
    stage: Index
    step: Index
