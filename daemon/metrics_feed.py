"""`MetricsFeed`: events to metrics. `rftd.daemon.metrics_follower` shows it each record once, many at a time.

There are far more experiences than anything else: what is counted of them is added up first, and then added once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from prometheus_client import Counter, Gauge

from rftd.ops.errors import NonFiniteLossError, RolloutTimeoutError
from rftd.ops.metrics import Metrics
from rftd.streams.bounds import Count, Finite, Index, Seconds
from rftd.streams.codec import Decoded
from rftd.streams.events import batch, checkpoint, experience, experiment, step, task, weights, worker
from rftd.streams.events.registry import Event
from rftd.streams.folds.groups import GIVEN_UP
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec import ExperimentSpec

M = TypeVar("M", Counter, Gauge)

KEPT_AFTER_END_NS: Final = 3600 * 10**9
"""Series of an experiment that ended stay for an hour, so that the last scrape sees its end."""
_BORN: Final = 65_536
"""The most experiences whose time of production is remembered, for their age when they are planned."""

_LIFE: Final[dict[type[Event], Status]] = {
    experiment.ExperimentSubmitted: Status.SUBMITTED,
    experiment.ExperimentAccepted: Status.QUEUED,
    experiment.ExperimentRejected: Status.REJECTED,
    experiment.ExperimentStarted: Status.RUNNING,
    experiment.ExperimentPaused: Status.PAUSED,
    experiment.ExperimentResumed: Status.RUNNING,
    experiment.ExperimentCancelled: Status.CANCELLED,
    experiment.ExperimentCompleted: Status.COMPLETED,
    experiment.ExperimentFailed: Status.FAILED,
}
_LOSSES: Final = {
    "actor/final_loss": "total",
    "actor/pg_loss": "pg",
    "actor/kl_loss": "kl",
    "actor/entropy_loss": "entropy",
    "actor/sft_loss": "sft",
}
_MASKED: Final = {"correction/masked_positive": "positive", "correction/masked_negative": "negative"}
_CLIPS: Final = {"actor/pg_clipfrac": "high", "actor/pg_clipfrac_lower": "low"}


class Shape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The shape of an array, without its bytes."""

    dtype: str
    shape: tuple[Count, ...]

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


class Counted(Event, frozen=True, kw_only=True, gc=False):
    """The fields of `experience.produced` that are counted, under the same names."""

    experience: UUID
    stage: Index
    tokens: Shape
    prompt_tokens: Count
    reward: Finite
    finish: str = "stop"
    duration_s: Seconds = 0.0


class _RolloutCounts:
    """Experiences of one stage that have been shown and not been counted yet."""

    def __init__(self, id: UUID, stage: int) -> None:
        self.id = id
        self.stage = stage
        self.stopped = 0
        self.prompt_tokens = 0
        self.tokens = 0
        self.newest_ns = 0
        self.durations_s: list[float] = []
        self.rewards: list[float] = []


