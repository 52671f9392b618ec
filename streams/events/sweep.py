"""Sweeps: experiments that differ in a few fields of one file, each sweep on the spine of an id of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Integer


class FieldChange(msgspec.Struct, frozen=True, array_like=True):
    """A field of an experiment file, and the value that one run of a sweep has there."""

    field: tuple[str | int, ...]
    """The keys and indices that lead to the field; none: the whole file."""
    value: Any


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    name: str
    """The name of its experiment."""
    settings: dict[str, str] = {}
    """The value of each swept field, as it was written; runs of equal settings differ in their seed alone."""
    seed: Integer = 0
    changes: tuple[FieldChange, ...] = ()
    """Every field in which its file differs from the sweep's, such as those that refer to a swept one."""


class Halving(msgspec.Struct, frozen=True, kw_only=True):
    """At some weight versions, the half of a sweep's settings with the lower held-out scores is stopped."""

    at: tuple[Index, ...]
    """The weight versions, in order. Each run waits there for the others."""
    taskset: str
    """The held-out taskset whose score decides."""


@event("sweep.submitted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepSubmitted(Event, frozen=True, kw_only=True):
    """A client handed in a sweep. Its runs are experiments, which daemons make of this event one after the other."""

    name: str
    config: dict[str, Any]
    """The experiment file that the runs change, normalised as that of an experiment."""
    points: tuple[SweepPoint, ...]
    """The runs, in the order in which they begin."""
    at_once: Count
    """The most runs that have begun and not ended."""
    halving: Halving | None = None
    by: str = ""
    """The name of the token that submitted it, in whose name the runs are submitted."""
    role: str = ""
    """The role of that token."""


@event("sweep.refused", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepRefused(Event, frozen=True, kw_only=True):
    """One run of a sweep could not be submitted when its turn came, and is left out."""

    point: Index
    """The run's place in the sweep, from 0."""
    code: str
    reason: str


class SettingScore(msgspec.Struct, frozen=True, array_like=True):
    """A setting of a sweep when it was halved."""

    point: Index
    """Its first run."""
    runs: Count
    """The number of runs that had a score."""
    mean: Finite | None
    """Their mean score; None of no run."""


@event("sweep.halved", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepHalved(Event, frozen=True, kw_only=True):
    """Every run of the sweep has come to a weight version, and some settings do not go on behind it."""

    version: Index
    stopped: tuple[Index, ...]
    """The first run of each setting that is stopped."""
    scores: tuple[SettingScore, ...] = ()
    """The scores by which that was decided."""


@event("sweep.cancelled", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepCancelled(Event, frozen=True, kw_only=True):
    """No further run of the sweep begins, and those that have not ended are cancelled."""

    reason: str = ""
    by: str = ""
