"""Batches without a finite step: the reason in words, and the limit of consecutive ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rftd.ops.errors import NonFiniteLossError
from rftd.workers.learning.engine import TrainSample

FIX = "lower the learning rate, or look at the batch's rewards and log-probabilities"
"""The fix suggested for a loss that is not finite."""


def unusable(samples: Sequence[TrainSample]) -> str:
    """Describes the first NaN or infinity among a batch's rewards, log-probabilities and advantages; empty if all are
    finite.
    """
    # One pass over everything joined: a call for each of thousands of arrays costs more than the look itself.
    if _all_finite(samples):
        return ""
    for number, sample in enumerate(samples):
        if not np.isfinite(sample.reward):
            return f"item {number} has the reward {sample.reward}"
        for name, values in (("log-probability", sample.logprobs), ("advantage", sample.advantages)):
            if values is None or np.isfinite(values).all():
                continue
            # Masked tokens may be anything: what a tool said has no log-probability.
            bad = values[~np.isfinite(values) & (sample.loss_mask != 0)]
            if len(bad):
                return f"item {number} has a token with the {name} {bad[0]}"
    return ""


def _all_finite(samples: Sequence[TrainSample]) -> bool:
    """True if rewards, log-probabilities and advantages are all finite, including those of masked tokens."""
    parts = [column for sample in samples for column in (sample.logprobs, sample.advantages) if column is not None]
    return bool(np.isfinite(np.concatenate([[sample.reward for sample in samples], *parts])).all())


def skipped(in_a_row: int, limit: int, step: int, reason: str) -> str:
    """Returns the reason for skipping a step. Raises NonFiniteLossError if the consecutive skipped steps, this one
    included, have reached `limit`.
    """
    if in_a_row < limit:
        return reason
    before = f"; so were the {in_a_row - 1} steps before it" if in_a_row > 1 else ""
    raise NonFiniteLossError(f"step {step} was skipped: {reason}{before}; the weights were not touched", fix=FIX)
