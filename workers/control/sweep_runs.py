"""`next_steps`: runs of a sweep to submit, pause, resume or cancel now; a pure function of the sweep and its runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from rftd.streams.events.sweep import SettingScore, SweepHalved
from rftd.streams.folds.spine import Status
from rftd.streams.folds.sweeps import RecordedSweep


class RunStanding(NamedTuple):
    """A submitted run of a sweep: its status and its evaluation scores."""

    status: Status
    """Status of the run's experiment."""
    held: bool = False
    """True if the sweep, and nobody else, paused the run."""
    scores: Mapping[int, float] = {}
    """Scores by weight version, on the taskset that decides halvings."""
    based: bool = False
    """True if the run's first weights have been evaluated, so that other runs can share that evaluation."""

    @property
    def comes(self) -> bool:
        """True if the run is submitted, queued or running, so that further scores may come without a command."""
        return self.status in (Status.SUBMITTED, Status.QUEUED, Status.RUNNING)


class BeginRun(NamedTuple):
    """A run to submit, for the first time or again after an interrupted submission."""

    point: int
    """Index of the run's point in the sweep, from 0; likewise below."""
    base: int | None = None
    """Point of a run with an equal first evaluation, to be shared; None without one."""


class HoldRun(NamedTuple):
    """A run to pause until the other runs have been evaluated at the weight version of the next halving."""

    point: int
    """Index of the run's point in the sweep."""
    version: int
    """Weight version of the halving."""


class ResumeRun(NamedTuple):
    """A run to be resumed after a halving."""

    point: int
    """Index of the run's point in the sweep."""
    version: int
    """Weight version of the halving."""


class EndRun(NamedTuple):
    """A run to be cancelled, and the reason."""

    point: int
    """Index of the run's point in the sweep."""
    reason: str
    """Reason recorded with the cancellation."""


SweepStep: TypeAlias = BeginRun | HoldRun | ResumeRun | EndRun | SweepHalved
"""A step of a sweep: begin, pause, resume or cancel a run, or record a halving."""


def next_steps(sweep: RecordedSweep, runs: Mapping[int, RunStanding]) -> Iterator[SweepStep]:
    """Yields the steps to take now, in order; `runs` are the submitted runs by point.

    A run with an interrupted submission is submitted again. A due halving comes last, because its consequences follow
    once it is in the log.
    """
    live = {point: run for point, run in sorted(runs.items()) if not run.status.ended}
    if sweep.cancelled is not None:
        reason = f"sweep {sweep.name} was cancelled"
        if sweep.cancelled.reason:
            reason += f": {sweep.cancelled.reason}"
        yield from (EndRun(point, reason) for point in live)
        return
    stopped = sweep.stopped
    contenders = [point for point in range(len(sweep.points)) if point not in stopped]
    yield from (EndRun(point, stopped[point]) for point in live if point in stopped)
    yield from (BeginRun(point) for point, run in live.items() if run.status is Status.SUBMITTED)
    version = sweep.next_halving
    waiting = {point for point, run in live.items() if version is not None and version in run.scores}
    going = {point: run for point, run in live.items() if point not in stopped}
    if version is not None:
        running = [point for point in waiting & going.keys() if going[point].status is Status.RUNNING]
        yield from (HoldRun(point, version) for point in sorted(running))
        if all(_is_settled(sweep, runs, point, version) for point in contenders):
            yield halving_of(sweep, runs, version)
            return
    free = sweep.submitted.at_once - sum(not run.held for run in going.values())
    last = None if not sweep.halved else sweep.halved[-1].version
    for point in [point for point, run in going.items() if run.held and point not in waiting][: max(0, free)]:
        if last is not None:
            yield ResumeRun(point, last)
            free -= 1
    base = next((point for point, run in sorted(runs.items()) if run.based), None)
    if not sweep.submitted.one_base:
        base = None
    elif base is None:
        # One evaluation of the weights that all of them begin with is enough, so the others wait for it.
        free = min(free, 0 if any(run.comes for run in going.values()) else 1)
    to_come = (point for point in contenders if point not in runs and point not in sweep.refused)
    for _, point in zip(range(free), to_come, strict=False):
        yield BeginRun(point, base)


def halving_of(sweep: RecordedSweep, runs: Mapping[int, RunStanding], version: int) -> SweepHalved:
    """Builds the halving event at a weight version: the half of the settings (rounded down) with the lower mean scores
    stops.

    A setting without any score is the worst; among equal ones, later settings stop.
    """
    by_setting: dict[int, list[float]] = {}
    firsts = sweep.firsts
    for point in sweep.contenders:
        scores = by_setting.setdefault(firsts[point], [])
        if point in runs and version in runs[point].scores:
            scores.append(runs[point].scores[version])
    means = {first: statistics.fmean(scores) if scores else None for first, scores in by_setting.items()}
    ranked = sorted(means, key=lambda first: (means[first] is None, -(means[first] or 0.0), first))
    survivors = len(ranked) - len(ranked) // 2
    return SweepHalved(
        version=version,
        stopped=tuple(sorted(ranked[survivors:])),
        scores=tuple(SettingScore(first, len(by_setting[first]), means[first]) for first in sorted(means)),
    )


def _is_settled(sweep: RecordedSweep, runs: Mapping[int, RunStanding], point: int, version: int) -> bool:
    """True if the run has a score at this weight version, or will never have one (ended or refused)."""
    run = runs.get(point)
    if run is None:
        return point in sweep.refused
    return run.status.ended or version in run.scores


def is_over(sweep: RecordedSweep, runs: Mapping[int, RunStanding]) -> bool:
    """True if each run of the sweep has ended, was refused, or will never be submitted."""
    if any(not run.status.ended for run in runs.values()):
        return False
    if sweep.cancelled is not None:
        return True
    return all(point in runs or point in sweep.refused for point in sweep.contenders)
