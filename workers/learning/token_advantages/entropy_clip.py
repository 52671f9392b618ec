"""Advantages of grpo, set to 0 for tokens that would lower the entropy too much: Clip_B and Clip_V."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.grpo import GrpoAdvantage
from rftd.workers.learning.token_advantages.returns import check_not_negative
from rftd.workers.learning.token_advantages.token_advantage import PassField

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipBAdvantage(GrpoAdvantage):
    """The advantage is grpo's, or 0 where it is negative and the signal p (H + log p) is below mean - mu std over the
    batch.

    Source: arXiv 2602.03392, On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language Models.
    """

    mu: float = 2.5
    """Distance below the mean from which a negative advantage becomes 0, in standard deviations of the signal."""

    def __post_init__(self) -> None:
        GrpoAdvantage.__post_init__(self)
        check_not_negative("mu", self.mu)

    @property
    def needs(self) -> frozenset[PassField]:
        """The fields needed of the batch: log-probabilities and entropies under the weights before the step."""
        return frozenset({"logprobs", "entropies"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns grpo's advantages, 0 at the tokens masked by the clip  # [N]"""
        signals = signal(batch)
        # The std of a single value is NaN.
        if len(signals) < 2:
            return batch.advantages
        low = signals < signals.mean() - self.mu * signals.std()
        return batch.advantages.masked_fill(low & (batch.advantages < 0), 0.0)


def signal(batch: BatchTokens) -> Tensor:
    """Returns p (H + log p) of each token: the change of the entropy as the token becomes likelier  # [N]"""
    assert batch.logprobs is not None and batch.entropies is not None, "no log-probabilities and entropies were given"
    return batch.logprobs.exp() * (batch.entropies + batch.logprobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipVAdvantage(GrpoAdvantage):
    """The advantage is grpo's, or 0 where it is negative and the signal p (H + log p) is more than mu std below its
    mean over the vocabulary; of the batch's tokens at most the share max_frac is 0, those farthest below.

    Source: arXiv 2602.03392, On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language Models.
    """

    mu: float = 8.5
    """Distance below the vocabulary's mean from which a negative advantage becomes 0, in standard deviations of the
    distance.
    """
    max_frac: float = 1e-4
    """Largest share of the batch's tokens whose advantage is set to 0."""

    def __post_init__(self) -> None:
        GrpoAdvantage.__post_init__(self)
        check_not_negative("mu", self.mu)
        if not 0 <= self.max_frac <= 1:
            raise ConfigError(
                f"max_frac is {self.max_frac}", field="advantage_fn_args.max_frac", fix="use a number from 0 to 1"
            )

    @property
    def needs(self) -> frozenset[PassField]:
        """The fields needed of the batch: log-probabilities and entropies under the weights before the step, and the
        signal's mean over the vocabulary.
        """
        return frozenset({"logprobs", "entropies", "entropy_signals"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns grpo's advantages, 0 at the tokens masked by the clip  # [N]"""
        assert batch.entropy_signals is not None, "clipv was not given the signal's mean over the vocabulary"
        below = batch.entropy_signals - signal(batch)
        count = int(self.max_frac * len(below))
        if len(below) < 2 or not count:
            return batch.advantages
        far = (below > self.mu * below.std()) & (batch.advantages < 0)
        signals = below.masked_fill(~far, -math.inf)
        # The masked ones sort last at minus infinity; `far` is looked up again, for `count` may reach them.
        chosen = signals.argsort(descending=True, stable=True)[:count]
        masked = far.new_zeros(far.shape)
        masked[chosen] = far[chosen]
        return batch.advantages.masked_fill(masked, 0.0)
