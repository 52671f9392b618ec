"""Every metric of rftd: name, labels, unit and help.

Events are counted: `rftd.daemon.observe.metrics_feed` adds them up. State is read: `rftd.daemon.observe.metrics_state`
sets gauges from the tables at each scrape, so a restart changes nothing. Labels have few values: never a task, a
rollout, a version or a process id. Unit last in the name; a ratio is 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, Summary
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.registry import Collector

from rftd.ops.histogram import Histogram
from rftd.ops.metric_totals import ReadTotals, StreamTotals

M = TypeVar("M", Counter, Gauge, Summary, Histogram)
"""Kind of a metric."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format."""
OPEN_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content type of the OpenMetrics format."""

# Few bounds: each is a series, and an experiment has at most 150 series over all metrics.
_ROLLOUT_S: Final = (1, 5, 30, 120, 600)
"""Buckets of rollouts' durations."""
_STEP_S: Final = (1, 10, 60)
"""Buckets of training steps' durations."""
_CHECKPOINT_S: Final = (10, 60)
"""Buckets of checkpoints' durations."""
_HANDLER_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10)
"""Buckets of HTTP requests' durations."""
_STALENESS: Final = (0, 1, 2, 4, 8, 16)
"""Buckets of staleness."""
_REWARD: Final = (-0.5, 0, 0.5, 1)
"""Buckets of rewards."""
_TOKENS: Final = (64, 256, 1024, 4096, 16384)
"""Buckets of tokens."""
_TURNS: Final = (1, 2, 4, 16)
"""Buckets of turns."""
_LABEL_CHARS: Final = 100
"""Maximum length of a label's value."""
_AGE: Final = (2.5, 10, 60, 600)
"""Buckets of ages in seconds."""


def label_of(name: str, number: int) -> str:
    """Returns the label of the n-th experiment of a name, as people write it: `NAME` or `NAME@2`."""
    return name if number == 1 else f"{name}@{number}"


def shortened(label: str) -> str:
    """Returns a user-chosen label, truncated if long: each series repeats the label at each scrape."""
    return label if len(label) <= _LABEL_CHARS else f"{label[: _LABEL_CHARS - 1]}…"


