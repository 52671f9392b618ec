"""Figures of a batch that need no model, under Trinity-RFT's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rftd.workers.training.engine import TrainSample


def of_batch(samples: Sequence[TrainSample]) -> dict[str, float]:
    """Lengths; and for rollouts rewards, advantages and staleness."""
    metrics = {
        **_spread("prompt_length", [sample.prompt_tokens for sample in samples]),
        **_spread("response_length", [len(sample.loss_mask) for sample in samples]),
    }
    rollouts = [sample for sample in samples if sample.advantages is not None]
    if rollouts:
        trained = np.concatenate([sample.loss_mask for sample in rollouts]) != 0
        advantages = np.concatenate([sample.advantages for sample in rollouts if sample.advantages is not None])
        metrics |= _spread("critic/rewards", [sample.reward for sample in rollouts])
        metrics |= _spread("critic/advantages", advantages[trained])
        metrics |= _spread("staleness_versions", [sample.staleness_versions for sample in rollouts])
    return metrics


def _spread(name: str, values: ArrayLike) -> dict[str, float]:
    array = np.asarray(values, np.float64)
    if not array.size:
        return {}
    return {f"{name}/mean": float(array.mean()), f"{name}/max": float(array.max()), f"{name}/min": float(array.min())}
