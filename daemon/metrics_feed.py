"""`MetricsFeed`: events to metrics. `rftd.daemon.metrics_follower` shows it each record once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from rftd.ops.errors import NonFiniteLossError, RolloutTimeoutError
from rftd.ops.metrics import Metrics
from rftd.streams.codec import Decoded
from rftd.streams.events import batch, checkpoint, experience, experiment, step, task, weights, worker
from rftd.streams.events.registry import Event
from rftd.streams.folds.groups import GIVEN_UP
from rftd.streams.folds.spine import Status

KEPT_AFTER_END_NS: Final = 3600 * 10**9
"""Series of an experiment that ended stay for an hour, so that the last scrape sees its end."""
_BORN: Final = 65_536
"""Births that are remembered to tell ages; older ones go first."""

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
_CLIPS: Final = {"actor/pg_clipfrac": "high", "actor/pg_clipfrac_lower": "low"}


class MetricsFeed:
    """Folds what the metrics need and the events do not carry: names, births, who was in which state."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._names: dict[UUID, str] = {}
        self._tasksets: dict[UUID, tuple[str, ...]] = {}
        self._methods: dict[UUID, str] = {}
        self._ended_ns: dict[UUID, int] = {}
        self._born: OrderedDict[UUID, int] = OrderedDict()
        self._first_uses: dict[UUID, int] = {}
        self._states: dict[UUID, tuple[str, int]] = {}
        self._handlers: Final[dict[type[Event], Callable[[str, Decoded, Any], None]]] = {
            experience.ExperienceProduced: self._produced,
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
        event, id = decoded.event, decoded.head.experiment
        if id is None:
            return
        if isinstance(event, experiment.ExperimentSubmitted):
            if id in self._names:
                return  # its other half
            name = event.spec.name
            taken = any(name == other for known, other in self._names.items() if known != id)
            self._names[id] = f"{name}@{id.hex[-8:]}" if taken else name
            self._tasksets[id] = tuple(stage.taskset.name if stage.taskset else "" for stage in event.spec.stages)
        if (status := _LIFE.get(type(event))) is not None:
            for each in Status:
                self.metrics.experiment_state.labels(self._label(id), each.value).set(float(each is status))
            if status.ended:
                self._ended_ns[id] = decoded.head.time_ns

    def observe(self, decoded: Decoded) -> None:
        """Takes in one effective record, new in the log."""
        event, id = decoded.event, decoded.head.experiment
        if isinstance(event, worker.RecordDeadLettered):
            self.metrics.dead_letters.labels(event.stream, event.consumer, event.code).inc()
        self.recall(decoded)
        if id is not None and (handler := self._handlers.get(type(event))) is not None:
            handler(self._label(id), decoded, event)

    def expire(self, now_ns: int) -> None:
        """Drops the series of experiments that ended more than an hour ago."""
        for id in [id for id, ended_ns in self._ended_ns.items() if now_ns - ended_ns > KEPT_AFTER_END_NS]:
            self.metrics.forget(self._label(id))
            for known in (self._ended_ns, self._names, self._tasksets, self._methods):
                known.pop(id, None)

    def _label(self, id: UUID) -> str:
        return self._names.get(id, str(id))

    def _taskset(self, decoded: Decoded, stage: int) -> str:
        assert decoded.head.experiment is not None
        names = self._tasksets.get(decoded.head.experiment, ())
        return names[stage] if 0 <= stage < len(names) else ""

    def _progress(self, name: str, role: str, decoded: Decoded) -> None:
        self.metrics.progress_timestamp.labels(name, role).set(decoded.head.time_ns / 1e9)

    def _produced(self, name: str, decoded: Decoded, event: experience.ExperienceProduced) -> None:
        metrics, taskset = self.metrics, self._taskset(decoded, event.stage)
        metrics.rollouts.labels(name, taskset, "ok" if event.finish == "stop" else "truncated").inc()
        metrics.rollout_duration.labels(name, taskset).observe(event.duration_s)
        metrics.rollout_reward.labels(name, taskset).observe(event.reward)
        metrics.rollout_tokens.labels(name, "prompt").inc(event.prompt_tokens)
        metrics.rollout_tokens.labels(name, "completion").inc(len(event.tokens) - event.prompt_tokens)
        metrics.experiences.labels(name, "produce", "ok").inc()
        metrics.buffered.labels(name, "waiting").inc()
        self._progress(name, "explorer", decoded)
        self._born[event.experience] = decoded.head.time_ns
        if len(self._born) > _BORN:
            self._born.popitem(last=False)

    def _failed(self, name: str, decoded: Decoded, event: experience.RolloutFailed) -> None:
        outcome = "timeout" if event.code == RolloutTimeoutError.code else "error"
        self.metrics.rollouts.labels(name, self._taskset(decoded, event.stage), outcome).inc()

    def _leased(self, name: str, decoded: Decoded, event: task.TaskLeased) -> None:
        self.metrics.leases.labels(name, "second" if event.reissue else "first").inc()

    def _closed(self, name: str, decoded: Decoded, event: task.GroupClosed) -> None:
        if event.code in GIVEN_UP:
            self.metrics.groups_given_up.labels(name, event.code).inc()
        if len(event.members) > 1 and len({member.reward for member in event.members}) == 1:
            self.metrics.zero_variance_groups.labels(name).inc()

    def _planned(self, name: str, decoded: Decoded, event: batch.BatchPlanned) -> None:
        for item in event.experiences:
            self.metrics.staleness.labels(name).observe(item.staleness_versions)
            if (born_ns := self._born.pop(item.experience, None)) is not None:
                self.metrics.age.labels(name).observe(max(0.0, (event.decided_at_ns - born_ns) / 1e9))
        self.metrics.experiences.labels(name, "plan", "ok").inc(len(event.experiences))
        first = sum(item.use == 1 for item in event.experiences)
        self.metrics.buffered.labels(name, "waiting").dec(first)
        if first:
            self._first_uses[event.batch] = first

    def _abandoned(self, name: str, decoded: Decoded, event: batch.BatchAbandoned) -> None:
        self.metrics.buffered.labels(name, "waiting").inc(self._first_uses.pop(event.batch, 0))

    def _retired(self, name: str, decoded: Decoded, event: batch.ExperienceRetired) -> None:
        self.metrics.experiences.labels(name, "retire", event.reason).inc(len(event.experiences))
        for id in event.experiences:
            self._born.pop(id, None)
        if event.uses == 0:
            self.metrics.buffered.labels(name, "waiting").dec(len(event.experiences))

    def _step(self, name: str, decoded: Decoded, event: step.StepCompleted) -> None:
        metrics = self.metrics
        self._first_uses.pop(event.batch, None)
        metrics.train_step.labels(name).set(event.step)
        metrics.train_steps.labels(name).inc()
        metrics.train_step_duration.labels(name).observe(event.duration_s)
        metrics.train_tokens.labels(name).inc(event.tokens)
        if event.skipped:
            metrics.nonfinite_steps.labels(name).inc()
        self._progress(name, "trainer", decoded)
        for key, value in event.metrics.items():
            if key in _LOSSES:
                metrics.train_loss.labels(name, _LOSSES[key]).set(value)
            elif key in _CLIPS:
                metrics.train_clip_ratio.labels(name, _CLIPS[key]).set(value)
            elif key == "actor/ppo_kl":
                metrics.train_kl.labels(name, "behaviour").set(value)
            elif key == "actor/entropy":
                metrics.train_entropy.labels(name).set(value)
            elif key == "actor/grad_norm":
                metrics.train_grad_norm.labels(name).set(value)

    def _evaluated(self, name: str, decoded: Decoded, event: step.EvalCompleted) -> None:
        self.metrics.eval_score.labels(name, event.taskset, "score").set(event.score)

    def _published(self, name: str, decoded: Decoded, event: weights.WeightsPublished) -> None:
        assert decoded.head.experiment is not None
        self._methods[decoded.head.experiment] = event.method
        self.metrics.weight_version.labels(name, "trainer").set(event.version)
        self.metrics.weight_sync_bytes.labels(name, event.method).inc(event.size_bytes)

    def _activated(self, name: str, decoded: Decoded, event: weights.WeightsActivated) -> None:
        assert decoded.head.experiment is not None
        method = self._methods.get(decoded.head.experiment, "")
        self.metrics.weight_version.labels(name, "explorer").set(event.version)
        self.metrics.weight_sync_duration.labels(name, method, "load").observe(event.duration_s)

    def _overdue(self, name: str, decoded: Decoded, event: weights.WeightsOverdue) -> None:
        self.metrics.weight_sync_overdue.labels(name, "waits" if event.version < 0 else "goes_on").inc()

    def _checkpointed(self, name: str, decoded: Decoded, event: checkpoint.CheckpointCommitted) -> None:
        self.metrics.checkpoint_timestamp.labels(name).set(decoded.head.time_ns / 1e9)

    def _heartbeat(self, name: str, decoded: Decoded, event: worker.Heartbeat) -> None:
        now_ns = decoded.head.time_ns
        self.metrics.heartbeat_timestamp.labels(name, event.role).set(now_ns / 1e9)
        state, since_ns = self._states.get(event.worker, (event.state, now_ns))
        self.metrics.role_state_seconds.labels(name, event.role, state).inc(max(0, now_ns - since_ns) / 1e9)
        self._states[event.worker] = (event.state, now_ns)

    def _stopped(self, name: str, decoded: Decoded, event: worker.WorkerStopped) -> None:
        self._states.pop(event.worker, None)
        if event.code == NonFiniteLossError.code:
            self.metrics.nonfinite_steps.labels(name).inc()

    def _lost(self, name: str, decoded: Decoded, event: worker.WorkerLost) -> None:
        self._states.pop(event.worker, None)
