"""Timeline of an experiment's workers between two moments: rollouts in lanes, trained steps, idle spans, marks."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import After, Daemon, Name, Time, read, time_of
from rftd.ops.errors import UsageError
from rftd.storage.queries.experiments import get_summary
from rftd.storage.queries.timeline import (
    SAMPLE,
    RolloutSample,
    RolloutTime,
    plans_of,
    rollouts_between,
    sampled_rollouts,
)
from rftd.storage.queries.weights import WorkerRow, list_workers

if TYPE_CHECKING:
    from rftd.storage.queries.marks import CourseMark
    from rftd.storage.queries.step_columns import StepTable

MOST_TIMELINE_POINTS: Final = 400
"""Maximum number of buckets: SQLite joins at most 500 reads into one."""
SHOWN_LANES: Final = 64
"""Maximum number of workers in an answer, the newest of a longer list."""
SHOWN_IDLE: Final = 100
"""Maximum number of idle spans in an answer, the longest ones."""
_DURATION: Final = "duration_s"
"""Name of the step's figure of training seconds."""
_PAUSES: Final = frozenset({"paused", "queued"})
"""States of an experiment without training, shown as pauses."""


class TimelineWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, with the mean number of its rollouts under way in each bucket."""

    id: str
    """Id of the worker."""
    role: str
    """Role of the worker: `explorer` or `trainer`."""
    slot: int
    """The worker's partition of `rftd.tasks`; -1 for a trainer."""
    started_ns: int
    """Start of the process, Unix time in nanoseconds."""
    ended_ns: int | None
    """Time of the stop or loss; null for a live worker."""
    lanes: int
    """Number of lanes of the listed rollouts, below which none overlap."""
    busy: list[float]
    """Mean number of rollouts under way in each bucket; empty for a trainer."""


class TimelineRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in a lane of its worker."""

    lane: int
    """Lane of the worker, from 0."""
    rollout: RolloutTime
    """The rollout with its times."""


class TrainedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Trained steps next to each other, several in a long span."""

    first_step: int
    """The first trained step."""
    last_step: int
    """The last trained step."""
    begun_ns: int
    """Begin of the first step, Unix time in nanoseconds."""
    ended_ns: int
    """End of the last step, Unix time in nanoseconds."""
    busy: float
    """Share of the time spent in training."""


class IdleSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span without training, named by its hold."""

    begun_ns: int
    """Begin of the span, Unix time in nanoseconds."""
    ended_ns: int
    """End of the span, Unix time in nanoseconds."""
    hold: str
    """`paused`, `no_trainer`, `experiences` until the next batch is planned, else `prepares`."""
    text: str
    """The hold in words; of a pause, its reason."""
    step: int
    """The next trained step."""


class TimelineMark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the experiment."""

    change: str
    """`published`, `checkpoint`, `resumed_from`, `worker_lost`, `signal_lost`, `signal_regained`, or a state."""
    step: int | None
    """The weight version; null for a moment known by its time only."""
    time_ns: int
    """Time of the moment, Unix time in nanoseconds."""
    text: str
    """Details in words."""
    count: int
    """Number of neighbouring moments of the kind, this newest one included."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Workers, rollouts, steps and idle spans of an experiment between two moments, thinned to buckets."""

    from_ns: int
    """Begin of the timeline, Unix time in nanoseconds."""
    to_ns: int
    """End of the timeline, Unix time in nanoseconds."""
    bucket_s: float
    """Width of a bucket in seconds."""
    workers: list[TimelineWorker]
    """The workers of the span, at most 64."""
    sampled: bool
    """True if the rollouts are too many to be listed; `busy` is then estimated from some of each bucket."""
    rollouts: list[TimelineRollout]
    """Every rollout under way at some moment, by its end; empty if `sampled`."""
    steps: list[TrainedSpan]
    """Trained spans, in order of time."""
    idle: list[IdleSpan]
    """Spans without training, the longest 100 in order of time."""
    marks: list[TimelineMark]
    """Moments of the experiment in the timeline."""


