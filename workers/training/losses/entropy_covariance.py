"""`clip_cov` and `kl_cov`: few tokens make a policy lose its entropy; they are left out, or held."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.training.corrections.correction import Correction
from rftd.workers.training.corrections.covariance import ClipCov, KlCov
from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipCovLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), without some tokens whose covariance c is large:
    c = (A - mean of A) (logprob - mean of logprob), with means over the step's tokens.

    Of those with clip_cov_lb < c < clip_cov_ub that the clip does not stop, clip_cov_ratio of the step's tokens are
    left out, at least one, chosen by chance. They are found before each optimizer step among all of its tokens, by the
    weights before it; in verl among those of each micro-batch by itself. No dual clip.
    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617; as in verl.
    """

    clip_range: float = 0.2
    clip_range_low: float | None = None
    """Instead of `clip_range` below 1."""
    clip_range_high: float | None = None
    """Instead of `clip_range` above 1."""
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.at_least(0, clip_range=self.clip_range)
        arguments.at_least(0, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high)
        arguments.share(clip_cov_ratio=self.clip_cov_ratio)
        arguments.above(self.clip_cov_lb, clip_cov_ub=self.clip_cov_ub)

    @property
    def low(self) -> float:
        """The distance below 1 to which the ratio is followed."""
        return self.clip_range if self.clip_range_low is None else self.clip_range_low

    @property
    def high(self) -> float:
        """The distance above 1 to which the ratio is followed."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The mask."""
        chosen = ClipCov(
            ratio=self.clip_cov_ratio,
            low=self.clip_cov_lb,
            high=self.clip_cov_ub,
            clip_range_low=self.low,
            clip_range_high=self.high,
        )
        return (chosen,)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The clipped loss of every token, masked ones too  # [N]"""
        log_ratio = tokens.log_ratio()
        ratio = log_ratio.exp()
        plain = -tokens.advantages * ratio
        clipped = -tokens.advantages * ratio.clamp(1 - self.low, 1 + self.high)
        metrics = {"pg_clipfrac": (clipped > plain).to(plain.dtype), "ppo_kl": -log_ratio.detach()}
        return TokenLoss(loss=plain.maximum(clipped), metrics=metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class KlCovLoss:
    """-A r, and for the tokens of the largest covariance ppo_kl_coef |log r| beside it: c = (A - mean of A) (logprob -
    mean of logprob), with means over the step's tokens.

    Those are kl_cov_ratio of the step's tokens, at least one, as far as their covariance is above 0. They are found
    before each optimizer step among all of its tokens, by the weights before it; in verl among those of each
    micro-batch by itself.
    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617; as in verl.
    """

    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 1.0

    needs_old_logprobs = True

    def __post_init__(self) -> None:
        arguments.share(kl_cov_ratio=self.kl_cov_ratio)
        arguments.above(0, kl_cov_ratio=self.kl_cov_ratio)
        arguments.at_least(0, ppo_kl_coef=self.ppo_kl_coef)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The marks of the tokens that are held."""
        return (KlCov(ratio=self.kl_cov_ratio),)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss, with a pull to the weights that drew the token where it is marked  # [N]"""
        log_ratio = tokens.log_ratio()
        loss = -tokens.advantages * log_ratio.exp()
        metrics = {"ppo_kl": -log_ratio.detach()}
        if tokens.marked is not None:
            loss = loss + self.ppo_kl_coef * log_ratio.abs().where(tokens.marked, log_ratio.new_zeros(()))
            metrics["held"] = tokens.marked.to(loss.dtype)
        return TokenLoss(loss=loss, metrics=metrics)
