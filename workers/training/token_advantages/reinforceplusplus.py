"""REINFORCE++ and REINFORCE++-baseline: token rewards, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.baselines import NoAdvantage
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats
from rftd.workers.training.token_advantages.ppo import check_share
from rftd.workers.training.token_advantages.token_advantage import PassField
from rftd.workers.training.token_advantages.token_rows import discounted, token_rewards, whitened

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.training.losses.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusAdvantage(NoAdvantage):
    """The advantage is the sum of gamma^k r_{t+k}, whitened; the reward comes with the last token, less the KL penalty
    of each.

    Source: Hu 2025, REINFORCE++, arXiv 2501.03262.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)

    @property
    def needs(self) -> frozenset[PassField]:
        """No field: rewards and masks are enough."""
        return frozenset()

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """The advantages, whitened over the batch  # [N]"""
        return whitened(discounted(batch, token_rewards(batch), self.gamma))


class ReinforcePlusPlusBaselineAdvantage(OneGroup):
    """The advantage is reward - mean of the group, given to each token, then whitened over the trained tokens of the
    batch.

    The std is that of the batch: a group whose rewards differ little does not count more for it. A group of one has its
    reward. A KL penalty is taken from each token before it is whitened.
    Source: Hu 2025, REINFORCE++, arXiv 2501.03262, the variant with a group's baseline; as in verl.
    """

    @property
    def needs(self) -> frozenset[PassField]:
        """No field: rewards and masks are enough."""
        return frozenset()

    def of_group(self, group: ClosedGroup) -> Floats:
        """The rewards less their mean, in float64 and rounded once at the end  # [G]"""
        rewards = group.exact_rewards()
        return (rewards - rewards.mean() if len(rewards) > 1 else rewards).astype(np.float32)

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """The advantages, whitened over the batch  # [N]"""
        return whitened(batch.advantages)
