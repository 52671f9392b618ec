"""Gauges of state, set from the tables: a restarted daemon shows the figures of its predecessor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from prometheus_client import Gauge

from rftd.daemon.observe.metrics_spec import Declared, DeclaredStage
from rftd.ops.metrics import Metrics, label_of, shortened
from rftd.storage.queries.buffer import PlaceCount
from rftd.storage.queries.standing import Figures, Held, LastStep, Standing
from rftd.streams.events.step import SHARES
from rftd.streams.folds.signal import SOLVED
from rftd.streams.folds.spine import Status

QUANTILES: Final = (0.1, 0.5, 0.9)
"""Quantiles shown of the last step's rewards."""
BANDS: Final = {1: "high", 0: "normal", -1: "low"}
"""Metric label of each band of priorities, by the sign of the priority."""
HEARD_S: Final = 5.0
"""Seconds before now that are not counted for a live worker: its end, once recorded, lies a little in the past, and the
counter must not fall then.
"""
_LOSSES: Final = {
    "actor/final_loss": "total",
    "actor/pg_loss": "pg",
    "actor/kl_loss": "kl",
    "actor/entropy_loss": "entropy",
    "actor/sft_loss": "sft",
    "critic/vf_loss": "value",
}
"""Metric label of each loss reported by trainers."""
_MASKED: Final = {"correction/masked_positive": "positive", "correction/masked_negative": "negative"}
"""Metric label of each share of masked tokens."""
_CLIPS: Final = {"actor/pg_clipfrac": "high", "actor/pg_clipfrac_lower": "low"}
"""Metric label of each share of clipped ratios."""


@dataclass(frozen=True, kw_only=True)
class AtScrape:
    """Everything that the state gauges show at one scrape."""

    figures: Sequence[Figures]
    """Figures of each experiment."""
    buffers: Mapping[UUID, Sequence[PlaceCount]]
    """Buffer counts by experiment."""
    held: Sequence[Held]
    """Time for which workers have held devices, by experiment and role."""
    declared: Mapping[UUID, Declared]
    """Limits and devices declared in each experiment's specification."""
    now_ns: int
    """Time of the scrape, in nanoseconds since 1970."""


def show_state(metrics: Metrics, at_scrape: AtScrape, prices: Mapping[str, float]) -> None:
    """Sets the gauges of state to these figures, and drops the series of all other experiments.

    `prices` are dollars per hour, by kind: of one GPU (`gpu`), or of one worker without GPUs (`cpu`); a kind may be
    missing.
    """
    metrics.begin_state()
    for figures in at_scrape.figures:
        _show_experiment(metrics, figures, at_scrape.now_ns)
        id = UUID(figures.standing.id)
        for row in at_scrape.buffers.get(id, ()):
            metrics.buffered.labels(_label(figures), row.state, BANDS[row.band]).set(row.count)
        declared = at_scrape.declared.get(id)
        stage = declared.stage(figures.standing.stage) if declared is not None else None
        if stage is not None:
            _show_declared(metrics, _label(figures), stage)
            _show_progress(metrics, figures, stage)
    _show_held(metrics, at_scrape, prices)


def _show_declared(metrics: Metrics, name: str, stage: DeclaredStage) -> None:
    """Sets the gauges of a stage's limits."""
    if stage.capacity:
        metrics.buffer_capacity.labels(name, "waiting").set(stage.capacity)
    if stage.max_staleness_versions is not None:
        metrics.max_staleness.labels(name).set(stage.max_staleness_versions)


def _show_progress(metrics: Metrics, figures: Figures, stage: DeclaredStage) -> None:
    """Sets the time at which each role of the stage last finished work; at the earliest, the start or resumption of the
    stage.
    """
    standing = figures.standing
    begun_ns = max(standing.state_ns, standing.stage_ns or 0) if standing.state == Status.RUNNING else 0
    done_ns = {"explorer": standing.produced_ns, "trainer": figures.step.completed_ns if figures.step else None}
    for role in stage.at_work:
        last_ns = max(done_ns[role] or 0, begun_ns)
        if last_ns:
            metrics.progress_timestamp.labels(_label(figures), role).set(last_ns / 1e9)


def _show_held(metrics: Metrics, at_scrape: AtScrape, prices: Mapping[str, float]) -> None:
    """Sets the accelerator seconds of each role, and their cost where `prices` has the kind.

    The seconds of a worker with GPUs count once per GPU, under `gpu`; those of a worker without count once, under
    `cpu`.
    """
    names = {figures.standing.id: _label(figures) for figures in at_scrape.figures}
    seconds: dict[tuple[str, ...], float] = {}
    for row in at_scrape.held:
        declared = at_scrape.declared.get(UUID(row.experiment))
        if declared is None or row.experiment not in names:
            continue
        devices = declared.accelerators.get(row.role, 0)
        lived_s = row.seconds
        if row.alive_since_ns is not None:
            lived_s = row.workers * max(0.0, (at_scrape.now_ns - row.alive_since_ns) / 1e9 - HEARD_S)
        worker_labels = (names[row.experiment], row.role, "gpu" if devices else "cpu")
        seconds[worker_labels] = seconds.get(worker_labels, 0.0) + lived_s * max(1, devices)
    # A role has only one kind: the accelerators of its workers are declared for all of them.
    cost: dict[tuple[str, ...], float] = {
        (name, role): held_s / 3600 * prices[kind] for (name, role, kind), held_s in seconds.items() if kind in prices
    }
    metrics.accelerator_seconds.update(seconds)
    metrics.cost.update(cost)


