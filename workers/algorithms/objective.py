"""The objective of one stage: policy loss - entropy bonus + KL, each aggregated over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms import aggregation
from rftd.workers.algorithms.entropy_losses import ENTROPY_LOSSES, EntropyLoss
from rftd.workers.algorithms.kl_losses import KL_LOSSES, KlLoss
from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens, PolicyLoss
from rftd.workers.algorithms.policy_losses.registry import POLICY_LOSSES
from rftd.workers.algorithms.registry import lookup

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """The parts that a stage names, made. Terms of micro-batches add up to those of their batch."""

    policy_loss: PolicyLoss
    kl: KlLoss
    entropy: EntropyLoss
    mode: str
    needs_old_logprobs: bool

    @classmethod
    def of(cls, spec: AlgorithmSpec) -> Objective:
        """Makes the parts. Raises ConfigError for an unknown name or arguments that do not fit."""
        aggregation.check(spec.loss_agg_mode)
        return cls(
            policy_loss=POLICY_LOSSES.open(spec.policy_loss, spec.policy_loss_args),
            kl=KL_LOSSES.open(spec.kl_loss, spec.kl_loss_args),
            entropy=ENTROPY_LOSSES.open(spec.entropy_loss, spec.entropy_loss_args),
            mode=spec.loss_agg_mode,
            needs_old_logprobs=lookup(spec.kind).needs.old_logprobs,
        )

    @property
    def needs_reference(self) -> bool:
        """True if log-probabilities under a frozen reference are needed."""
        return self.kl.coef > 0

    def terms(self, tokens: LossTokens, weights: Tensor, mean_weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of these tokens and what to report of them; both are summed over micro-batches.

        `weights` are those of the aggregation, `mean_weights` those of token-mean  # [N], [N]
        """
        policy = self.policy_loss.per_token(tokens)
        loss = (policy.loss * weights).sum()
        metrics = {f"actor/{name}": (value * mean_weights).sum() for name, value in policy.metrics.items()}
        metrics["actor/pg_loss"] = loss.detach()
        metrics["actor/entropy"] = (tokens.entropies.detach() * mean_weights).sum()
        metrics["actor/entropy_loss"] = (tokens.entropies.detach() * weights).sum()
        if self.entropy.coef != 0:
            loss = loss - self.entropy.coef * (tokens.entropies * weights).sum()
        if self.needs_reference:
            assert tokens.ref_logprobs is not None
            kl = (self.kl.estimate(tokens.logprobs - tokens.ref_logprobs) * weights).sum()
            metrics["actor/kl_loss"] = kl.detach()
            loss = loss + self.kl.coef * kl
        metrics["actor/final_loss"] = loss.detach()
        return loss, metrics
