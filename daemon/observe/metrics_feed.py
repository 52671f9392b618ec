"""`MetricsFeed`: events to metrics, fed with each record once, in large batches, by
`rftd.daemon.observe.metrics_follower`.

Experiences far outnumber other events: their figures are summed first, and then added once.
"""

from __future__ import annotations

from collections import Counter as Counting
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from prometheus_client import Counter, Gauge

from rftd.daemon.observe.metrics_answers import AnswerTally, LeaseAnswer
from rftd.daemon.observe.metrics_counted import Counted, SeenPlans
from rftd.daemon.observe.metrics_groups import OpenGroups
from rftd.daemon.observe.metrics_spec import Declared, declared_by
from rftd.daemon.observe.metrics_void import VoidRecords
from rftd.ops.errors import NonFiniteLossError, RolloutTimeoutError
from rftd.ops.metrics import Metrics, label_of
from rftd.ops.tracing.trace_context import TraceContext, exported
from rftd.streams.events import batch, checkpoint, experience, experiment, step, task, weights, worker
from rftd.streams.events.registry import Event
from rftd.streams.folds.groups import GIVEN_UP
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.sync_failure import SyncFailure, label_of_failure
from rftd.streams.folds.worker_state import label_of_state
from rftd.streams.log.envelope import Decoded
from rftd.streams.spec.spec import ExperimentSpec

M = TypeVar("M", Counter, Gauge)
"""Type of a metric."""

KEPT_AFTER_END_NS: Final = 3600 * 10**9
"""Nanoseconds for which the series of an ended experiment are kept, so that a last scrape sees its end: an hour."""
_MOST_BIRTHS: Final = 65_536
"""Maximum number of experiences with remembered production times, for their age when planned."""

_ENDS: Final = (
    experiment.ExperimentRejected,
    experiment.ExperimentCancelled,
    experiment.ExperimentCompleted,
    experiment.ExperimentFailed,
)
"""Events ending an experiment."""
_OVERDUE_OUTCOMES: Final = ("goes_on", "waits")
"""Metric labels of an overdue window: explorers continue with older weights, or wait."""


class Exemplified(NamedTuple):
    """Figures of a traced rollout, to be linked from histogram buckets."""

    context: TraceContext
    """Trace of the rollout."""
    time_ns: int
    """Time of the rollout's record, Unix time in nanoseconds."""
    duration_s: float
    """Duration of the rollout in seconds."""
    reward: float
    """Reward of the rollout."""
    length: float
    """Number of response tokens."""


class _RolloutCounts:
    """Experiences of one stage that `settle` has not added to the metrics yet."""

    def __init__(self, id: UUID, stage: int) -> None:
        """Counts the experiences of stage number `stage` of experiment `id`."""
        self.id = id
        self.stage = stage
        self.stopped = 0
        """Experiences that ended by themselves."""
        self.prompts_cut = 0
        """Experiences with a cut prompt."""
        self.prompt_tokens = 0
        """Sum of prompt tokens."""
        self.tokens = 0
        """Sum of prompt and response tokens."""
        self.durations_s: list[float] = []
        """Duration of each rollout in seconds."""
        self.lengths: list[float] = []
        """Response tokens of each experience."""
        self.turns: list[float] = []
        """Number of the model's answers in each rollout that counted its answers."""
        self.rewards: list[float] = []
        """Reward of each experience."""
        self.exemplar: Exemplified | None = None
        """The newest traced one."""


