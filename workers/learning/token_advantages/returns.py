"""Advantages from discounted returns: GAE of a critic (`ppo`), REINFORCE++ and its variant with a group's baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats
from rftd.workers.learning.algorithms.advantages.none import NoAdvantage
from rftd.workers.learning.token_advantages.token_advantage import PassField
from rftd.workers.learning.token_advantages.token_rows import discounted, following, token_rewards, whitened

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True)
class PpoAdvantage(NoAdvantage):
    """The advantage is A_t = sum over k of (gamma lambda)^k delta_{t+k}, whitened over the batch, where
    delta_t = r_t + gamma V_{t+1} - V_t.

    The reward comes with the last trained token, less the KL penalty of each. Tokens that are not trained are no steps.
    Source: Schulman et al. 2016, GAE, arXiv 1506.02438, equation 16.
    """

    gamma: float = 1.0
    """Discount of later rewards."""
    lam: float = 1.0
    """lambda of the generalised advantage."""

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            check_share(name, getattr(self, name))

    @property
    def needs(self) -> frozenset[PassField]:
        """The field needed of the batch: the critic's values."""
        return frozenset({"values"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns the generalised advantage of each token, whitened over the batch: mean 0, std 1  # [N]"""
        return whitened(self.estimate(batch))

    def estimate(self, batch: BatchTokens) -> Tensor:
        """Returns the generalised advantages before whitening; the critic's target is its value plus these  # [N]"""
        assert batch.values is not None, "ppo was not given the values of a critic"
        # V after the last token is 0: the episode is over, also where the answer was cut off at its length limit.
        delta = token_rewards(batch) + self.gamma * following(batch, batch.values) - batch.values
        return discounted(batch, delta, self.gamma * self.lam)


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusAdvantage(NoAdvantage):
    """The advantage is the sum of gamma^k r_{t+k}, whitened; the reward comes with the last token, less the KL penalty
    of each.

    Source: Hu 2025, REINFORCE++, arXiv 2501.03262.
    """

    gamma: float = 1.0
    """Discount of later rewards."""

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)

    @property
    def needs(self) -> frozenset[PassField]:
        """No field: rewards and masks suffice."""
        return frozenset()

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns each token's discounted return, whitened over the batch: mean 0, std 1  # [N]"""
        return whitened(discounted(batch, token_rewards(batch), self.gamma))


class ReinforcePlusPlusBaselineAdvantage(OneGroup):
    """The advantage is reward - mean of the group, equal for all tokens of a response, then whitened over the trained
    tokens of the batch.

    The std is the batch's: a group of nearly equal rewards does not gain weight by it. A group of one has its reward as
    advantage. A KL penalty is subtracted from each token before whitening.

    Source: Hu 2025, REINFORCE++, arXiv 2501.03262, the variant with a group's baseline; as in verl.
    """

    @property
    def needs(self) -> frozenset[PassField]:
        """No field: rewards and masks suffice."""
        return frozenset()

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the rewards less their mean, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        return (rewards - rewards.mean() if len(rewards) > 1 else rewards).astype(np.float32)

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns the advantages of the batch's tokens, whitened over the batch: mean 0, std 1  # [N]"""
        return whitened(batch.advantages)


def check_not_negative(name: str, value: float) -> None:
    """Raises ConfigError if the value of the argument `name` is below 0 or NaN."""
    if not value >= 0:
        raise ConfigError(f"{name} is {value}", field=f"advantage_fn_args.{name}", fix="use 0 or more")


def check_share(name: str, value: float) -> None:
    """Raises ConfigError unless the value of the argument `name` is from 0 to 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}", field=f"advantage_fn_args.{name}", fix="use a number from 0 to 1")
