"""Gauges of state, set from the tables: a daemon that was just started shows what the one before it showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from prometheus_client import Gauge

from rftd.ops.metrics import Metrics, label_of
from rftd.storage.queries.standing import Figures, LastStep
from rftd.streams.events.step import SHARES
from rftd.streams.folds.spine import Status

QUANTILES: Final = (0.1, 0.5, 0.9)
_LOSSES: Final = {
    "actor/final_loss": "total",
    "actor/pg_loss": "pg",
    "actor/kl_loss": "kl",
    "actor/entropy_loss": "entropy",
    "actor/sft_loss": "sft",
    "critic/vf_loss": "value",
}
_MASKED: Final = {"correction/masked_positive": "positive", "correction/masked_negative": "negative"}
_CLIPS: Final = {"actor/pg_clipfrac": "high", "actor/pg_clipfrac_lower": "low"}


def show_state(metrics: Metrics, found: Sequence[Figures], buffers: Mapping[UUID, Mapping[str, int]]) -> None:
    """Sets the gauges of state to these figures, and drops those of experiments that are not among them."""
    metrics.begin_state()
    for figures in found:
        _show(metrics, figures)
        for place, count in buffers.get(UUID(figures.standing.id), {}).items():
            metrics.buffered.labels(_label(figures), place).set(count)


def _label(figures: Figures) -> str:
    return label_of(figures.standing.name, figures.standing.number)


def _show(metrics: Metrics, figures: Figures) -> None:
    standing = figures.standing
    name = _label(figures)
    for each in Status:
        metrics.experiment_state.labels(name, each.value).set(float(each.value == standing.state))
    metrics.state_timestamp.labels(name).set(standing.state_ns / 1e9)
    metrics.train_step.labels(name).set(standing.step)
    metrics.train_steps_planned.labels(name).set(standing.total_steps)
    told: list[tuple[Gauge, tuple[str, ...], float | None]] = [
        (metrics.queue_position, (), standing.queue_position),
        (metrics.progress_timestamp, ("explorer",), _seconds(standing.produced_ns)),
        (metrics.progress_timestamp, ("trainer",), _seconds(figures.step.completed_ns if figures.step else None)),
        (metrics.weight_version, ("trainer",), standing.published_version),
        (metrics.weight_version, ("explorer",), standing.served_version),
        (metrics.checkpoint_timestamp, (), _seconds(standing.checkpoint_ns)),
        *((metrics.eval_score, (taskset, "score"), score) for taskset, score in figures.scores.items()),
    ]
    for gauge, labels, value in told:
        if value is not None:
            gauge.labels(name, *labels).set(value)
    if standing.signal_cause:
        metrics.signal_lost.labels(name, standing.signal_cause).set(1)
    if figures.rewards:
        metrics.reward_mean.labels(name).set(sum(figures.rewards) / len(figures.rewards))
        for quantile in QUANTILES:
            metrics.reward_quantile.labels(name, f"{quantile:g}").set(_quantile(figures.rewards, quantile))
    if figures.step is not None:
        _show_step(metrics, name, figures.step)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def _quantile(ascending: Sequence[float], quantile: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ascending[min(len(ascending) - 1, int(quantile * len(ascending)))]


def _show_step(metrics: Metrics, name: str, step: LastStep) -> None:
    said = {key: value for key, value in step.metrics.items() if value is not None}
    # Where the loss takes another policy for the old one, ppo_kl is not about that which drew the tokens.
    behaviour = said.get("mismatch/k3/mean", said.get("actor/ppo_kl"))
    single: dict[Gauge, float | None] = {
        metrics.train_effective: said.get("mismatch/ess"),
        metrics.train_entropy: said.get("actor/entropy"),
        metrics.train_grad_norm: said.get("actor/grad_norm"),
        metrics.train_learning_rate: said.get("actor/lr"),
    }
    for gauge, value in single.items():
        if value is not None:
            gauge.labels(name).set(value)
    for key in SHARES & said.keys():
        metrics.signal_share.labels(name, key.removeprefix("signal/")).set(said[key])
    if behaviour is not None:
        metrics.train_kl.labels(name, "behaviour").set(behaviour)
    # In the loss, or taken from the rewards.
    reference = said.get("actor/kl_loss", said.get("critic/kl"))
    if reference is not None:
        metrics.train_kl.labels(name, "reference").set(reference)
    for gauge, labels in (
        (metrics.train_loss, _LOSSES),
        (metrics.train_clip_ratio, _CLIPS),
        (metrics.train_masked, _MASKED),
    ):
        for key in labels.keys() & said.keys():
            gauge.labels(name, labels[key]).set(said[key])
