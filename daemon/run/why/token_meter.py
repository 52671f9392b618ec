"""`TokenMeter`: the tokens drawn by an experiment's explorers, from their heartbeats, and the work they belong to."""

from __future__ import annotations

from collections import deque
from typing import Final
from uuid import UUID

from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.streams.spec.spec import StageSpec

_WINDOW_S: Final = 30.0
"""Seconds of heartbeats averaged into a rate."""
_LEAST_S: Final = 2.0
"""Shortest span of a rate in seconds: heartbeats come once a second."""


class TokenMeter:
    """Counts drawn tokens over restarts of workers; lost with the daemon, as the heartbeats are."""

    def __init__(self) -> None:
        """Starts without heartbeats, at 0 tokens."""
        self._totals: dict[UUID, int] = {}
        """Tokens drawn by each living worker, by its last heartbeat."""
        self._samples: deque[tuple[float, int]] = deque()
        """Monotonic time and tokens drawn so far, at each recent call of `note`."""
        self._drawn = 0
        """Tokens drawn since the meter began, over restarts of workers."""
        self._ends_count: int | None = None
        """Number of ends seen last; None before the first snapshot."""
        self._drawn_at_end = 0
        """Tokens drawn up to the last end of a rollout or row."""

    def note(self, snapshot: RunSnapshot) -> None:
        """Adds the heartbeats read since the last call."""
        for beat in snapshot.liveness.latest.values():
            if beat.role == "explorer" and beat.worker in snapshot.state.roster.live:
                # A worker has its own counter, from 0 on.
                self._drawn += max(0, beat.tokens_total - self._totals.get(beat.worker, 0))
                self._totals[beat.worker] = beat.tokens_total
        self._totals = {worker: total for worker, total in self._totals.items() if worker in snapshot.state.roster.live}
        ends = _ends_count(snapshot)
        if ends != self._ends_count:
            # Of the first call nothing is known about earlier ends: tokens of ended rollouts would be counted.
            first_of_all = self._ends_count is None and not ends
            self._ends_count = ends
            self._drawn_at_end = 0 if first_of_all else self._drawn
        self._samples.append((snapshot.now_s, self._drawn))
        while snapshot.now_s - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()

    @property
    def tokens(self) -> int:
        """Tokens drawn since the last end of a rollout or row."""
        return self._drawn - self._drawn_at_end

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens drawn per second over the last half minute; None before a span of two seconds."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= _LEAST_S else None


def _ends_count(snapshot: RunSnapshot) -> int:
    """Returns a number growing with each finished rollout or scored row, by which an end is noticed."""
    state = snapshot.state
    groups = sum(len(group.members) + len(group.failed) for group in state.groups.open.values())
    rows = sum(evaluation.rows_scored() for evaluation in state.evals.open.values())
    return groups + rows + 1_000_000 * state.groups.closed_in_stage


def work_of(snapshot: RunSnapshot, meter: TokenMeter) -> WorkUnderWay | None:
    """Returns the progress of the open evaluations, or else of the leased groups of rollouts; None without either, and
    before the first stage.
    """
    spine = snapshot.state.spine
    if spine.ended or spine.spec is None or spine.stage < 0:
        return None
    stage = spine.stage_spec()
    evaluations = [entry for entry in snapshot.state.evals.open.values() if entry.leases or entry.scores]
    if evaluations:
        kind = "rows"
        begun_ns: list[int]
        stages = spine.spec.stages
        total = sum(stages[entry.stage].evals[entry.taskset].rows for entry in evaluations)
        ended = sum(entry.rows_scored() for entry in evaluations)
        begun_ns = []
    else:
        kind = "rollouts"
        groups = [group for group in snapshot.state.groups.open.values() if group.leases]
        total = sum(group.repeat_times for group in groups)
        ended = sum(len(group.members) + len(group.failed) for group in groups)
        begun_ns = [lease.leased_ns for group in groups for lease in group.leases.values()]
    if not total:
        return None
    rate = meter.tokens_per_s
    return WorkUnderWay(
        kind=kind,
        ended=ended,
        total=total,
        tokens=meter.tokens,
        tokens_per_s=rate,
        longest_s=_longest_s(snapshot, stage, rate, begun_ns),
    )


def _longest_s(snapshot: RunSnapshot, stage: StageSpec, rate: float | None, begun_ns: list[int]) -> float | None:
    """Returns the seconds until the newest running answers reach the maximum response length at this rate of tokens;
    None without a rate, a running answer or a maximum.
    """
    live = snapshot.state.roster.live
    beats = [beat for beat in snapshot.liveness.latest.values() if beat.worker in live and beat.role == "explorer"]
    running = sum(max(0, live[beat.worker].capacity - beat.free) for beat in beats)
    if not rate or not running or not stage.model.max_response_tokens:
        return None
    whole_s = stage.model.max_response_tokens * running / rate
    known_ns = [time_ns for time_ns in begun_ns if time_ns]
    elapsed_s = (snapshot.now_ns - max(known_ns)) / 1e9 if known_ns else 0.0
    return max(0.0, whole_s - max(0.0, elapsed_s))
