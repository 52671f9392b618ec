"""`reinforceplusplus`: discounted returns, whitened over the batch, without a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.algorithms.advantages.none import NoAdvantage
from rftd.workers.algorithms.advantages.ppo import check_share
from rftd.workers.algorithms.advantages.token_advantage import PassField
from rftd.workers.algorithms.advantages.token_rows import discounted, token_rewards, whitened

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.algorithms.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusAdvantage(NoAdvantage):
    """The sum of gamma^k r_{t+k}, whitened; the reward comes with the last token, less the KL penalty of each."""

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)

    @property
    def needs(self) -> frozenset[PassField]:
        """Nothing."""
        return frozenset()

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Whitened over the batch  # [N]"""
        return whitened(discounted(batch, token_rewards(batch), self.gamma))