def _label(figures: Figures) -> str:
    """Returns the metric label of an experiment."""
    return label_of(figures.standing.name, figures.standing.number)


def _show_experiment(metrics: Metrics, figures: Figures, now_ns: int) -> None:
    """Sets the gauges of one experiment."""
    standing = figures.standing
    name = _label(figures)
    metrics.experiment_state.labels(name, standing.state).set(1)
    metrics.state_timestamp.labels(name).set(standing.state_ns / 1e9)
    metrics.train_step.labels(name).set(standing.step)
    metrics.train_steps_planned.labels(name).set(standing.total_steps)
    gauge_rows: list[tuple[Gauge, tuple[str, ...], float | None]] = [
        (metrics.queue_position, (), standing.queue_position),
        (metrics.queue_wait, (), _queue_wait_s(standing, now_ns)),
        (metrics.weight_version, ("trainer",), standing.published_version),
        (metrics.weight_version, ("explorer",), standing.served_version),
        (metrics.checkpoint_timestamp, (), _seconds_of(standing.checkpoint_ns)),
        *((metrics.eval_score, (shortened(taskset), "score"), score) for taskset, score in figures.scores.items()),
    ]
    for gauge, labels, gauge_number in gauge_rows:
        if gauge_number is not None:
            gauge.labels(name, *labels).set(gauge_number)
    if standing.signal_cause == SOLVED:
        metrics.signal_solved.labels(name).set(1)
    elif standing.signal_cause:
        metrics.signal_lost.labels(name, standing.signal_cause).set(1)
    if figures.rewards:
        metrics.reward_mean.labels(name).set(sum(figures.rewards) / len(figures.rewards))
        for quantile in QUANTILES:
            metrics.reward_quantile.labels(name, f"{quantile:g}").set(_quantile(figures.rewards, quantile))
    if figures.step is not None:
        _show_step(metrics, name, figures.step)


def _queue_wait_s(standing: Standing, now_ns: int) -> float | None:
    """Returns the seconds waited in the queue; None for an experiment ended without a turn."""
    if standing.queue_wait_ns is None and standing.state != Status.QUEUED:
        return None
    wait_ns = now_ns - standing.submitted_ns if standing.queue_wait_ns is None else standing.queue_wait_ns
    return max(0, wait_ns) / 1e9


def _seconds_of(time_ns: int | None) -> float | None:
    """Returns a time in seconds since 1970; None for None."""
    return None if time_ns is None else time_ns / 1e9


def _quantile(ascending: Sequence[float], quantile: float) -> float:
    """Returns the number at the place `quantile` × count of the ascending numbers."""
    return ascending[min(len(ascending) - 1, int(quantile * len(ascending)))]


def _show_step(metrics: Metrics, name: str, step: LastStep) -> None:
    """Sets the gauges of the last step's figures; a figure not reported leaves its gauge without a series.

    The KL to the sampling policy is `mismatch/k3/mean`, else `actor/ppo_kl`; the KL to the reference is
    `actor/kl_loss`, else `critic/kl`.
    """
    reported = {key: figure for key, figure in step.metrics.items() if figure is not None}
    # With a separate old policy in the loss, ppo_kl does not refer to the sampling policy.
    behaviour = reported.get("mismatch/k3/mean", reported.get("actor/ppo_kl"))
    single: dict[Gauge, float | None] = {
        metrics.train_effective: reported.get("mismatch/ess"),
        metrics.train_entropy: reported.get("actor/entropy"),
        metrics.train_grad_norm: reported.get("actor/grad_norm"),
        metrics.train_learning_rate: reported.get("actor/lr"),
    }
    for gauge, figure in single.items():
        if figure is not None:
            gauge.labels(name).set(figure)
    for key in SHARES & reported.keys():
        metrics.signal_share.labels(name, key.removeprefix("signal/")).set(reported[key])
    if behaviour is not None:
        metrics.train_kl.labels(name, "behaviour").set(behaviour)
    # From the loss, or from the rewards.
    reference = reported.get("actor/kl_loss", reported.get("critic/kl"))
    if reference is not None:
        metrics.train_kl.labels(name, "reference").set(reference)
    for gauge, labels in (
        (metrics.train_loss, _LOSSES),
        (metrics.train_clip_ratio, _CLIPS),
        (metrics.train_masked, _MASKED),
    ):
        for key in labels.keys() & reported.keys():
            gauge.labels(name, labels[key]).set(reported[key])
