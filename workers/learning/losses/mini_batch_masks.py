"""Losses that mask or mark tokens chosen among all tokens of an optimizer step: `m2po`, `clip_cov` and `kl_cov`.

The choice is a correction of scope `mini_batch` (`corrections/`), computed before the step with the weights before it.
The loss itself is computed for every token, masked ones too: the objective applies the masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.learning.corrections.correction import Correction
from rftd.workers.learning.corrections.covariance import ClipCov, KlCov
from rftd.workers.learning.corrections.rejection import M2po
from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class M2poLoss:
    """The loss is -A r, with log r clamped to ±log_ratio_clip, without the tokens of the largest (log r)².

    Before each optimizer step, among the step's tokens that move away from the weights that drew them, those with the
    largest (log r)² are masked until the mean of the others is at most m2_threshold; r is taken with the weights before
    the step. The authors' code, and AReaL's, compute the mask for each micro-batch separately.

    Source: Zheng et al. 2025, Prosperity before Collapse (M2PO), arXiv 2510.01161.
    """

    m2_threshold: float = 0.04
    """Upper bound of the mean of (log r)² over the remaining tokens."""
    log_ratio_clip: float = LOG_RATIO_LIMIT
    """Bound of |log r|."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(0, m2_threshold=self.m2_threshold)
        arguments.above(0, log_ratio_clip=self.log_ratio_clip)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The correction that computes the mask."""
        return (M2po(threshold=self.m2_threshold),)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of every token, masked ones included  # [N]"""
        log_ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-self.log_ratio_clip, self.log_ratio_clip)
        return TokenLoss(loss=-tokens.advantages * log_ratio.exp(), metrics={"ppo_kl": -log_ratio.detach()})


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipCovLoss:
    """The loss is max(-A r, -A clip(r, 1 - low, 1 + high)), without some tokens of large covariance c = (A - mean of A)
    (logprob - mean of logprob), with means over the step's tokens.

    Among tokens with clip_cov_lb < c < clip_cov_ub that the clip does not stop, a random share clip_cov_ratio of the
    step's tokens is masked, at least one. They are chosen before each optimizer step among all of its tokens, with the
    weights before it; verl chooses in each micro-batch separately. There is no dual clip.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617; as in verl.
    """

    clip_range: float = 0.2
    """Clip range of the ratio on both sides, unless a side has its own."""
    clip_range_low: float | None = None
    """Clip range below 1; None: `clip_range`."""
    clip_range_high: float | None = None
    """Clip range above 1; None: `clip_range`."""
    clip_cov_ratio: float = 0.0002
    """Share of the step's tokens to mask."""
    clip_cov_lb: float = 1.0
    """Lower bound of the covariance of masked tokens."""
    clip_cov_ub: float = 5.0
    """Upper bound of the covariance of masked tokens."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(0, clip_range=self.clip_range)
        arguments.at_least(0, clip_range_low=self.clip_range_low, clip_range_high=self.clip_range_high)
        arguments.share(clip_cov_ratio=self.clip_cov_ratio)
        arguments.above(self.clip_cov_lb, clip_cov_ub=self.clip_cov_ub)

    @property
    def low(self) -> float:
        """Clip range below 1: ratios below 1 - low have no gradient where A < 0."""
        return self.clip_range if self.clip_range_low is None else self.clip_range_low

    @property
    def high(self) -> float:
        """Clip range above 1: ratios above 1 + high have no gradient where A > 0."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The correction that computes the mask."""
        chosen = ClipCov(
            ratio=self.clip_cov_ratio,
            low=self.clip_cov_lb,
            high=self.clip_cov_ub,
            clip_range_low=self.low,
            clip_range_high=self.high,
        )
        return (chosen,)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the clipped loss of every token, masked ones included  # [N]"""
        log_ratio = tokens.log_ratio()
        ratio = log_ratio.exp()
        plain = -tokens.advantages * ratio
        clipped = -tokens.advantages * ratio.clamp(1 - self.low, 1 + self.high)
        metrics = {"pg_clipfrac": (clipped > plain).to(plain.dtype), "ppo_kl": -log_ratio.detach()}
        return TokenLoss(loss=plain.maximum(clipped), metrics=metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class KlCovLoss:
    """The loss is -A r, plus ppo_kl_coef |log r| for the tokens of the largest covariance c = (A - mean of A) (logprob
    - mean of logprob), with means over the step's tokens.

    The penalised tokens are a share kl_cov_ratio of the step's tokens, at least one, with a covariance above 0. They
    are chosen before each optimizer step among all of its tokens, with the weights before it; verl chooses in each
    micro-batch separately.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617; as in verl.
    """

    kl_cov_ratio: float = 0.0002
    """Share of the step's tokens to penalise."""
    ppo_kl_coef: float = 1.0
    """Coefficient of |log r| of penalised tokens."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.share(kl_cov_ratio=self.kl_cov_ratio)
        arguments.above(0, kl_cov_ratio=self.kl_cov_ratio)
        arguments.at_least(0, ppo_kl_coef=self.ppo_kl_coef)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The correction that marks the penalised tokens."""
        return (KlCov(ratio=self.kl_cov_ratio),)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token; marked tokens are pulled towards the weights that drew them  # [N]"""
        log_ratio = tokens.log_ratio()
        loss = -tokens.advantages * log_ratio.exp()
        metrics = {"ppo_kl": -log_ratio.detach()}
        if tokens.marked is not None:
            loss = loss + self.ppo_kl_coef * log_ratio.abs().where(tokens.marked, log_ratio.new_zeros(()))
            metrics["held"] = tokens.marked.to(loss.dtype)
        return TokenLoss(loss=loss, metrics=metrics)
