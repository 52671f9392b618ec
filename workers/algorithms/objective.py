"""The objective of one stage: policy loss - entropy bonus + KL, each aggregated over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms.aggregation import Aggregation, TokenWeights
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
    aggregation: Aggregation
    needs_old_logprobs: bool

    @classmethod
    def of(cls, spec: AlgorithmSpec) -> Objective:
        """Makes the parts. Raises ConfigError for an unknown name or arguments that do not fit."""
        policy_loss = POLICY_LOSSES.open(spec.policy_loss, spec.policy_loss_args)
        kl = KL_LOSSES.open(spec.kl_loss, spec.kl_loss_args)
        return cls(
            policy_loss=policy_loss,
            kl=kl,
            entropy=ENTROPY_LOSSES.open(spec.entropy_loss, spec.entropy_loss_args),
            aggregation=Aggregation(
                spec.loss_agg_mode, spec.loss_scale_factor, getattr(policy_loss, "expert_agg_mode", None)
            ),
            needs_old_logprobs=lookup(spec.kind).needs.old_logprobs
            or getattr(policy_loss, "needs_old_logprobs", False)
            or (kl.needs_old_logprobs and kl.coef > 0),
        )

    @property
    def needs_reference(self) -> bool:
        """True if log-probabilities under a frozen reference are needed."""
        return self.kl.coef > 0 or getattr(self.policy_loss, "needs_reference", False)

    def terms(self, tokens: LossTokens, weights: TokenWeights[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of these tokens and what to report of them; both are summed over micro-batches.

        `weights` are those of the tokens in the whole batch  # [N] each
        """
        policy = self.policy_loss.per_token(tokens)
        weight, mean = (weights.of_kind, weights.mean_of_kind) if policy.by_kind else (weights.whole, weights.mean)
        if policy.summed:
            weight = mean = weights.mean.new_ones(())
        loss = (policy.loss * weight).sum()
        metrics = {f"actor/{name}": (value * mean).sum() for name, value in policy.metrics.items()}
        metrics["actor/pg_loss"] = loss.detach()
        metrics["actor/entropy"] = (tokens.entropies.detach() * weights.mean).sum()
        entropy = self._entropy(tokens, weights)
        metrics["actor/entropy_loss"] = entropy.detach()
        if self.entropy.coef != 0:
            loss = loss - self.entropy.coef * entropy
        if self.kl.coef > 0:
            assert tokens.ref_logprobs is not None
            at_token = self.kl.estimate(tokens.logprobs, tokens.ref_logprobs, tokens.old_logprobs)
            kl = (at_token * weights.whole).sum()
            metrics["actor/kl_loss"] = kl.detach()
            loss = loss + self.kl.coef * kl
        metrics["actor/final_loss"] = loss.detach()
        return loss, metrics

    def _entropy(self, tokens: LossTokens, weights: TokenWeights[Tensor]) -> Tensor:
        entropies = tokens.entropies if self.entropy.coef != 0 else tokens.entropies.detach()
        if self.entropy.without_expert:
            return (entropies * weights.of_kind).masked_fill(tokens.expert, 0.0).sum()
        return (entropies * weights.whole).sum()
