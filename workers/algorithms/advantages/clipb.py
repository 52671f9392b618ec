"""`clipb`: GRPO's advantage, without tokens that would cost the policy its entropy, judged within the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.algorithms.advantages.grpo import GrpoAdvantage
from rftd.workers.algorithms.advantages.token_advantage import PassField

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.algorithms.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipBAdvantage(GrpoAdvantage):
    """Zero where the advantage is negative and the signal p (H + log p) is below mean - mu std over the batch."""

    mu: float = 2.5

    @property
    def needs(self) -> frozenset[PassField]:
        """Log-probabilities and entropies under the weights before the step."""
        return frozenset({"logprobs", "entropies"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """With the masked ones at zero  # [N]"""
        found = signal(batch)
        if len(found) < 2:
            return batch.advantages
        low = found < found.mean() - self.mu * found.std()
        return batch.advantages.masked_fill(low & (batch.advantages < 0), 0.0)


def signal(batch: BatchTokens) -> Tensor:
    """p (H + log p): how the entropy answers to more of the token  # [N]"""
    assert batch.logprobs is not None and batch.entropies is not None, "no log-probabilities and entropies were given"
    return batch.logprobs.exp() * (batch.entropies + batch.logprobs)
