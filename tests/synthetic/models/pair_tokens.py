"""Pairs of responses for losses of preferences: log-probabilities of a policy and of a reference, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rftd.workers.learning.losses.policy_loss import Labels, LossTokens, Pairs

Pair = tuple[list[float], list[float]]
"""A number for each token of the chosen and of the rejected response."""


def tokens_of(policy: Tensor, reference: Tensor, lengths: Sequence[int], *, in_batch: int | None = None) -> LossTokens:
    """Responses in the order chosen, rejected, chosen, ..."""
    zeros = torch.zeros_like(policy)
    responses = len(lengths)
    pairs = responses // 2 if in_batch is None else in_batch
    chosen = torch.arange(responses) % 2 == 0
    return LossTokens(
        logprobs=policy,
        entropies=zeros,
        old_logprobs=zeros,
        ref_logprobs=reference,
        advantages=zeros,
        expert=zeros.bool(),
        sequence=torch.repeat_interleave(torch.arange(responses), torch.tensor(lengths)),
        sequences=responses,
        pairs=Pairs(
            of=torch.arange(responses) // 2,
            chosen=chosen,
            count=responses // 2,
            in_batch=pairs,
        ),
        labels=Labels(desirable=chosen, in_batch=2 * pairs, desirable_in_batch=pairs),
    )


def pairs_of(seed: int, count: int, *, drift: float = 0.5) -> tuple[list[Pair], list[Pair]]:
    rng = np.random.default_rng(seed)
    policy: list[Pair] = []
    reference: list[Pair] = []
    for _ in range(count):
        drawn = [rng.normal(-2, 1, rng.integers(1, 7)) for _ in range(2)]
        reference.append((drawn[0].tolist(), drawn[1].tolist()))
        moved = [part + rng.normal(0, drift, len(part)) for part in drawn]
        policy.append((moved[0].tolist(), moved[1].tolist()))
    return policy, reference
