"""Sweeps: experiments differing in a few fields of a file, each sweep on the spine of a separate id."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.events.registry import CONTROLLER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Integer


class FieldChange(msgspec.Struct, frozen=True, array_like=True):
    """A field of an experiment file, and the value of the field in one run of a sweep."""

    field: tuple[str | int, ...]
    """The path of keys and indices to the field; empty: the whole file."""
    value: Any
    """Value of the field."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a sweep: name, settings and seed of the experiment."""

    name: str
    """The name of the run's experiment."""
    settings: dict[str, str] = {}
    """The value of each swept field, as written by the user; runs with equal settings differ only in their seed."""
    seed: Integer = 0
    """Seed of the run."""
    changes: tuple[FieldChange, ...] = ()
    """Every field of the run's file differing from the sweep's, references to a swept field included."""


class Halving(msgspec.Struct, frozen=True, kw_only=True):
    """A rule stopping, at several weight versions, the half of a sweep's settings with the lower held-out scores."""

    at: tuple[Index, ...]
    """The weight versions, ascending. Each run waits there for the others."""
    taskset: str
    """The held-out taskset providing the score."""


@event("sweep.submitted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepSubmitted(Event, frozen=True, kw_only=True):
    """The submission of a sweep by a client. Daemons start the runs, which are experiments, one after the other."""

    name: str
    """Name of the sweep."""
    config: dict[str, Any]
    """The experiment file changed by the runs, normalised like an experiment's file."""
    points: tuple[SweepPoint, ...]
    """The runs, in the order of their starts."""
    at_once: Count
    """Maximum number of concurrent runs."""
    halving: Halving | None = None
    """Rule stopping settings early; None without one."""
    one_base: bool = False
    """The runs begin with the same weights: the first one evaluates them, and the others are its forks at step 0."""
    by: str = ""
    """The name of the submitting token, also used for submitting the runs."""
    role: str = ""
    """The role of the token."""


@event("sweep.refused", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepRefused(Event, frozen=True, kw_only=True):
    """A run of a sweep refused at its submission, and left out."""

    point: Index
    """The run's index in the sweep, from 0."""
    code: str
    """Code of the error because of which the run was refused."""
    reason: str
    """Text of the error because of which the run was refused."""


class SettingScore(msgspec.Struct, frozen=True, array_like=True):
    """The mean score of one setting of a sweep at a halving."""

    point: Index
    """The index of the setting's first run."""
    runs: Count
    """Number of runs with a score."""
    mean: Finite | None
    """Mean score of the runs; None without any."""


@event("sweep.halved", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepHalved(Event, frozen=True, kw_only=True):
    """A halving: every run of the sweep has reached a weight version, and several settings are stopped there."""

    version: Index
    """Weight version of the halving."""
    stopped: tuple[Index, ...]
    """The first run of each stopped setting."""
    scores: tuple[SettingScore, ...] = ()
    """The scores used for the decision."""


@event("sweep.cancelled", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class SweepCancelled(Event, frozen=True, kw_only=True):
    """The end of a sweep: no further run begins, and unfinished ones are cancelled."""

    reason: str = ""
    """Reason for the end of the sweep, in words for people; empty without one."""
    by: str = ""
    """Name of the token used by the person."""
