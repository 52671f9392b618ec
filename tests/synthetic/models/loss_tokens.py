"""Tokens for losses: responses of any drift, with gradients, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rftd.workers.learning.losses.policy_loss import LossTokens

LENGTHS = (3, 1, 5, 4, 2)
EXPERTS = (False, False, True, False, True)


def make_loss_tokens(
    seed: int = 0,
    *,
    scale: float = 0.4,
    lengths: Sequence[int] = LENGTHS,
    experts: Sequence[bool] = (),
    stage_step: int = 1,
) -> LossTokens:
    """Trained tokens of so many responses; log-ratios are normal, `scale` wide; an expert's rows have old ones of 0."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    expert = np.repeat(np.array(experts or [False] * len(lengths)), lengths)
    old = -np.abs(rng.normal(1.5, 1.0, count))
    logprobs = np.minimum(old + rng.normal(0, scale, count), -1e-3)
    advantages = np.repeat(rng.normal(0, 1, len(lengths)), lengths)
    return LossTokens(
        logprobs=torch.tensor(logprobs, requires_grad=True),
        entropies=torch.tensor(rng.uniform(0, 2, count), requires_grad=True),
        old_logprobs=torch.tensor(np.where(expert, 0.0, old)),
        ref_logprobs=torch.tensor(old + rng.normal(0, scale, count)),
        advantages=torch.tensor(np.where(expert, 0.0, advantages)),
        expert=torch.tensor(expert),
        sequence=torch.tensor(np.repeat(np.arange(len(lengths)), lengths)),
        sequences=len(lengths),
        stage_step=stage_step,
    )


def responses_of(tokens: LossTokens, chosen: Sequence[int]) -> tuple[LossTokens, Tensor]:
    """Some responses of them in this order, as a micro-batch; and the places of its tokens, whose gradient flows on."""
    places = torch.cat([torch.nonzero(tokens.sequence == each)[:, 0] for each in chosen])
    at = {each: number for number, each in enumerate(chosen)}
    ref = tokens.ref_logprobs
    taken = dataclasses.replace(
        tokens,
        logprobs=tokens.logprobs[places],
        entropies=tokens.entropies[places],
        old_logprobs=tokens.old_logprobs[places],
        ref_logprobs=None if ref is None else ref[places],
        advantages=tokens.advantages[places],
        expert=tokens.expert[places],
        sequence=torch.tensor([at[int(each)] for each in tokens.sequence[places]]),
        sequences=len(chosen),
    )
    return taken, places
