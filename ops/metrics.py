"""Every metric of rftd: its name, labels, unit and help. `rftd.daemon.metrics_feed` fills them from events.

Labels have few values: never a task, a rollout, a version or a process id. Unit last in the name; a ratio is 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rftd.ops.histogram import Histogram

M = TypeVar("M", Counter, Gauge, Histogram)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_STALENESS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_REWARD: Final = (-1, -0.75, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
_AGE: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600)


class Metrics:
    """The metrics of one daemon, in a registry of their own."""

    def __init__(self, *, version: str) -> None:
        self.registry = CollectorRegistry()
        self._of_experiments: list[Counter | Gauge | Histogram] = []
        self._life(version)
        self._exploring()
        self._buffering()
        self._weights()
        self._training()
        self._streams()

    def expose(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def forget(self, experiment: str) -> None:
        """Drops every series of an experiment that ended a while ago."""
        for metric in self._of_experiments:
            metric.remove_by_labels({"experiment": experiment})

    def _life(self, version: str) -> None:
        build = Gauge("rftd_build_info", "Constant 1; build metadata", ["version"], registry=self.registry)
        build.labels(version).set(1)
        self.experiment_state = self._gauge(
            "rftd_experiment_state", "1 for the current state of the experiment and 0 for the others", "state"
        )
        self.heartbeat_timestamp = self._gauge(
            "rftd_experiment_heartbeat_timestamp_seconds", "Unix time of the last heartbeat written by a role", "role"
        )
        self.progress_timestamp = self._gauge(
            "rftd_experiment_last_progress_timestamp_seconds",
            "Unix time of the last completed unit of work of a role",
            "role",
        )
        self.role_state_seconds = self._counter(
            "rftd_role_state_seconds_total", "Time spent by the workers of a role per state", "role", "state"
        )

    def _exploring(self) -> None:
        self.rollouts = self._counter(
            "rftd_rollouts_total", "Rollouts ended, by outcome (ok error timeout truncated)", "taskset", "outcome"
        )
        self.rollout_duration = self._histogram(
            "rftd_rollout_duration_seconds", "Wall time of one rollout", _SECONDS, "taskset"
        )
        self.rollout_reward = self._histogram(
            "rftd_rollout_reward", "Reward of each finished rollout", _REWARD, "taskset"
        )
        self.rollout_tokens = self._counter(
            "rftd_rollout_tokens_total", "Tokens of rollouts by kind (prompt completion)", "kind"
        )
        self.leases = self._counter(
            "rftd_task_leases_total",
            "Leases of rollouts by kind (first, or second: of a straggler that is under way elsewhere too)",
            "kind",
        )
        self.groups_given_up = self._counter(
            "rftd_groups_given_up_total", "Groups closed before they were over, by code of the reason", "code"
        )
        self.zero_variance_groups = self._counter(
            "rftd_group_zero_variance_total", "Groups useless because every reward is equal"
        )
        self.eval_score = self._gauge("rftd_eval_score", "Last eval score", "evalset", "metric")

    def _buffering(self) -> None:
        self.staleness = self._histogram(
            "rftd_experience_staleness_versions",
            "Batch's weight version minus the oldest weight version of the experience, when the batch is planned",
            _STALENESS,
        )
        self.age = self._histogram("rftd_experience_age_seconds", "Age of an experience when a batch takes it", _AGE)
        self.experiences = self._counter(
            "rftd_experiences_total", "Experiences through a step of their life, by outcome", "stage", "outcome"
        )
        self.buffered = self._gauge("rftd_buffer_experiences", "Experiences that wait to be planned", "buffer")

    def _weights(self) -> None:
        self.weight_version = self._gauge(
            "rftd_weight_version", "Weight version held (published by the trainer, served by explorers)", "holder"
        )
        self.weight_sync_duration = self._histogram(
            "rftd_weight_sync_duration_seconds", "Weight sync time by method and phase", _SECONDS, "method", "phase"
        )
        self.weight_sync_bytes = self._counter(
            "rftd_weight_sync_bytes_total", "Bytes published for weight syncs", "method"
        )
        self.weight_sync_overdue = self._counter(
            "rftd_weight_sync_overdue_total",
            "Sync points at which explorers waited for sync_timeout, and then went on or wait on",
            "then",
        )
        self.checkpoint_timestamp = self._gauge(
            "rftd_checkpoint_last_success_timestamp_seconds", "Unix time of the last durable checkpoint"
        )

    def _training(self) -> None:
        self.train_step = self._gauge("rftd_train_step", "Last finished training step")
        self.train_steps = self._counter("rftd_train_steps_total", "Training steps finished")
        self.train_step_duration = self._histogram(
            "rftd_train_step_duration_seconds", "Wall time of one training step", _SECONDS
        )
        self.train_tokens = self._counter("rftd_train_tokens_total", "Tokens that took part in a gradient")
        self.train_loss = self._gauge("rftd_train_loss", "Last value of a loss term", "loss")
        self.train_kl = self._gauge("rftd_train_kl_nats", "Mean per-token KL against ref", "ref")
        self.train_entropy = self._gauge("rftd_train_entropy_nats", "Mean per-token policy entropy")
        self.train_clip_ratio = self._gauge("rftd_train_clip_ratio", "Share of tokens clipped", "side")
        self.train_masked = self._gauge(
            "rftd_train_masked_ratio", "Share of tokens that corrections left out, by sign of advantage", "advantage"
        )
        self.train_effective = self._gauge(
            "rftd_train_effective_sample_ratio", "Which share of the tokens the batch is worth to the present weights"
        )
        self.train_grad_norm = self._gauge("rftd_train_grad_norm", "Global gradient norm before clipping")
        self.nonfinite_steps = self._counter(
            "rftd_train_nonfinite_steps_total", "Steps skipped because loss or gradient was not finite"
        )

    def _streams(self) -> None:
        self.disk_free = Gauge("rftd_disk_free_bytes", "Free space, where there is least of it", registry=self.registry)
        self.disk_used = Gauge(
            "rftd_disk_used_bytes", "What the disk budget counts; 0 without a budget", registry=self.registry
        )
        self.disk_short = Gauge(
            "rftd_disk_short", "1 while experiments pause for want of space", ["cause"], registry=self.registry
        )
        self.wal_size = Gauge(
            "rftd_log_wal_size_bytes", "What lies in the embedded log's write-ahead file", registry=self.registry
        )
        self.wal_blocked = Gauge(
            "rftd_log_wal_blocked", "1 while a reader keeps it from being emptied", registry=self.registry
        )
        self.wal_blocked_by = Gauge(
            "rftd_log_wal_blocked_by_pid", "Process id of that reader; 0 without one", registry=self.registry
        )
        self.dead_letters = Counter(
            "rftd_stream_dead_letters_total",
            "Records that a consumer could not use",
            ["stream", "consumer_group", "reason"],
            registry=self.registry,
        )
        self.dead_letters_open = Gauge(
            "rftd_dead_letters_open",
            "Dead letters that nobody has retried or dropped: records, and tasks that failed",
            ["kind"],
            registry=self.registry,
        )
        self.streams = StreamTotals()
        self.registry.register(self.streams)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._own(Gauge(name, text, ["experiment", *labels], registry=self.registry))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._own(Counter(name, text, ["experiment", *labels], registry=self.registry))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return self._own(Histogram(name, text, ["experiment", *labels], buckets=buckets, registry=self.registry))

    def _own(self, metric: M) -> M:
        self._of_experiments.append(metric)
        return metric


class StreamTotals(Collector):
    """The records that the log holds and that the tables have, told at the moment of a scrape."""

    def __init__(self) -> None:
        self._produced: dict[str, int] = {}
        self._consumed: dict[str, int] = {}

    def update(self, *, produced: Mapping[str, int], consumed: Mapping[str, int]) -> None:
        """Remembers the number of records of each stream, and of those that the projector has applied."""
        self._produced = dict(produced)
        self._consumed = dict(consumed)

    def collect(self) -> Iterator[Metric]:
        taken = CounterMetricFamily(
            "rftd_stream_produced_records", "Records acknowledged by the log", labels=["stream"]
        )
        applied = CounterMetricFamily(
            "rftd_stream_consumed_records", "Records whose effect is committed", labels=["stream", "consumer_group"]
        )
        lag = GaugeMetricFamily(
            "rftd_stream_lag_records", "Records of the log not yet consumed", labels=["stream", "consumer_group"]
        )
        behind = GaugeMetricFamily(
            "rftd_projection_lag_events", "Events in the log not yet applied by the projection", labels=["projection"]
        )
        for stream, total in sorted(self._produced.items()):
            done = self._consumed.get(stream)
            taken.add_metric([stream], total)
            if done is not None:
                applied.add_metric([stream, "projector"], done)
                # Both numbers were read at different moments: the projector may be ahead of the older one.
                lag.add_metric([stream, "projector"], max(0, total - done))
        behind.add_metric(["all"], sum(max(0, self._produced.get(s, 0) - done) for s, done in self._consumed.items()))
        yield from (taken, applied, lag, behind)
