"""`Objective`: policy loss - entropy bonus + KL, each aggregated over the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction, Remembering
from rftd.workers.learning.algorithms.advantages.registry import advantage_function
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.losses import diagnostics
from rftd.workers.learning.losses.aggregation import Aggregation, TokenWeights
from rftd.workers.learning.losses.entropy_losses import ENTROPY_LOSSES, EntropyLoss
from rftd.workers.learning.losses.kl_losses import KL_LOSSES, KlLoss
from rftd.workers.learning.losses.policy_loss import LossNeeds, LossTokens, PolicyLoss, TokenLoss
from rftd.workers.learning.losses.registry import policy_loss
from rftd.workers.learning.token_advantages.penalised import check_penalised
from rftd.workers.learning.token_advantages.token_advantage import PassField, TokenAdvantage, token_advantage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of a stage, built from the parts named in its specification. Terms of micro-batches add up to those of
    their batch.
    """

    policy_loss: PolicyLoss
    """The main term."""
    kl: KlLoss
    """KL added to the loss."""
    entropy: EntropyLoss
    """Entropy bonus."""
    aggregation: Aggregation
    """Aggregation of token losses."""
    needs_old_logprobs: bool
    """True if log-probabilities under the weights that drew the tokens are needed."""
    correction: Chain
    """Corrections for tokens drawn by older weights."""
    kl_penalty: KlLoss
    """KL subtracted from rewards or advantages."""
    token_advantage: TokenAdvantage | None = None
    """Advantages of single tokens; None: those of the groups are used."""
    penalised_advantage: AdvantageFunction | None = None
    """The group's advantage function, if the KL penalty is subtracted from rewards before it is computed; else None."""
    remembering: Remembering | None = None
    """The advantage function, if relative to earlier batches; else None."""
    from_rollouts: bool = True
    """False for a stage trained on dataset rows alone, whose tokens no policy drew."""
    policy_loss_name: str = ""
    """Name of the policy loss, for errors."""

    @classmethod
    def of(cls, spec: AlgorithmSpec, sources: Mapping[str, str] | None = None, *, runs: bool = True) -> Objective:
        """Builds the parts named by the algorithm. Raises ConfigError for an unknown name or unfit arguments.

        `sources` are the texts of the stage's Python files; without `runs`, a loss of a file is only outlined.
        """
        loss = policy_loss(spec, sources or {}, runs=runs)
        needs = LossNeeds.of(loss)
        kl = KL_LOSSES.open(spec.kl_loss, spec.kl_loss_args)
        return cls(
            policy_loss=loss,
            kl=kl,
            entropy=ENTROPY_LOSSES.open(spec.entropy_loss, spec.entropy_loss_args),
            aggregation=Aggregation(
                spec.loss_agg_mode, spec.loss_scale_factor, needs.expert_agg_mode, needs.observations
            ),
            needs_old_logprobs=lookup(spec.kind).needs.old_logprobs
            or needs.old_logprobs
            or (kl.needs_old_logprobs and kl.coef > 0),
            correction=Chain.of(spec.correction, needs.corrections),
            kl_penalty=KL_LOSSES.open(spec.kl_penalty, spec.kl_penalty_args),
            token_advantage=token_advantage(spec),
            penalised_advantage=_penalised_advantage(spec),
            remembering=_remembering(spec),
            from_rollouts=lookup(spec.kind).needs.rollouts,
            policy_loss_name=spec.policy_loss,
        )

    @property
    def needs_reference(self) -> bool:
        """True if log-probabilities under a frozen copy of the initial policy are needed."""
        return self.kl.coef > 0 or "ref_logprobs" in self.pass_fields or LossNeeds.of(self.policy_loss).reference

    def fields_before(self, *, several_steps: bool) -> frozenset[PassField]:
        """Returns the fields to compute over the complete batch before its first optimizer step; more of them if
        `several_steps` follow.
        """
        fields = set(self.pass_fields)
        if several_steps and self.correction.decoupled:
            fields.add("logprobs")
        if several_steps and self.needs_reference:
            fields.add("ref_logprobs")  # frozen, so once is enough
        return frozenset(fields)

    @property
    def pass_fields(self) -> frozenset[PassField]:
        """The fields needed over the complete batch before its first step, each at the cost of a forward pass."""
        fields: set[PassField] = set()
        if self.kl_penalty.coef > 0:
            fields.add("ref_logprobs")
        if self.correction.whole_batch:
            fields.add("logprobs")
        return frozenset(fields | (self.token_advantage.needs if self.token_advantage else frozenset()))

    def terms(
        self, tokens: LossTokens, weights: TokenWeights[Tensor], *, kl_coef: float | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of a micro-batch's tokens, and figures to be combined over micro-batches by
        `diagnostics.joined`.

        `weights` are the tokens' weights in the complete batch  # [N] each. `kl_coef` replaces the KL loss's
        coefficient, if adaptive. Raises ConfigError for a loss of a wrong shape, or without a gradient.
        """
        # Figures of mismatch compare with the weights that drew the tokens; after `applied` the old ones may be the
        # proximal.
        drawn = tokens
        tokens = self.correction.applied(tokens)
        policy = self.policy_loss.per_token(tokens)
        self._check_shape(policy, tokens)
        weight, mean = (weights.of_kind, weights.mean_of_kind) if policy.by_kind else (weights.whole, weights.mean)
        # Losses of pairs are weighted by pairs, not tokens; multiplying the token weights in once more would shrink
        # them.
        if policy.summed:
            weight = mean = weights.mean.new_ones(())
            loss = policy.loss.sum()
        else:
            loss = (tokens.corrected(policy.loss) * weight).sum()
        metrics = diagnostics.of_tokens(drawn, tokens, policy, weights.mean) if self.from_rollouts else {}
        metrics |= {f"actor/{name}": (value * mean).sum() for name, value in policy.metrics.items()}
        for name, value in policy.of_responses.items():
            metrics[f"actor/{name}"] = (value * weights.response_mean).sum()
        # Detached, or every figure would hold the graph of its micro-batch until the step ends.
        metrics["actor/pg_loss"] = loss.detach()
        if tokens.entropies is not None:
            metrics["actor/entropy"] = (tokens.entropies.detach() * weights.mean).sum()
            entropy = self._entropy(tokens.entropies, tokens.expert, weights)
            metrics["actor/entropy_loss"] = entropy.detach()
            if self.entropy.coef != 0:
                loss = loss - self.entropy.coef * entropy
        if self.kl.coef > 0:
            assert tokens.ref_logprobs is not None
            at_token = self.kl.estimate(tokens.logprobs, tokens.ref_logprobs, tokens.old_logprobs)
            kl = (at_token * weights.whole).sum()
            metrics["actor/kl_loss"] = kl.detach()
            loss = loss + (self.kl.coef if kl_coef is None else kl_coef) * kl
        metrics["actor/final_loss"] = loss.detach()
        return loss, metrics

    def token_terms(
        self, drawn: LossTokens, weights: TokenWeights[Tensor], *, kl_coef: float | None = None
    ) -> dict[str, Tensor]:
        """Returns the terms of `terms` at each token, without a gradient  # [N] each

        `ratio` is to the weights that drew the token, NaN for dataset rows; `kl` is the estimate to the reference, for
        an objective with one. `policy_term`, `entropy_term` and `kl_term` of all tokens add up to the loss.
        """
        drawn = replace(drawn, logprobs=drawn.logprobs.detach())
        tokens = self.correction.applied(drawn)
        policy = self.policy_loss.per_token(tokens)
        weight = weights.of_kind if policy.by_kind else weights.whole
        gap = drawn.log_ratio().masked_fill(drawn.expert, math.nan)
        columns = {
            "ratio": gap.exp(),
            "policy_term": policy.loss if policy.summed else tokens.corrected(policy.loss) * weight,
        }
        if tokens.entropies is not None and self.entropy.coef != 0:
            entropies = tokens.entropies.detach()
            if self.entropy.without_expert:
                entropies = (entropies * weights.of_kind).masked_fill(tokens.expert, 0.0)
            else:
                entropies = entropies * weights.whole
            columns["entropy_term"] = -self.entropy.coef * entropies
        if tokens.ref_logprobs is not None:
            estimate = self.kl.estimate if self.kl.coef > 0 else self.kl_penalty.estimate
            columns["kl"] = estimate(tokens.logprobs, tokens.ref_logprobs, tokens.old_logprobs)
        if self.kl.coef > 0:
            columns["kl_term"] = (self.kl.coef if kl_coef is None else kl_coef) * columns["kl"] * weights.whole
        return columns

    def _check_shape(self, policy: TokenLoss, tokens: LossTokens) -> None:
        """Raises ConfigError if the policy loss returned a column of another shape, or a loss without a gradient where
        a gradient is recorded.
        """
        expected = tokens.logprobs.shape
        columns = {"loss": policy.loss, **policy.metrics, **policy.of_responses}
        wrong = next((name for name, value in columns.items() if value.shape != expected), None)
        if wrong is not None:
            raise ConfigError(
                f"policy loss {self.policy_loss_name!r} gave {wrong} of shape {tuple(columns[wrong].shape)} for "
                f"{expected[0]} tokens",
                field="algorithm.policy_loss_fn",
                fix="let per_token return one value for each trained token, before any aggregation",
            )
        # A loss from a detached copy would train nothing, without a word: gradients are zero, and so finite.
        if tokens.logprobs.requires_grad and not policy.loss.requires_grad:
            raise ConfigError(
                f"policy loss {self.policy_loss_name!r} gave a loss without a gradient",
                field="algorithm.policy_loss_fn",
                fix="compute it from tokens.logprobs, not from a detached copy",
            )

    def _entropy(self, entropies: Tensor, expert: Tensor, weights: TokenWeights[Tensor]) -> Tensor:
        """Returns the aggregated entropy, without gradient if its coefficient is 0."""
        # A zero coefficient must cost nothing: detached, the entropy's half of the backward pass is left out.
        if self.entropy.coef == 0:
            entropies = entropies.detach()
        if self.entropy.without_expert:
            return (entropies * weights.of_kind).masked_fill(expert, 0.0).sum()
        return (entropies * weights.whole).sum()


def _remembering(spec: AlgorithmSpec) -> Remembering | None:
    function = advantage_function(spec)
    return function if isinstance(function, Remembering) else None


def _penalised_advantage(spec: AlgorithmSpec) -> AdvantageFunction | None:
    """Returns the advantage function of an algorithm whose KL penalty comes before normalisation; None for any
    other.
    """
    if spec.kl_penalty_place != "before" or spec.kl_penalty == "none":
        return None
    function = advantage_function(spec)
    check_penalised(function, spec.advantage)
    return function
