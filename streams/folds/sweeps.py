"""`Sweeps`: every sweep of the log, with its refused runs; a fold of `sweep.*` events."""

from __future__ import annotations

import copy
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops.ids import derive
from rftd.streams.events.sweep import SweepCancelled, SweepHalved, SweepPoint, SweepRefused, SweepSubmitted
from rftd.streams.log.envelope import Decoded

LABEL: Final = "sweep"
"""Label with the name of the sweep, on each of its runs."""


class RecordedSweep(msgspec.Struct, kw_only=True):
    """A sweep as recorded in the log, with refusals, halvings and cancellation."""

    id: UUID
    """Id of the sweep."""
    submitted: SweepSubmitted
    """The submission."""
    submitted_ns: int
    """Time of the submission, in nanoseconds since 1970."""
    refused: dict[int, SweepRefused] = {}
    """Refused runs, by index."""
    cancelled: SweepCancelled | None = None
    """The cancellation; None without one."""
    halved: list[SweepHalved] = []
    """The halvings, in order."""

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.submitted.name

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The sweep's runs, in the order of their starts."""
        return self.submitted.points

    @property
    def next_halving(self) -> int | None:
        """Weight version of the next halving; None without a further one."""
        halving = self.submitted.halving
        versions = () if halving is None else halving.at[len(self.halved) :]
        return versions[0] if versions else None

    @property
    def firsts(self) -> list[int]:
        """For each run, the index of the first run with equal settings (another seed)."""
        first: dict[tuple[tuple[str, str], ...], int] = {}
        return [first.setdefault(tuple(run.settings.items()), number) for number, run in enumerate(self.points)]

    @property
    def stopped(self) -> dict[int, str]:
        """Runs stopped by a halving, by index, with the reason."""
        reasons: dict[int, str] = {}
        for halved in self.halved:
            for score in halved.scores:
                if score.point in halved.stopped:
                    shown = "without a score" if score.mean is None else f"{score.mean:.4g}"
                    reasons[score.point] = f"sweep {self.name} was halved at version {halved.version}: {shown}"
        return {point: reasons[first] for point, first in enumerate(self.firsts) if first in reasons}

    @property
    def contenders(self) -> list[int]:
        """Indices of the runs not stopped by a halving."""
        stopped = self.stopped
        return [point for point in range(len(self.points)) if point not in stopped]

    def hold_reason(self, version: int) -> str:
        """Returns the reason recorded for pausing a run until the others reach `version`."""
        return f"sweep {self.name}: waits at version {version} until the others are there"

    def key(self, point: int) -> UUID:
        """Returns the request key for submitting a run, always equal, so that a run is submitted once."""
        return derive(self.id, "run", point)

    def config(self, point: int) -> dict[str, Any]:
        """Returns the experiment file of a run, with the run's changes, name and label applied."""
        run = self.points[point]
        config = config_of(self.submitted.config, run)
        return {**config, "name": run.name, "labels": {**(config.get("labels") or {}), LABEL: self.name}}


class Sweeps(msgspec.Struct):
    """The sweeps by id, in the order of the log."""

    by_id: dict[UUID, RecordedSweep] = {}
    """The sweeps by id."""

    def apply(self, decoded: Decoded) -> None:
        """Folds an effective event of a sweep; a repeated one changes nothing."""
        event = decoded.event
        id = decoded.head.experiment
        if id is None:
            return
        if isinstance(event, SweepSubmitted):
            new = RecordedSweep(id=id, submitted=event, submitted_ns=decoded.head.time_ns)
            self.by_id.setdefault(id, new)
            return
        sweep = self.by_id.get(id)
        if sweep is None:
            return
        if isinstance(event, SweepRefused):
            sweep.refused.setdefault(event.point, event)
        elif isinstance(event, SweepHalved):
            if event.version == sweep.next_halving:
                sweep.halved.append(event)
        elif isinstance(event, SweepCancelled) and sweep.cancelled is None:
            sweep.cancelled = event


def config_of(config: dict[str, Any], point: SweepPoint) -> dict[str, Any]:
    """Applies the changes of one run to a sweep's file. Raises KeyError, IndexError, TypeError for a path into nothing.

    A change without a path replaces the whole file.
    """
    tree: Any = copy.deepcopy(config)
    for change in point.changes:
        if not change.field:
            tree = copy.deepcopy(change.value)
            continue
        *parents, last_key = change.field
        node = tree
        for key in parents:
            node = node[key]
        node[last_key] = copy.deepcopy(change.value)
    assert isinstance(tree, dict)
    return tree
