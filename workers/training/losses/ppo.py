"""`ppo`: the clipped policy gradient, with dual clip."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.ops.errors import ConfigError
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class PpoLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 at most -A c, so that one token cannot dominate.

    Source: Schulman et al. 2017, arXiv 1707.06347; dual clip: Ye et al. 2020, arXiv 1912.09729.
    """

    clip_range: float = 0.2
    clip_range_low: float | None = None
    """Instead of `clip_range` below 1."""
    clip_range_high: float | None = None
    """Instead of `clip_range` above 1."""
    clip_ratio_c: float = 3.0
    enable_sequence_masking: bool = False
    """No loss from responses with A < 0 that have drifted: mean(old - new) above `delta`."""
    delta: float = 0.1
    fallback_to_policy_gradient: bool = False
    """Take the weights that drew the tokens for the current ones: the ratio is 1, its gradient that of logprob."""

    def __post_init__(self) -> None:
        if self.low < 0 or self.high < 0:
            raise ConfigError(
                f"the clip range is [1 - {self.low}, 1 + {self.high}]",
                field="policy_loss_fn_args.clip_range",
                fix="use ranges of 0 or more",
            )
        if self.clip_ratio_c <= 1:
            raise ConfigError(
                f"clip_ratio_c is {self.clip_ratio_c}", field="policy_loss_fn_args.clip_ratio_c", fix="use one above 1"
            )

    @property
    def needs_old_logprobs(self) -> bool:
        """False if the present ones are taken for them."""
        return not self.fallback_to_policy_gradient

    @property
    def low(self) -> float:
        """The distance below 1 to which the ratio is followed."""
        return self.clip_range if self.clip_range_low is None else self.clip_range_low

    @property
    def high(self) -> float:
        """The distance above 1 to which the ratio is followed."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The dual-clipped loss  # [N]"""
        advantages = tokens.advantages
        old = tokens.logprobs.detach() if self.fallback_to_policy_gradient else tokens.old_logprobs
        log_ratio = (tokens.logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = log_ratio.exp()
        plain = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - self.low, 1 + self.high)
        worse = plain.maximum(clipped)
        bound = -advantages * self.clip_ratio_c
        negative = advantages < 0
        loss = worse.minimum(bound).where(negative, worse)
        metrics = {
            "pg_clipfrac": (clipped > plain).to(loss.dtype),
            "pg_clipfrac_lower": ((worse > bound) & negative).to(loss.dtype),
            "ppo_kl": -log_ratio.detach(),
        }
        of_responses = {}
        if self.enable_sequence_masking:
            drift = tokens.sequence_mean((old - tokens.logprobs).detach())
            masked = negative & (drift > self.delta)
            loss = loss.masked_fill(masked, 0.0)
            metrics["seq_mask/masked_tokens"] = masked.to(loss.dtype)
            of_responses["seq_mask/mean_sequence_kl"] = drift
        metrics["pg_loss"] = loss.detach()
        return TokenLoss(loss=loss, metrics=metrics, of_responses=of_responses)
