"""`next_steps`: which runs of a sweep begin or end now; a pure function of the sweep and of what became of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rftd.streams.folds.spine import Status
from rftd.streams.folds.sweeps import RecordedSweep


class BeginRun(NamedTuple):
    """A run that is to be submitted."""

    point: int


class EndRun(NamedTuple):
    """A run that is to be cancelled, and why."""

    point: int
    reason: str


def next_steps(sweep: RecordedSweep, runs: Mapping[int, Status]) -> Iterator[BeginRun | EndRun]:
    """The steps to take now, in order; `runs` are the states of those that were submitted, by their place.

    One whose submission was cut off before it was accepted is begun again, which completes it.
    """
    if sweep.cancelled is not None:
        reason = f"sweep {sweep.name} was cancelled"
        if sweep.cancelled.reason:
            reason += f": {sweep.cancelled.reason}"
        yield from (EndRun(point, reason) for point, status in sorted(runs.items()) if not status.ended)
        return
    cut_off = [point for point, status in sorted(runs.items()) if status is Status.SUBMITTED]
    yield from map(BeginRun, cut_off)
    free = sweep.submitted.at_once - sum(not status.ended for status in runs.values())
    waiting = (point for point in range(len(sweep.points)) if point not in runs and point not in sweep.refused)
    for _, point in zip(range(free), waiting, strict=False):
        yield BeginRun(point)


def is_over(sweep: RecordedSweep, runs: Mapping[int, Status]) -> bool:
    """True if each run has ended, could not begin, or will not."""
    if any(not status.ended for status in runs.values()):
        return False
    return sweep.cancelled is not None or len(runs.keys() | sweep.refused.keys()) == len(sweep.points)