class Metrics:
    """The metrics of a daemon, in a separate registry: counters from events, gauges from tables."""

    def __init__(self, *, version: str, commit: str = "") -> None:
        """Registers all metrics; `version` and `commit` are those of this installation."""
        self.registry = CollectorRegistry()
        self._of_experiments: list[Counter | Gauge | Summary | Histogram] = []
        self._of_state: list[Gauge] = []
        self._life(version, commit)
        self._workers()
        self._accelerators()
        self._exploring()
        self._buffering()
        self._weights()
        self._training()
        self._streams()

    def expose(self, *, open_metrics: bool = False) -> bytes:
        """Returns the text for Prometheus; in OpenMetrics format, buckets of histograms carry trace ids."""
        shown = _Shown(self.registry, open_metrics=open_metrics)
        if open_metrics:
            text: bytes = generate_open(shown)  # type: ignore[no-untyped-call]
            return text
        return generate_latest(shown)

    def handled(self, consumer_group: str, seconds: float, repeated: Mapping[str, int]) -> None:
        """Observes the `seconds` taken by a consumer's records for each stream in `repeated`, and adds the numbers of
        repeated records.
        """
        for stream, count in repeated.items():
            self.handler_duration.labels(stream, consumer_group).observe([seconds])
            self.duplicates.labels(stream, consumer_group).inc(count)

    def begin_state(self) -> None:
        """Drops every gauge of state, to be set anew from the tables."""
        for gauge in self._of_state:
            gauge.clear()

    def forget(self, experiment: str) -> None:
        """Drops every series of an experiment that ended a while ago."""
        for metric in self._of_experiments:
            metric.remove_by_labels({"experiment": experiment})

    def _life(self, version: str, commit: str) -> None:
        """Registers the metrics of the process and its HTTP server."""
        build = Gauge("rftd_build_info", "Constant 1; build data", ["version", "commit"], registry=self.registry)
        build.labels(version, commit).set(1)
        ProcessCollector(registry=self.registry)
        self.http_requests = Counter(
            "rftd_http_requests_total",
            "Requests to the API, by the path of the route and the status of the answer",
            ["route", "status"],
            registry=self.registry,
        )
        self.http_refused = Counter(
            "rftd_http_refused_total", "Requests refused at the door, by reason", ["reason"], registry=self.registry
        )
        self.requests = Counter(
            "rftd_requests_total",
            "Requests of other programs by records in the log, by type and outcome",
            ["type", "outcome"],
            registry=self.registry,
        )
        readable = "1 if the last read of the tables succeeded; else the figures are older"
        self.state_readable = Gauge("rftd_state_readable", readable, registry=self.registry)
        self.state_age = Gauge("rftd_state_age_seconds", "Age of the figures of the tables", registry=self.registry)
        self.experiment_state = self._state(
            "rftd_experiment_state", "1 for the current state of the experiment; no series for other states", "state"
        )
        self.state_timestamp = self._state(
            "rftd_experiment_state_timestamp_seconds", "Unix time at which the present state began"
        )
        self.queue_position = self._state(
            "rftd_experiment_queue_position", "Position in the queue, 1 for the next experiment to start"
        )
        self.queue_wait = self._state(
            "rftd_experiment_queue_wait_seconds",
            "Time from the submission to the start of the experiment, or until now",
        )
        self.max_staleness = self._state(
            "rftd_experiment_max_staleness_versions",
            "Maximum staleness of an experience in a batch; no series if the policy has no bound",
        )
        self.heartbeat_timestamp = self._gauge(
            "rftd_experiment_heartbeat_timestamp_seconds", "Unix time of the last heartbeat written by a role", "role"
        )
        self.progress_timestamp = self._state(
            "rftd_experiment_last_progress_timestamp_seconds",
            "Unix time of the last completed unit of work of a working role, or of its expected start",
            "role",
        )
        self.role_state_seconds = self._counter(
            "rftd_role_state_seconds_total", "Time spent by the workers of a role per state", "role", "state"
        )

    def _accelerators(self) -> None:
        """Registers the metrics of accelerators' use."""
        self.accelerator_seconds = ReadTotals(
            "rftd_accelerator_seconds_total",
            "Seconds of accelerators held by workers; a worker without a GPU counts as one of kind cpu",
            ["experiment", "role", "accelerator"],
            registry=self.registry,
        )
        self.cost = ReadTotals(
            "rftd_cost_usd_total",
            "Accelerator seconds times `rftd serve --price`; no series without one",
            ["experiment", "role"],
            registry=self.registry,
        )

    def _workers(self) -> None:
        """Registers the metrics of workers."""
        self.worker_memory = self._gauge(
            "rftd_worker_memory_bytes", "Memory of a worker's processes, at its last heartbeat", "role", "slot"
        )
        self.worker_cpu = self._counter(
            "rftd_worker_cpu_seconds_total", "Processor time of the workers in a slot", "role", "slot"
        )
        self.worker_tokens = self._counter(
            "rftd_worker_tokens_total", "Tokens sampled or trained by the workers in a slot", "role", "slot"
        )
        self.spans_dropped = self._counter(
            "rftd_trace_spans_dropped_total",
            "Spans lost before the receiver of traces, from workers and the daemon",
            "role",
            "slot",
        )

    def _exploring(self) -> None:
        """Registers the metrics of rollouts."""
        self.rollouts = self._counter(
            "rftd_rollouts_total",
            "Rollouts ended, by outcome (ok error timeout cancelled; answer cut: truncated; prompt: prompt_truncated)",
            "taskset",
            "outcome",
        )
        self.rollout_duration = self._histogram(
            "rftd_rollout_duration_seconds", "Wall time of one rollout", _ROLLOUT_S, "taskset"
        )
        self.rollout_turns = self._histogram(
            "rftd_rollout_turns", "The model's answers in each finished rollout", _TURNS, "taskset"
        )
        self.rollout_reward = self._histogram(
            "rftd_rollout_reward", "Reward of each finished rollout", _REWARD, "taskset"
        )
        self.reward_gained = self._counter(
            "rftd_rollout_reward_gained_total",
            "Sum of the positive rewards; minus the lost rewards, the sum of all rewards",
        )
        self.reward_lost = self._counter("rftd_rollout_reward_lost_total", "Absolute sum of the negative rewards")
        self.reward_mean = self._state(
            "rftd_rollout_reward_mean", "Mean reward of the newest trained batch, as drawn by `rftd get`"
        )
        self.reward_quantile = self._state(
            "rftd_rollout_reward_quantile", "Quantiles of the rewards of the newest trained batch", "share"
        )
        self.response_tokens = self._histogram(
            "rftd_rollout_response_tokens", "Length of each finished rollout's response", _TOKENS
        )
        self.rollout_tokens = self._counter(
            "rftd_rollout_tokens_total", "Tokens of rollouts by kind (prompt completion)", "kind"
        )
        self.leases = self._counter(
            "rftd_task_leases_total",
            "Leases of rollouts by kind (first, or second: of a straggler still running elsewhere)",
            "kind",
        )
        self.groups_given_up = self._counter(
            "rftd_groups_given_up_total", "Groups closed early, by code of the reason", "code"
        )
        self.zero_variance_groups = self._counter(
            "rftd_group_zero_variance_total", "Groups without a learning signal because all rewards are equal"
        )
        self.signal_lost = self._state(
            "rftd_signal_lost",
            "1 for the cause of a missing learning signal; no series while there is a signal",
            "cause",
        )
        self.signal_solved = self._state(
            "rftd_signal_solved", "1 if every group of the newest batches is solved; no series otherwise"
        )
        self.signal_share = self._state(
            "rftd_signal_ratio",
            "Share of the newest trained batch (equal_groups; rollouts: prompts_cut answers_cut answers_empty)",
            "of",
        )
        self.eval_score = self._state("rftd_eval_score", "Last eval score", "evalset", "metric")

    def _buffering(self) -> None:
        """Registers the metrics of the replay buffer."""
        self.staleness = self._histogram(
            "rftd_experience_staleness_versions",
            "Batch's weight version minus the oldest weight version of the experience, when the batch is planned",
            _STALENESS,
        )
        self.age = self._histogram("rftd_experience_age_seconds", "Age of an experience when a batch takes it", _AGE)
        self.experiences = self._counter(
            "rftd_experiences_total", "Experiences through a step of their life, by outcome", "stage", "outcome"
        )
        self.buffered = self._state(
            "rftd_buffer_experiences",
            "Experiences by place: waiting to be planned, cooling between two uses, open until their group is closed;"
            " and by the sign of their priority tag (high normal low)",
            "buffer",
            "priority",
        )
        self.buffer_capacity = self._state(
            "rftd_buffer_capacity_experiences",
            "Maximum number of waiting or cooling experiences; no series without a bound",
            "buffer",
        )

    def _weights(self) -> None:
        """Registers the metrics of weight versions."""
        self.weight_version = self._state(
            "rftd_weight_version",
            "Weight version: the newest published by the trainer, the oldest served by a live explorer",
            "holder",
        )
        # A summary: for four phases, bounds more telling than the mean would be a third of an experiment's series.
        self.weight_sync_duration = self._own(
            Summary(
                "rftd_weight_sync_duration_seconds",
                "Weight sync time by method and phase: publish (trainer); transfer, load, resume (each explorer)",
                ["experiment", "method", "phase"],
                registry=self.registry,
            )
        )
        self.weight_sync_failures = self._counter(
            "rftd_weight_sync_failures_total",
            "Weight syncs that failed (load: tried again; fell_back: through checkpoint instead; lost: gone later)",
            "method",
            "reason",
        )
        self.weight_sync_bytes = self._counter(
            "rftd_weight_sync_bytes_total", "Bytes published for weight syncs", "method"
        )
        self.weight_sync_overdue = self._counter(
            "rftd_weight_sync_overdue_total",
            "Sync points where explorers waited for sync_timeout, then continued or kept waiting",
            "then",
        )
        self.checkpoint_duration = self._histogram(
            "rftd_checkpoint_duration_seconds", "Time to a durable committed checkpoint", _CHECKPOINT_S
        )
        self.checkpoint_timestamp = self._state(
            "rftd_checkpoint_last_success_timestamp_seconds", "Unix time of the last durable checkpoint"
        )

    def _training(self) -> None:
        """Registers the metrics of training."""
        self.train_step = self._state("rftd_train_step", "Last finished training step")
        self.train_steps_planned = self._state("rftd_train_steps_planned", "Training steps of the experiment in total")
        self.train_steps = self._counter("rftd_train_steps_total", "Training steps finished")
        self.train_step_duration = self._histogram(
            "rftd_train_step_duration_seconds", "Wall time of one training step", _STEP_S
        )
        self.train_tokens = self._counter("rftd_train_tokens_total", "Tokens that took part in a gradient")
        self.train_loss = self._state("rftd_train_loss", "Last value of a loss term", "loss")
        self.train_kl = self._state("rftd_train_kl_nats", "Mean per-token KL against ref", "ref")
        self.train_entropy = self._state("rftd_train_entropy_nats", "Mean per-token policy entropy")
        self.train_clip_ratio = self._state("rftd_train_clip_ratio", "Share of tokens clipped", "side")
        self.train_masked = self._state(
            "rftd_train_masked_ratio", "Share of tokens masked by corrections, by sign of advantage", "advantage"
        )
        self.train_effective = self._state(
            "rftd_train_effective_sample_ratio",
            "Effective sample size of the batch under the current weights, as a share of its tokens",
        )
        self.train_learning_rate = self._state("rftd_train_learning_rate", "Learning rate of the last training step")
        self.train_grad_norm = self._state("rftd_train_grad_norm", "Global gradient norm before clipping")
        self.nonfinite_steps = self._counter(
            "rftd_train_nonfinite_steps_total", "Steps skipped because loss or gradient was not finite"
        )

    def _streams(self) -> None:
        """Registers the metrics of the log, the tables and the disk."""
        self.disk_free = Gauge("rftd_disk_free_bytes", "Free space of the fullest volume", registry=self.registry)
        self.disk_used = Gauge(
            "rftd_disk_used_bytes", "Space counted by the disk budget; 0 without a budget", registry=self.registry
        )
        self.disk_short = Gauge(
            "rftd_disk_short",
            "1 while experiments are paused for lack of disk space",
            ["cause"],
            registry=self.registry,
        )
        self.wal_size = Gauge("rftd_log_wal_size_bytes", "Size of the log's write-ahead file", registry=self.registry)
        self.wal_blocked = Gauge(
            "rftd_log_wal_blocked", "1 while a reader keeps the write-ahead file full", registry=self.registry
        )
        self.wal_blocked_by = Gauge(
            "rftd_log_wal_blocked_by_pid",
            "Process id of the reader that keeps the write-ahead file full; 0 without one",
            registry=self.registry,
        )
        self.dead_letters = Counter(
            "rftd_stream_dead_letters_total",
            "Records that a consumer could not use",
            ["stream", "consumer_group", "reason"],
            registry=self.registry,
        )
        self.dead_letters_open = Gauge(
            "rftd_dead_letters_open",
            "Dead letters neither retried nor dropped: records, and failed tasks",
            ["kind"],
            registry=self.registry,
        )
        self.handler_duration = Histogram(
            "rftd_stream_handler_duration_seconds",
            "Time from the delivery of records to their committed effect, by stream",
            ["stream", "consumer_group"],
            buckets=_HANDLER_S,
            registry=self.registry,
        )
        self.duplicates = Counter(
            "rftd_stream_duplicates_total",
            "Redelivered records that were recognised by their id and skipped",
            ["stream", "consumer_group"],
            registry=self.registry,
        )
        self.void_records = Counter(
            "rftd_stream_void_records_total",
            "Records without effect: of a replaced process, or of another program in the name of a role",
            ["stream", "cause"],
            registry=self.registry,
        )
        self.rebuild_duration = Gauge(
            "rftd_projection_rebuild_duration_seconds",
            "Duration of the last complete rebuild of the tables",
            ["projection"],
            registry=self.registry,
        )
        self.streams = StreamTotals()
        self.registry.register(self.streams)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Registers a gauge of each experiment."""
        return self._own(Gauge(name, text, ["experiment", *labels], registry=self.registry))

    def _state(self, name: str, text: str, *labels: str) -> Gauge:
        """Registers a gauge of each experiment, set from the tables at each scrape."""
        gauge = Gauge(name, text, ["experiment", *labels], registry=self.registry)
        self._of_state.append(gauge)
        return gauge

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        """Registers a counter of each experiment."""
        return self._own(Counter(name, text, ["experiment", *labels], registry=self.registry))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Registers a histogram of each experiment."""
        return self._own(Histogram(name, text, ["experiment", *labels], buckets=buckets, registry=self.registry))

    def _own(self, metric: M) -> M:
        """Notes a metric whose series end with their experiment, and returns it."""
        self._of_experiments.append(metric)
        return metric


class _Shown(Collector):
    """The metrics of a registry without the unneeded creation times of series."""

    def __init__(self, registry: CollectorRegistry, *, open_metrics: bool) -> None:
        """Shows the metrics of `registry`, in the OpenMetrics format or Prometheus' own."""
        self._registry = registry
        self._open_metrics = open_metrics

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics without creation times."""
        for metric in self._registry.collect():
            left_out = {f"{metric.name}_created"}
            summed = any(sample.name == f"{metric.name}_sum" for sample in metric.samples)
            if self._open_metrics and metric.type == "histogram" and not summed:
                # In OpenMetrics, a histogram with bounds below zero has no sum, and a count requires a sum.
                left_out.add(f"{metric.name}_count")
            metric.samples = [sample for sample in metric.samples if sample.name not in left_out]
            yield metric
