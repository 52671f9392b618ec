"""Aggregation: how per-token values of a batch become one number.

Every mode is a weighted sum, and the weights depend on the batch's masks alone. So a batch may be computed in any
micro-batches: their sums add up to the value of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import ConfigError

Counts = NDArray[np.int64]  # [B], trained tokens of each response
Weights = NDArray[np.float64]  # [B], weight of each token of a response


def token_mean(counts: Counts, lengths: Counts) -> Weights:
    """The mean over all trained tokens: long responses count more."""
    return np.full(len(counts), 1.0 / max(1, int(counts.sum())))


def sequence_mean_token_sum(counts: Counts, lengths: Counts) -> Weights:
    """The mean over responses of their sums."""
    return np.full(len(counts), 1.0 / max(1, len(counts)))


def sequence_mean_token_mean(counts: Counts, lengths: Counts) -> Weights:
    """The mean over responses of their means: each counts the same."""
    return 1.0 / (np.maximum(1, counts) * max(1, len(counts)))


def sequence_mean_token_sum_norm(counts: Counts, lengths: Counts) -> Weights:
    """The sum over everything, divided by the longest response."""
    return np.full(len(counts), 1.0 / max(1, int(lengths.max(initial=1))))


AGGREGATIONS: Final[dict[str, Callable[[Counts, Counts], Weights]]] = {
    "token-mean": token_mean,
    "seq-mean-token-sum": sequence_mean_token_sum,
    "seq-mean-token-mean": sequence_mean_token_mean,
    "seq-mean-token-sum-norm": sequence_mean_token_sum_norm,
}


def check(mode: str) -> None:
    """Raises ConfigError if there is no such mode."""
    if mode not in AGGREGATIONS:
        raise ConfigError(
            f"unknown aggregation {mode!r}",
            field="algorithm.loss_agg_mode",
            fix=f"one of {', '.join(AGGREGATIONS)}",
        )


def token_weights(mode: str, masks: Sequence[NDArray[np.uint8]]) -> Weights:
    """What one trained token of each response weighs in the whole batch  # [B]"""
    check(mode)
    counts = np.array([int(np.count_nonzero(mask)) for mask in masks], np.int64)
    lengths = np.array([len(mask) for mask in masks], np.int64)
    return AGGREGATIONS[mode](counts, lengths)