@read("/v1/experiments/{name}/timeline", Timeline, tag="history", name="timeline")
async def timeline(
    daemon: Daemon,
    name: Name,
    from_: Time = None,
    to: Time = None,
    points: Annotated[int, Meta(ge=1, le=MOST_TIMELINE_POINTS)] = 200,
    after: After = None,
) -> Timeline:
    """The work of each worker between two moments, by default from start to end of the experiment: rollouts under
    way, trained steps, idle spans named by their hold, publications and checkpoints.
    """
    from rftd.storage.queries.marks import marks_of

    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        summary = await get_summary(connection, id)
        workers = await list_workers(connection, id)
        table = await daemon.columns.of(connection, id, (_DURATION,))
        over_ns = summary.state_ns if summary.state in ENDED else daemon.clock.now_ns()
        from_ns = _bound(from_, "from", summary.started_ns or summary.submitted_ns)
        to_ns = _bound(to, "to", max(over_ns, from_ns + 1))
        if to_ns <= from_ns:
            raise UsageError("it ends before it begins", field="to", fix="give a moment after `from`")
        width_ns = -(-(to_ns - from_ns) // points)
        begins_ns = list(range(from_ns, to_ns, width_ns))
        rollouts = await rollouts_between(connection, id, from_ns, to_ns)
        busy = _BusyMeans(begins_ns, width_ns, to_ns)
        if rollouts is None:
            samples = await sampled_rollouts(connection, id, begins_ns, to_ns)
            for _, of_bucket in groupby(samples, key=lambda sample: sample.bucket):
                busy.add_samples(list(of_bucket))
        marks = await marks_of(connection, id, table.published)
        gaps = _gaps(table, from_ns, to_ns)
        plans = await plans_of(connection, id, [step for _, _, step in gaps])
    lanes = _laned(rollouts or [])
    for row in rollouts or []:
        busy.add(row.worker, row.begun_ns, row.ended_ns)
    shown = [row for row in workers if row.started_ns <= to_ns and (row.ended_ns or to_ns) >= from_ns][-SHOWN_LANES:]
    return Timeline(
        from_ns=from_ns,
        to_ns=to_ns,
        bucket_s=width_ns / 1e9,
        workers=[_worker(row, busy, lanes) for row in shown],
        sampled=rollouts is None,
        rollouts=lanes,
        steps=_steps(table, from_ns, to_ns, points),
        idle=[span for gap in gaps for span in _named(gap, plans, _pauses(marks, to_ns), workers)],
        marks=_thinned([mark for mark in marks if from_ns <= mark.time_ns <= to_ns], from_ns, width_ns),
    )


def _bound(text: str | None, field: str, default_ns: int) -> int:
    """Returns a bound of the timeline as Unix time in nanoseconds, `default_ns` for None. Raises UsageError."""
    time_ns = time_of(text, field)
    return default_ns if time_ns is None else time_ns


class _BusyMeans:
    """The mean number of rollouts under way, for each worker and bucket."""

    def __init__(self, begins_ns: Sequence[int], width_ns: int, end_ns: int) -> None:
        self._begins_ns = begins_ns
        self._width_ns = width_ns
        self._end_ns = end_ns
        self._sums: dict[str, list[float]] = {}

    def of(self, worker: str) -> list[float]:
        """Returns the means of a worker."""
        return [round(mean, 3) for mean in self._sums.get(worker, [0.0] * len(self._begins_ns))]

    def add(self, worker: str, begun_ns: int, ended_ns: int) -> None:
        """Adds a rollout to the buckets of its time."""
        sums = self._sums.setdefault(worker, [0.0] * len(self._begins_ns))
        first = max(0, (begun_ns - self._begins_ns[0]) // self._width_ns)
        for bucket in range(first, len(sums)):
            begin = self._begins_ns[bucket]
            end = min(begin + self._width_ns, self._end_ns)
            if begin >= ended_ns:
                break
            sums[bucket] += max(0, min(end, ended_ns) - max(begin, begun_ns)) / (end - begin)

    def add_samples(self, samples: Sequence[RolloutSample]) -> None:
        """Adds the first rollouts of one bucket: their duration per time is the mean under way (Little's law)."""
        bucket = samples[0].bucket
        begin_ns = self._begins_ns[bucket]
        covered_ns = min(self._width_ns, self._end_ns - begin_ns)
        if sum(sample.rollouts for sample in samples) >= SAMPLE:
            covered_ns = max(1, max(sample.last_ns for sample in samples) - begin_ns)
        for sample in samples:
            sums = self._sums.setdefault(sample.worker, [0.0] * len(self._begins_ns))
            sums[bucket] += sample.seconds * 1e9 / covered_ns


def _laned(rows: Iterable[RolloutTime]) -> list[TimelineRollout]:
    """Returns rollouts with the lowest lane of their worker free at their begin."""
    lanes: dict[str, list[tuple[int, int]]] = {}
    free: dict[str, list[int]] = {}
    chosen: dict[tuple[str, int, str], int] = {}
    for row in sorted(rows, key=lambda row: (row.begun_ns, row.group, row.rollout)):
        running = lanes.setdefault(row.worker, [])
        unused = free.setdefault(row.worker, [])
        while running and running[0][0] <= row.begun_ns:
            heapq.heappush(unused, heapq.heappop(running)[1])
        lane = heapq.heappop(unused) if unused else len(running)
        heapq.heappush(running, (row.ended_ns, lane))
        chosen[row.group, row.rollout, row.worker] = lane
    return [TimelineRollout(lane=chosen[row.group, row.rollout, row.worker], rollout=row) for row in rows]


def _worker(row: WorkerRow, busy: _BusyMeans, lanes: Sequence[TimelineRollout]) -> TimelineWorker:
    """Returns a worker with its number of lanes and, for an explorer, the mean rollouts under way in each bucket."""
    own = [laned.lane for laned in lanes if laned.rollout.worker == row.id]
    return TimelineWorker(
        id=row.id,
        role=row.role,
        slot=row.slot,
        started_ns=row.started_ns,
        ended_ns=row.ended_ns,
        lanes=max(own, default=-1) + 1,
        busy=[] if row.role == "trainer" else busy.of(row.id),
    )


def _spans(table: StepTable, from_ns: int, to_ns: int) -> list[tuple[int, int, int]]:
    """Returns the begin, the end and the number of each step trained at some moment of a span."""
    import numpy as np

    ended = table.completed_ns
    begun = ended - (np.nan_to_num(table.figures[_DURATION], posinf=0.0) * 1e9).astype(np.int64)
    inside = (ended >= from_ns) & (begun <= to_ns)
    columns = (begun[inside].tolist(), ended[inside].tolist(), table.step[inside].tolist())
    return list(zip(*columns, strict=True))


def _steps(table: StepTable, from_ns: int, to_ns: int, points: int) -> list[TrainedSpan]:
    """Returns the trained steps, neighbours as one span if they are more than `points`."""
    spans = _spans(table, from_ns, to_ns)
    size = max(1, -(-len(spans) // points))
    trained = []
    for first in range(0, len(spans), size):
        several = spans[first : first + size]
        begun_ns = several[0][0]
        ended_ns = several[-1][1]
        busy_ns = sum(end - begin for begin, end, _ in several)
        busy = min(1.0, busy_ns / (ended_ns - begun_ns)) if ended_ns > begun_ns else 1.0
        trained.append(
            TrainedSpan(
                first_step=several[0][2],
                last_step=several[-1][2],
                begun_ns=begun_ns,
                ended_ns=ended_ns,
                busy=round(busy, 4),
            )
        )
    return trained


def _gaps(table: StepTable, from_ns: int, to_ns: int) -> list[tuple[int, int, int]]:
    """Returns the begin, the end and the next step of the longest spans without training, in order of time."""
    gaps = []
    free_ns = from_ns
    step = 0
    for begun_ns, ended_ns, step in _spans(table, from_ns, to_ns):
        if begun_ns > free_ns:
            gaps.append((free_ns, begun_ns, step))
        free_ns = max(free_ns, ended_ns)
    if to_ns > free_ns:
        following = bisect_right(table.step.tolist(), step) if step else 0
        gaps.append((free_ns, to_ns, int(table.step[following]) if following < len(table.step) else step + 1))
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:SHOWN_IDLE]
    return sorted(longest)


def _pauses(marks: Sequence[CourseMark], to_ns: int) -> list[tuple[int, int, str]]:
    """Returns the begin, the end and the reason of each pause."""
    states = [mark for mark in marks if mark.change in {*_PAUSES, *ENDED, "running"}]
    moments_ns = [*(mark.time_ns for mark in states), to_ns]
    spans = zip(states, moments_ns[1:], strict=True)
    return [(mark.time_ns, end_ns, mark.text) for mark, end_ns in spans if mark.change in _PAUSES]


def _named(
    gap: tuple[int, int, int],
    plans: dict[int, int],
    pauses: Sequence[tuple[int, int, str]],
    workers: Sequence[WorkerRow],
) -> list[IdleSpan]:
    """Returns a span without training in parts, each named by its hold."""
    begin_ns, end_ns, step = gap
    trainers = [(row.started_ns, row.ended_ns or end_ns) for row in workers if row.role == "trainer"]
    planned_ns = plans.get(step, end_ns)
    moments = {begin_ns, end_ns, planned_ns}
    moments |= {moment for begin, end, _ in pauses for moment in (begin, end)}
    moments |= {moment for living in trainers for moment in living}
    borders = sorted(moment for moment in moments if begin_ns <= moment <= end_ns)
    parts: list[IdleSpan] = []
    for begin, end in pairwise(borders):
        pause = next((text for first, last, text in pauses if first <= begin and end <= last), None)
        if pause is not None:
            hold = "paused"
            text = pause or "paused"
        elif not any(first <= begin and end <= last for first, last in trainers):
            hold = "no_trainer"
            text = "no trainer is running"
        elif end <= planned_ns:
            hold = "experiences"
            text = f"no batch of step {step} is planned yet"
        else:
            hold = "prepares"
            text = f"step {step} is planned; the trainer publishes, saves or assembles it"
        if parts and (parts[-1].hold, parts[-1].text) == (hold, text):
            begin = parts.pop().begun_ns
        parts.append(IdleSpan(begun_ns=begin, ended_ns=end, hold=hold, text=text, step=step))
    return parts


def _thinned(marks: Sequence[CourseMark], from_ns: int, width_ns: int) -> list[TimelineMark]:
    """Returns at most one mark for each kind and bucket."""
    from rftd.storage.queries.marks import merged

    buckets = [(mark.time_ns - from_ns) // width_ns for mark in marks]
    return [
        TimelineMark(change=mark.change, step=mark.step, time_ns=mark.time_ns, text=mark.text, count=mark.count)
        for _, mark in sorted(merged(marks, buckets), key=lambda numbered: numbered[0])
    ]