class MetricsFeed:
    """Counts events in the metrics, with the state needed for it: names, production times, last heartbeats."""

    def __init__(self, metrics: Metrics) -> None:
        """Counts into `metrics`."""
        self.metrics = metrics
        self._names: dict[UUID, str] = {}
        """Metric label of each known experiment."""
        self._named = Counting[str]()
        """Number of experiments ever with each name, for labels such as NAME@2."""
        self.declared: dict[UUID, Declared] = {}
        """The declared part of each known experiment."""
        self._methods: dict[UUID, str] = {}
        """Weight channel of each experiment's newest version."""
        self._ended_ns: dict[UUID, int] = {}
        """End of each ended experiment, in nanoseconds since 1970."""
        self._rollouts: dict[tuple[bytes, int], _RolloutCounts] = {}
        """Experiences not yet added to the metrics, by experiment and stage."""
        self._produced_ns: OrderedDict[int, int] = OrderedDict()
        """Production times by the id as a number: a UUID's hash is computed in Python, an int's in C."""
        self._states: dict[UUID, tuple[str, int]] = {}
        """State of each worker at its last heartbeat, with the time."""
        self._beats: dict[UUID, worker.Heartbeat] = {}
        """The last heartbeat of each live worker."""
        self.groups = OpenGroups()
        """Groups leased and not closed."""
        self._plans = SeenPlans()
        """Plans read since the daemon's start."""
        self.void = VoidRecords(metrics)
        """Counts of records without effect."""
        self.answers = AnswerTally(self.void)
        """Check that answers to leases come from the holders of the leases."""
        self._series: dict[tuple[object, ...], Any] = {}
        """Series by metric and labels: a lookup in the metric itself costs more than counting."""
        self._handlers: Final[dict[type[Event], Callable[[str, Decoded, Any], None]]] = {
            experience.RolloutFailed: self._count_failed_rollout,
            task.TaskLeased: self._count_lease,
            task.GroupClosed: self._count_closed_group,
            batch.BatchPlanned: self._count_plan,
            batch.ExperienceRetired: self._count_retired,
            step.StepCompleted: self._count_step,
            checkpoint.CheckpointCommitted: self._time_checkpoint,
            weights.WeightsPublished: self._count_publication,
            weights.WeightsRetired: self._count_lost_weights,
            weights.WeightsActivated: self._time_activation,
            weights.WeightsOverdue: self._count_overdue,
            worker.Heartbeat: self._count_heartbeat,
            worker.WorkerStopped: self._count_stopped,
            worker.WorkerLost: self._count_lost_worker,
        }
        """Function counting each type of event."""

    def recall(self, decoded: Decoded) -> None:
        """Records the name or state of an experiment from a record before the daemon's start, counting nothing."""
        event = decoded.event
        id = decoded.head.experiment
        if id is None:
            return
        if id in self._ended_ns or (id in self._names and isinstance(event, experiment.ExperimentSubmitted)):
            return  # an ended experiment stays ended, and the second submission is the other half
        if isinstance(event, experiment.ExperimentSubmitted):
            self._name(id, event.spec)
            self._begin(id)
        if isinstance(event, _ENDS) and id in self._names:
            self._ended_ns[id] = decoded.head.time_ns
            self.groups.ended(id)

    def remember(self, id: UUID, spine: Spine) -> None:
        """Adds an experiment from the registry: label, specification, and end, if it has ended."""
        if spine.spec is not None and spine.status is not None:
            self._name(id, spine.spec)
            if spine.status.ended:
                self._ended_ns[id] = spine.status_ns
            else:
                self._begin(id)

    def _begin(self, id: UUID) -> None:
        """Starts rare counts at zero: in a series beginning at one, Prometheus sees no increase."""
        self._series_of(self.metrics.nonfinite_steps, self._label(id))
        self._series_of(self.metrics.zero_variance_groups, self._label(id))
        for then in _OVERDUE_OUTCOMES:
            self._series_of(self.metrics.weight_sync_overdue, self._label(id), then)
        for method in self.declared[id].methods if id in self.declared else ():
            for reason in SyncFailure:
                self._series_of(self.metrics.weight_sync_failures, self._label(id), method, reason.value)

    def _name(self, id: UUID, spec: ExperimentSpec) -> None:
        """Gives an experiment its metric label; a second half keeps the label of the first."""
        if id in self._names:
            return  # its other half
        self._named[spec.name] += 1
        self._names[id] = label_of(spec.name, self._named[spec.name])
        self.declared[id] = declared_by(id, spec)

    def produced(
        self,
        id: bytes,
        time_ns: int,
        event: Counted | experience.ExperienceProduced,
        traceparent: str | None = None,
    ) -> None:
        """Records an experience of the experiment with id `id`; `settle` adds it to the metrics."""
        length = len(event.tokens)
        stage_key = (id, event.stage)
        rollouts = self._rollouts.get(stage_key)
        if rollouts is None:
            rollouts = self._rollouts[stage_key] = _RolloutCounts(UUID(bytes=id), event.stage)
        if event.finish == "stop":
            rollouts.stopped += 1
        elif event.finish == "prompt_truncated":
            rollouts.prompts_cut += 1
        rollouts.prompt_tokens += event.prompt_tokens
        rollouts.tokens += length
        rollouts.durations_s.append(event.duration_s)
        rollouts.lengths.append(length - event.prompt_tokens)
        if event.turns:
            rollouts.turns.append(event.turns)
        rollouts.rewards.append(event.reward)
        self._produced_ns[event.experience.int] = time_ns
        if (context := exported(traceparent)) is not None:
            rollouts.exemplar = Exemplified(context, time_ns, event.duration_s, event.reward, rollouts.lengths[-1])

    def observe(self, decoded: Decoded) -> None:
        """Counts one effective record; experiences have to be recorded before the events naming them."""
        event = decoded.event
        id = decoded.head.experiment
        if isinstance(event, worker.RecordDeadLettered):
            self.metrics.dead_letters.labels(event.stream, event.consumer, event.code).inc()
        if id is not None and isinstance(event, experience.ExperienceProduced):
            count = partial(self.produced, id.bytes, decoded.head.time_ns, event, decoded.head.traceparent)
            self.answers.take(_lease_answer(id, decoded, event.lease), count)
            return
        if id is not None and not self._plans.counts(id, event):
            return
        handler = self._handlers.get(type(event))
        if isinstance(event, task.TaskLeased | task.EvalLeased):
            self.answers.leased(event)
        if handler is None:
            self.recall(decoded)
        elif id is not None and isinstance(event, experience.RolloutFailed):
            self.answers.take(
                _lease_answer(id, decoded, event.lease), partial(handler, self._label(id), decoded, event)
            )
        elif id is not None:
            handler(self._label(id), decoded, event)

    def settle(self) -> None:
        """Adds the experiences recorded since the last call to the metrics, and the rollouts cancelled; called after
        each batch of records.
        """
        self.answers.settle()
        for rollouts in self._rollouts.values():
            self._add_rollouts(rollouts)
        self._rollouts.clear()
        for id, stage, count in self.groups.settle(self._produced_ns):
            self._series_of(self.metrics.rollouts, self._label(id), self._taskset(id, stage), "cancelled").inc(count)
        # Bounded: an experience may wait forever, and its entry would wait with it.
        while len(self._produced_ns) > _MOST_BIRTHS:
            self._produced_ns.popitem(last=False)

    def expire(self, now_ns: int) -> None:
        """Drops the series of experiments ended more than an hour ago, together with their names and declared parts."""
        for id in [id for id, ended_ns in self._ended_ns.items() if now_ns - ended_ns > KEPT_AFTER_END_NS]:
            self.metrics.forget(self._label(id))
            # All series, not only the experiment's: keys contain its label at any position, and an end is rare.
            self._series.clear()
            for mapping in (self._ended_ns, self._names, self.declared, self._methods):
                mapping.pop(id, None)
            self._plans.forget(id)

    def _series_of(self, metric: M, *labels: str) -> M:
        """Returns the series of a metric with these labels."""
        key = (metric, *labels)
        series: M | None = self._series.get(key)
        if series is None:
            series = self._series[key] = metric.labels(*labels)
        return series

    def _label(self, id: UUID) -> str:
        """Returns the metric label of an experiment; the experiment's id if the name is unknown."""
        return self._names.get(id) or str(id)

    def _taskset(self, id: UUID | None, stage: int) -> str:
        """Returns the taskset label of a stage; empty if unknown."""
        assert id is not None
        declared = self.declared.get(id)
        declared_stage = declared.stage(stage) if declared is not None else None
        return declared_stage.taskset if declared_stage is not None else ""

    def _method(self, id: UUID | None) -> str:
        """Returns the weight channel of the newest version, as far as this daemon knows."""
        assert id is not None
        declared = self.declared.get(id)
        return self._methods.get(id) or next(iter(declared.methods if declared is not None else ()), "")

    def _add_rollouts(self, rollouts: _RolloutCounts) -> None:
        """Adds the collected experiences of one stage to the metrics."""
        metrics = self.metrics
        name = self._label(rollouts.id)
        taskset = self._taskset(rollouts.id, rollouts.stage)
        count = len(rollouts.rewards)
        truncated = count - rollouts.stopped - rollouts.prompts_cut
        outcomes = {"ok": rollouts.stopped, "truncated": truncated, "prompt_truncated": rollouts.prompts_cut}
        for outcome, ended in outcomes.items():
            if ended:
                self._series_of(metrics.rollouts, name, taskset, outcome).inc(ended)
        metrics.rollout_duration.labels(name, taskset).observe(rollouts.durations_s)
        metrics.rollout_reward.labels(name, taskset).observe(rollouts.rewards)
        metrics.rollout_turns.labels(name, taskset).observe(rollouts.turns)
        metrics.response_tokens.labels(name).observe(rollouts.lengths)
        if rollouts.exemplar is not None:
            self._link_exemplar(name, taskset, rollouts.exemplar)
        self._series_of(metrics.rollout_tokens, name, "prompt").inc(rollouts.prompt_tokens)
        self._series_of(metrics.rollout_tokens, name, "completion").inc(
            max(0, rollouts.tokens - rollouts.prompt_tokens)
        )
        self._series_of(metrics.experiences, name, "produce", "ok").inc(count)
        self._series_of(metrics.reward_gained, name).inc(sum(reward for reward in rollouts.rewards if reward > 0))
        self._series_of(metrics.reward_lost, name).inc(-sum(reward for reward in rollouts.rewards if reward < 0))

    def _link_exemplar(self, name: str, taskset: str, traced: Exemplified) -> None:
        """Links a traced rollout to the histogram buckets of its figures."""
        trace_id = f"{traced.context.trace_id:032x}"
        time_s = traced.time_ns / 1e9
        metrics = self.metrics
        metrics.rollout_duration.labels(name, taskset).exemplify(traced.duration_s, trace_id, time_s)
        metrics.rollout_reward.labels(name, taskset).exemplify(traced.reward, trace_id, time_s)
        metrics.response_tokens.labels(name).exemplify(traced.length, trace_id, time_s)

    def _count_failed_rollout(self, name: str, decoded: Decoded, event: experience.RolloutFailed) -> None:
        """Counts a failed rollout, as a time-out or an error."""
        self.groups.failed(event)
        outcome = "timeout" if event.code == RolloutTimeoutError.code else "error"
        self._series_of(self.metrics.rollouts, name, self._taskset(decoded.head.experiment, event.stage), outcome).inc()

    def _count_lease(self, name: str, decoded: Decoded, event: task.TaskLeased) -> None:
        """Counts a lease, as `second` if its rollouts are under way under another lease too, else as `first`."""
        id = decoded.head.experiment
        assert id is not None
        if id not in self._ended_ns:
            self.groups.leased(id, event)
        self._series_of(self.metrics.leases, name, "second" if event.reissue else "first").inc()

    def _count_closed_group(self, name: str, decoded: Decoded, event: task.GroupClosed) -> None:
        """Counts a closed group if it was given up, or if all rewards are equal."""
        self.groups.closed(event)
        if event.code in GIVEN_UP:
            self._series_of(self.metrics.groups_given_up, name, event.code).inc()
        if len(event.members) > 1 and len({member.reward for member in event.members}) == 1:
            self._series_of(self.metrics.zero_variance_groups, name).inc()

    def _count_plan(self, name: str, decoded: Decoded, event: batch.BatchPlanned) -> None:
        """Counts the experiences of a plan, with their age and staleness."""
        born_ns = [
            self._produced_ns.pop(planned_experience.experience.int, None) for planned_experience in event.experiences
        ]
        ages_s = [max(0.0, (event.decided_at_ns - then_ns) / 1e9) for then_ns in born_ns if then_ns is not None]
        self.metrics.age.labels(name).observe(ages_s)
        self.metrics.staleness.labels(name).observe(
            [planned_experience.staleness_versions for planned_experience in event.experiences]
        )
        self._series_of(self.metrics.experiences, name, "plan", "ok").inc(len(event.experiences))

    def _count_retired(self, name: str, decoded: Decoded, event: batch.ExperienceRetired) -> None:
        """Counts retired experiences by reason."""
        self._series_of(self.metrics.experiences, name, "retire", event.reason).inc(len(event.experiences))
        for id in event.experiences:
            self._produced_ns.pop(id.int, None)

    def _count_step(self, name: str, decoded: Decoded, event: step.StepCompleted) -> None:
        """Counts a training step with its duration and tokens."""
        metrics = self.metrics
        self._series_of(metrics.train_steps, name).inc()
        metrics.train_step_duration.labels(name).observe([event.duration_s])
        if (context := exported(decoded.head.traceparent)) is not None:
            trace_id = f"{context.trace_id:032x}"
            metrics.train_step_duration.labels(name).exemplify(event.duration_s, trace_id, decoded.head.time_ns / 1e9)
        self._series_of(metrics.train_tokens, name).inc(event.tokens)
        if event.skipped:
            self._series_of(metrics.nonfinite_steps, name).inc()

    def _count_publication(self, name: str, decoded: Decoded, event: weights.WeightsPublished) -> None:
        """Counts the bytes and seconds of a published weight version."""
        assert decoded.head.experiment is not None
        self._methods[decoded.head.experiment] = event.method
        self._series_of(self.metrics.weight_sync_bytes, name, event.method).inc(event.size_bytes)
        if event.duration_s:
            self.metrics.weight_sync_duration.labels(name, event.method, "publish").observe(event.duration_s)

    def _time_activation(self, name: str, decoded: Decoded, event: weights.WeightsActivated) -> None:
        """Adds the seconds of an activation, by phase: transfer, load, resume."""
        method = self._method(decoded.head.experiment)
        load_s = max(0.0, event.duration_s - event.transfer_s - event.resume_s)
        for phase, spent_s in (("transfer", event.transfer_s), ("load", load_s), ("resume", event.resume_s)):
            if spent_s:  # an engine may not report a phase
                self.metrics.weight_sync_duration.labels(name, method, phase).observe(spent_s)

    def _count_lost_weights(self, name: str, decoded: Decoded, event: weights.WeightsRetired) -> None:
        """Counts a lost weight version; other retirements are not counted."""
        if event.lost:
            method = self._method(decoded.head.experiment)
            self._series_of(self.metrics.weight_sync_failures, name, method, SyncFailure.LOST.value).inc()

    def _time_checkpoint(self, name: str, decoded: Decoded, event: checkpoint.CheckpointCommitted) -> None:
        """Adds the duration of a checkpoint, if known."""
        if event.duration_s:
            self.metrics.checkpoint_duration.labels(name).observe([event.duration_s])

    def _count_overdue(self, name: str, decoded: Decoded, event: weights.WeightsOverdue) -> None:
        """Counts a window whose weights came too late."""
        self._series_of(self.metrics.weight_sync_overdue, name, _OVERDUE_OUTCOMES[event.version < 0]).inc()

    def _count_heartbeat(self, name: str, decoded: Decoded, event: worker.Heartbeat) -> None:
        """Records a worker's state and usage, and the seconds spent in its former state."""
        now_ns = decoded.head.time_ns
        self._series_of(self.metrics.heartbeat_timestamp, name, event.role).set(now_ns / 1e9)
        state, since_ns = self._states.get(event.worker, (label_of_state(event.state), now_ns))
        self._series_of(self.metrics.role_state_seconds, name, event.role, state).inc(max(0, now_ns - since_ns) / 1e9)
        self._states[event.worker] = (label_of_state(event.state), now_ns)
        self._count_usage(name, self._method(decoded.head.experiment), event)

    def _count_usage(self, name: str, method: str, beat: worker.Heartbeat) -> None:
        """Adds the worker's usage since its last heartbeat; the first one seen is only the starting point."""
        worker_labels = (beat.role, "" if beat.slot < 0 else str(beat.slot))
        before = self._beats.get(beat.worker, beat)
        self._beats[beat.worker] = beat
        # Both may fall: a child process has ended, or a counting engine was reopened.
        self._series_of(self.metrics.worker_cpu, name, *worker_labels).inc(max(0.0, beat.cpu_s - before.cpu_s))
        self._series_of(self.metrics.worker_tokens, name, *worker_labels).inc(
            max(0, beat.tokens_total - before.tokens_total)
        )
        if beat.spans_dropped_total > before.spans_dropped_total:
            dropped = beat.spans_dropped_total - before.spans_dropped_total
            self._series_of(self.metrics.spans_dropped, name, *worker_labels).inc(dropped)
        if beat.memory_bytes:
            self._series_of(self.metrics.worker_memory, name, *worker_labels).set(beat.memory_bytes)
        counted = dict(before.sync_failures)
        for reason, count in beat.sync_failures:
            failures = self._series_of(self.metrics.weight_sync_failures, name, method, label_of_failure(reason))
            failures.inc(max(0, count - counted.get(reason, 0)))

    def _count_stopped(self, name: str, decoded: Decoded, event: worker.WorkerStopped) -> None:
        """Counts a worker stopped by a non-finite loss, and forgets the worker."""
        self._forget_worker(name, event)
        if event.code == NonFiniteLossError.code:
            self._series_of(self.metrics.nonfinite_steps, name).inc()

    def _count_lost_worker(self, name: str, decoded: Decoded, event: worker.WorkerLost) -> None:
        """Forgets a lost worker."""
        self._forget_worker(name, event)

    def _forget_worker(self, name: str, event: worker.WorkerStopped | worker.WorkerLost) -> None:
        """Forgets a worker's state, and sets its memory to zero."""
        self._states.pop(event.worker, None)
        beat = self._beats.pop(event.worker, None)
        if beat is not None and beat.memory_bytes:
            self._series_of(self.metrics.worker_memory, name, beat.role, "" if beat.slot < 0 else str(beat.slot)).set(0)


def _lease_answer(experiment: UUID, decoded: Decoded, lease: UUID) -> LeaseAnswer:
    """Builds the answer to a lease from the answer's record."""
    return LeaseAnswer(experiment, lease, decoded.head.source, decoded.partition, decoded.offset)
