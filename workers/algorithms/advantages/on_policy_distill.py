"""`on_policy_distill`: how much likelier the teacher finds a token than the student that drew it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.algorithms.advantages.none import NoAdvantage
from rftd.workers.algorithms.advantages.token_advantage import PassField

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.algorithms.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True)
class OnPolicyDistillAdvantage(NoAdvantage):
    """kl_coef (teacher - old), of log-probabilities: the reverse KL, token by token. Rewards play no part."""

    kl_coef: float = 1.0

    @property
    def needs(self) -> frozenset[PassField]:
        """The teacher's log-probabilities."""
        return frozenset({"teacher_logprobs"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Not whitened  # [N]"""
        assert batch.teacher_logprobs is not None, "on_policy_distill was not given the log-probabilities of a teacher"
        return self.kl_coef * (batch.teacher_logprobs - batch.old_logprobs)