class MetricsFeed:
    """Folds what the metrics need and the events do not carry: names, births, who was in which state."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._names: dict[UUID, str] = {}
        self._first: dict[str, UUID] = {}
        """The experiment that has each name for itself."""
        self._tasksets: dict[UUID, tuple[str, ...]] = {}
        self._methods: dict[UUID, str] = {}
        self._ended_ns: dict[UUID, int] = {}
        self._rollouts: dict[tuple[bytes, int], _RolloutCounts] = {}
        self._born: OrderedDict[int, int] = OrderedDict()
        """Times of production by the id as a number: a UUID's hash is computed in Python, an int's in C."""
        self._first_uses: dict[UUID, int] = {}
        self._states: dict[UUID, tuple[str, int]] = {}
        self._series: dict[tuple[object, ...], Any] = {}
        """Series by metric and labels: looking one up in the metric itself costs more than counting."""
        self._handlers: Final[dict[type[Event], Callable[[str, Decoded, Any], None]]] = {
            experience.RolloutFailed: self._failed,
            task.TaskLeased: self._leased,
            task.GroupClosed: self._closed,
            batch.BatchPlanned: self._planned,
            batch.BatchAbandoned: self._abandoned,
            batch.ExperienceRetired: self._retired,
            step.StepCompleted: self._step,
            step.EvalCompleted: self._evaluated,
            weights.WeightsPublished: self._published,
            weights.WeightsActivated: self._activated,
            weights.WeightsOverdue: self._overdue,
            checkpoint.CheckpointCommitted: self._checkpointed,
            worker.Heartbeat: self._heartbeat,
            worker.WorkerStopped: self._stopped,
            worker.WorkerLost: self._lost,
        }

    def recall(self, decoded: Decoded) -> None:
        """Takes in the name or the state of an experiment from a record of its past; counts nothing."""
        event = decoded.event
        id = decoded.head.experiment
        if id is None:
            return
        if id in self._ended_ns or (id in self._names and isinstance(event, experiment.ExperimentSubmitted)):
            return  # nothing leaves an end, and the second submission is the other half
        if isinstance(event, experiment.ExperimentSubmitted):
            self._name(id, event.spec)
        if (status := _LIFE.get(type(event))) is not None:
            self._stands(id, status, decoded.head.time_ns)

    def remember(self, id: UUID, spine: Spine) -> None:
        """Takes up an experiment whose past somebody else has read."""
        if spine.spec is not None and spine.status is not None:
            self._name(id, spine.spec)
            self._stands(id, spine.status, spine.status_ns)

    def _name(self, id: UUID, spec: ExperimentSpec) -> None:
        if id in self._names:
            return  # its other half
        first = self._first.setdefault(spec.name, id) == id
        self._names[id] = spec.name if first else f"{spec.name}@{id.hex[-8:]}"
        self._tasksets[id] = tuple(stage.taskset.name if stage.taskset else "" for stage in spec.stages)

    def _stands(self, id: UUID, status: Status, since_ns: int) -> None:
        for each in Status:
            self.metrics.experiment_state.labels(self._label(id), each.value).set(float(each is status))
        if status.ended:
            self._ended_ns[id] = since_ns

    def produced(self, id: bytes, time_ns: int, event: Counted | experience.ExperienceProduced) -> None:
        """Takes in an experience of experiment `id`; `settle` adds it to the metrics."""
        place = (id, event.stage)
        rollouts = self._rollouts.get(place)
        if rollouts is None:
            rollouts = self._rollouts[place] = _RolloutCounts(UUID(bytes=id), event.stage)
        if event.finish == "stop":
            rollouts.stopped += 1
        rollouts.prompt_tokens += event.prompt_tokens
        rollouts.tokens += len(event.tokens)
        rollouts.durations_s.append(event.duration_s)
        rollouts.rewards.append(event.reward)
        rollouts.newest_ns = time_ns
        self._born[event.experience.int] = time_ns

    def observe(self, decoded: Decoded) -> None:
        """Takes in one effective record, new in the log; an experience before what happened to it."""
        event = decoded.event
        id = decoded.head.experiment
        if isinstance(event, worker.RecordDeadLettered):
            self.metrics.dead_letters.labels(event.stream, event.consumer, event.code).inc()
        if id is not None and isinstance(event, experience.ExperienceProduced):
            self.produced(id.bytes, decoded.head.time_ns, event)
            return
        self.recall(decoded)
        if id is not None and (handler := self._handlers.get(type(event))) is not None:
            handler(self._label(id), decoded, event)

    def settle(self) -> None:
        """Adds the experiences that it was shown to the metrics."""
        for rollouts in self._rollouts.values():
            self._add(rollouts)
        self._rollouts.clear()
        # Bounded: an experience may wait for ever, and its entry would wait with it.
        while len(self._born) > _BORN:
            self._born.popitem(last=False)

    def expire(self, now_ns: int) -> None:
        """Drops the series of experiments that ended more than an hour ago."""
        for id in [id for id, ended_ns in self._ended_ns.items() if now_ns - ended_ns > KEPT_AFTER_END_NS]:
            self.metrics.forget(self._label(id))
            # All of them, not only those of the experiment: keys hold its label at any place, and an end is rare.
            self._series.clear()
            if self._first.get(name := self._label(id)) == id:
                del self._first[name]
            for known in (self._ended_ns, self._names, self._tasksets, self._methods):
                known.pop(id, None)

    def _of(self, metric: M, *labels: str) -> M:
        """The series of a metric with these labels."""
        key = (metric, *labels)
        found: M | None = self._series.get(key)
        if found is None:
            found = self._series[key] = metric.labels(*labels)
        return found

    def _label(self, id: UUID) -> str:
        return self._names.get(id) or str(id)

    def _taskset(self, id: UUID | None, stage: int) -> str:
        assert id is not None
        names = self._tasksets.get(id, ())
        return names[stage] if 0 <= stage < len(names) else ""

    def _add(self, rollouts: _RolloutCounts) -> None:
        metrics = self.metrics
        name = self._label(rollouts.id)
        taskset = self._taskset(rollouts.id, rollouts.stage)
        count = len(rollouts.rewards)
        for outcome, ended in (("ok", rollouts.stopped), ("truncated", count - rollouts.stopped)):
            if ended:
                self._of(metrics.rollouts, name, taskset, outcome).inc(ended)
        metrics.rollout_duration.labels(name, taskset).observe(rollouts.durations_s)
        metrics.rollout_reward.labels(name, taskset).observe(rollouts.rewards)
        self._of(metrics.rollout_tokens, name, "prompt").inc(rollouts.prompt_tokens)
        self._of(metrics.rollout_tokens, name, "completion").inc(max(0, rollouts.tokens - rollouts.prompt_tokens))
        self._of(metrics.experiences, name, "produce", "ok").inc(count)
        self._of(metrics.buffered, name, "waiting").inc(count)
        self._of(metrics.progress_timestamp, name, "explorer").set(rollouts.newest_ns / 1e9)

    def _failed(self, name: str, decoded: Decoded, event: experience.RolloutFailed) -> None:
        outcome = "timeout" if event.code == RolloutTimeoutError.code else "error"
        self._of(self.metrics.rollouts, name, self._taskset(decoded.head.experiment, event.stage), outcome).inc()

    def _leased(self, name: str, decoded: Decoded, event: task.TaskLeased) -> None:
        self._of(self.metrics.leases, name, "second" if event.reissue else "first").inc()

    def _closed(self, name: str, decoded: Decoded, event: task.GroupClosed) -> None:
        if event.code in GIVEN_UP:
            self._of(self.metrics.groups_given_up, name, event.code).inc()
        if len(event.members) > 1 and len({member.reward for member in event.members}) == 1:
            self._of(self.metrics.zero_variance_groups, name).inc()

    def _planned(self, name: str, decoded: Decoded, event: batch.BatchPlanned) -> None:
        born_ns = [self._born.pop(item.experience.int, None) for item in event.experiences]
        ages_s = [max(0.0, (event.decided_at_ns - then_ns) / 1e9) for then_ns in born_ns if then_ns is not None]
        self.metrics.age.labels(name).observe(ages_s)
        self.metrics.staleness.labels(name).observe([item.staleness_versions for item in event.experiences])
        self._of(self.metrics.experiences, name, "plan", "ok").inc(len(event.experiences))
        first = sum(item.use == 1 for item in event.experiences)
        # The first use only: the gauge counts experiences that no batch has held yet.
        self._of(self.metrics.buffered, name, "waiting").dec(first)
        if first:
            self._first_uses[event.batch] = first

    def _abandoned(self, name: str, decoded: Decoded, event: batch.BatchAbandoned) -> None:
        self._of(self.metrics.buffered, name, "waiting").inc(self._first_uses.pop(event.batch, 0))

    def _retired(self, name: str, decoded: Decoded, event: batch.ExperienceRetired) -> None:
        self._of(self.metrics.experiences, name, "retire", event.reason).inc(len(event.experiences))
        for id in event.experiences:
            self._born.pop(id.int, None)
        if event.uses == 0:
            self._of(self.metrics.buffered, name, "waiting").dec(len(event.experiences))

    def _step(self, name: str, decoded: Decoded, event: step.StepCompleted) -> None:
        metrics = self.metrics
        self._first_uses.pop(event.batch, None)
        self._of(metrics.train_step, name).set(event.step)
        self._of(metrics.train_steps, name).inc()
        metrics.train_step_duration.labels(name).observe([event.duration_s])
        self._of(metrics.train_tokens, name).inc(event.tokens)
        if event.skipped:
            self._of(metrics.nonfinite_steps, name).inc()
        self._of(metrics.progress_timestamp, name, "trainer").set(decoded.head.time_ns / 1e9)
        # Where the loss takes another policy for the old one, ppo_kl is not about that which drew the tokens.
        behaviour = event.metrics.get("mismatch/k3/mean", event.metrics.get("actor/ppo_kl"))
        if behaviour is not None:
            self._of(metrics.train_kl, name, "behaviour").set(behaviour)
        for key, value in event.metrics.items():
            if key in _LOSSES:
                self._of(metrics.train_loss, name, _LOSSES[key]).set(value)
            elif key in _CLIPS:
                self._of(metrics.train_clip_ratio, name, _CLIPS[key]).set(value)
            elif key in _MASKED:
                self._of(metrics.train_masked, name, _MASKED[key]).set(value)
            elif key == "mismatch/ess":
                self._of(metrics.train_effective, name).set(value)
            elif key == "actor/entropy":
                self._of(metrics.train_entropy, name).set(value)
            elif key == "actor/grad_norm":
                self._of(metrics.train_grad_norm, name).set(value)

    def _evaluated(self, name: str, decoded: Decoded, event: step.EvalCompleted) -> None:
        self._of(self.metrics.eval_score, name, event.taskset, "score").set(event.score)

    def _published(self, name: str, decoded: Decoded, event: weights.WeightsPublished) -> None:
        assert decoded.head.experiment is not None
        self._methods[decoded.head.experiment] = event.method
        self._of(self.metrics.weight_version, name, "trainer").set(event.version)
        self._of(self.metrics.weight_sync_bytes, name, event.method).inc(event.size_bytes)

    def _activated(self, name: str, decoded: Decoded, event: weights.WeightsActivated) -> None:
        assert decoded.head.experiment is not None
        method = self._methods.get(decoded.head.experiment, "")
        self._of(self.metrics.weight_version, name, "explorer").set(event.version)
        self.metrics.weight_sync_duration.labels(name, method, "load").observe([event.duration_s])

    def _overdue(self, name: str, decoded: Decoded, event: weights.WeightsOverdue) -> None:
        self._of(self.metrics.weight_sync_overdue, name, "waits" if event.version < 0 else "goes_on").inc()

    def _checkpointed(self, name: str, decoded: Decoded, event: checkpoint.CheckpointCommitted) -> None:
        self._of(self.metrics.checkpoint_timestamp, name).set(decoded.head.time_ns / 1e9)

    def _heartbeat(self, name: str, decoded: Decoded, event: worker.Heartbeat) -> None:
        now_ns = decoded.head.time_ns
        self._of(self.metrics.heartbeat_timestamp, name, event.role).set(now_ns / 1e9)
        state, since_ns = self._states.get(event.worker, (event.state, now_ns))
        self._of(self.metrics.role_state_seconds, name, event.role, state).inc(max(0, now_ns - since_ns) / 1e9)
        self._states[event.worker] = (event.state, now_ns)

    def _stopped(self, name: str, decoded: Decoded, event: worker.WorkerStopped) -> None:
        self._states.pop(event.worker, None)
        if event.code == NonFiniteLossError.code:
            self._of(self.metrics.nonfinite_steps, name).inc()

    def _lost(self, name: str, decoded: Decoded, event: worker.WorkerLost) -> None:
        self._states.pop(event.worker, None)
