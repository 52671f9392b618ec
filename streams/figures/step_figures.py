"""The main figures of a training step: the reward, the loss, the KL divergence, the gradient and the length.

Engines and losses report them under various names; code showing a step to a person reads them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Metrics = Mapping[str, float | None]
"""Figures of a step by name; None for NaN and infinity."""

REWARDS: Final = "critic/rewards"
"""Prefix of the figures of a batch's rewards: mean, min, max, and the quantiles p10, p50 and p90."""
PIPELINE: Final = "experience_pipeline"
"""Prefix of the figures of the experience pipeline's operators, each the mean over the batch's groups."""
_REWARD: Final = (f"{REWARDS}/mean",)
"""Name of the mean reward of a batch."""
_LOSS: Final = ("actor/final_loss", "actor/sft_loss", "actor/pg_loss", "loss")
"""The whole loss first: the others are parts of it, if both are reported."""
_KL: Final = ("actor/kl_loss", "critic/kl", "actor/ppo_kl")
"""To the reference, in the loss or subtracted from the rewards; else to the weights that drew the tokens."""
_GRADIENT: Final = ("actor/grad_norm",)
"""Names of the gradient norm, by preference."""
_LENGTH: Final = ("response_length/mean",)
"""Names of the mean response length, by preference."""
_STALENESS: Final = ("staleness_versions/mean",)
"""Names of the mean staleness, by preference."""

MAIN: Final = (*_REWARD, *_LOSS, *_KL, *_GRADIENT, *_LENGTH)
"""Names of the metrics read by the functions about reward, loss, KL divergence, gradient and length."""
MAIN_COLUMNS: Final = {"REWARD": _REWARD, "LOSS": _LOSS, "KL": _KL, "GRAD": _GRADIENT, "LENGTH": _LENGTH}
"""Headers of the main figures in tables, each with its names in order of preference."""


def reward_of(metrics: Metrics) -> float | None:
    """Returns the mean reward of the batch; None for a batch without rollouts."""
    return _first(metrics, _REWARD)


def loss_of(metrics: Metrics) -> float | None:
    """Returns the minimised loss; None if the engine does not report it."""
    return _first(metrics, _LOSS)


def critic_loss_of(metrics: Metrics) -> float | None:
    """Returns the critic's loss; None without a critic. During the critic's warm-up it is the only loss."""
    return metrics.get("critic/vf_loss")


def kl_of(metrics: Metrics) -> float | None:
    """Returns the KL divergence to the reference model, or else to the weights that sampled the tokens; None without
    either.
    """
    return _first(metrics, _KL)


def grad_norm_of(metrics: Metrics) -> float | None:
    """Returns the gradient norm before clipping; None if the engine does not report it."""
    return _first(metrics, _GRADIENT)


def response_length_of(metrics: Metrics) -> float | None:
    """Returns the mean number of response tokens; None for a batch without rollouts."""
    return _first(metrics, _LENGTH)


def staleness_of(metrics: Metrics) -> float | None:
    """Returns the mean staleness of the batch's rollouts in weight versions; None for a batch without rollouts."""
    return _first(metrics, _STALENESS)


def clipped_of(metrics: Metrics) -> float | None:
    """Returns the share of tokens beyond the clip range of the loss; None for a loss without clipping."""
    return metrics.get("actor/pg_clipfrac")


def _first(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((figure for name in names if (figure := metrics.get(name)) is not None), None)
