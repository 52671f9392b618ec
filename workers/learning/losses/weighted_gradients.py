"""REINFORCE losses: -A logprob times a weight without gradient, so that every token learns.

`cispo` clips the weight, `reinforce` truncates it, `topr` tapers it for bad answers, `opmd` has none, and `rec` is the
family of them with any mask, weight and regularizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class CispoLoss:
    """The loss is -A sg(clip(r, 1 - low, 1 + high)) logprob: a clipped token still learns, with a bounded weight.

    Source: MiniMax 2025, MiniMax-M1, arXiv 2506.13585.
    """

    clip_range_low: float = 1.0
    """Clip range below 1."""
    clip_range_high: float = 0.28
    """Clip range above 1."""
    enable_mask_clip: bool = False
    """True: tokens that PPO would clip have no loss: A > 0 and r > 1 + mask high, or A < 0 and r < 1 - mask low."""
    mask_clip_range_low: float = 1.0
    """Range of the ratio below 1 outside of which a bad token is masked."""
    mask_clip_range_high: float = 0.28
    """Range of the ratio above 1 outside of which a good token is masked."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(
            0,
            clip_range_low=self.clip_range_low,
            clip_range_high=self.clip_range_high,
            mask_clip_range_low=self.mask_clip_range_low,
            mask_clip_range_high=self.mask_clip_range_high,
        )

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, weighted by its clipped ratio  # [N]"""
        advantages = tokens.advantages
        # Detached: a clamp has no gradient beyond its bounds, and a clipped token would stop learning as under PPO.
        log_ratio = tokens.log_ratio().detach()
        ratio = log_ratio.exp()
        loss = -advantages * ratio.clamp(1 - self.clip_range_low, 1 + self.clip_range_high) * tokens.logprobs
        metrics = {"ppo_kl": -log_ratio}
        if self.enable_mask_clip:
            masked = (advantages > 0) & (ratio > 1 + self.mask_clip_range_high)
            masked |= (advantages < 0) & (ratio < 1 - self.mask_clip_range_low)
            loss = loss.masked_fill(masked, 0.0)
            metrics["unmasked_frac"] = (~masked).to(loss.dtype)
        return TokenLoss(loss=loss, metrics=metrics | {"cispo_loss": loss.detach()})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceLoss:
    """The loss is -A sg(min(r, 1 + epsilon_high)) logprob: tokens less likely than when drawn count less, and no token
    counts much more.

    Source: PipelineRL's default loss, Piché et al. 2025, arXiv 2509.19128.
    """

    epsilon_high: float = 0.02
    """Upper bound of the ratio, less 1."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.at_least(0, epsilon_high=self.epsilon_high)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, weighted by its truncated ratio  # [N]"""
        log_ratio = tokens.log_ratio().detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(max=1 + self.epsilon_high)
        metrics = {"truncated_frac": (ratio > weight).to(ratio.dtype), "ppo_kl": -log_ratio}
        return TokenLoss(loss=-tokens.advantages * weight * tokens.logprobs, metrics=metrics)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToprLoss:
    """The loss is -sg(α) A logprob; α is 1 where A > advantage_threshold, else clip(r, 0, 1).

    Source: Le Roux et al. 2025, Tapered Off-Policy REINFORCE, arXiv 2503.14286.
    """

    advantage_threshold: float = 0.0
    """Advantage above which a token is not tapered."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token, tapered where the advantage is low  # [N]"""
        ratio = tokens.log_ratio().detach().exp()
        # Where A < 0 the loss -A logprob falls without end as the token gets unlikely; the taper falls with its
        # probability.
        taper = ratio.clamp(0, 1).masked_fill(tokens.advantages > self.advantage_threshold, 1.0)
        return TokenLoss(loss=-taper * tokens.advantages * tokens.logprobs, metrics={"avg_taper": taper})


@dataclass(frozen=True, kw_only=True, slots=True)
class OpmdLoss:
    """The loss is -A logprob / (1 + tau). Old log-probabilities are not needed, so tokens may have any origin.

    Source: Pan et al. 2025, Trinity-RFT, arXiv 2505.17826, online policy mirror descent.
    """

    tau: float = 1.0
    """Strength of the regularisation."""

    def __post_init__(self) -> None:
        arguments.at_least(0, tau=self.tau)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the damped loss of each token  # [N]"""
        loss = -tokens.advantages * tokens.logprobs / (1 + self.tau)
        return TokenLoss(loss=loss, metrics={"opmd_loss": loss.detach()})


CLIP_MODES: Final = ("none", "one-side", "two-side", "gspo-one-side", "ring")
"""The values of `RecLoss.clip_mode`."""
WEIGHTS: Final = ("none", "importance_sampling", "gspo_importance_sampling", "advantage")
"""The accepted values of `RecLoss.weight`."""
REGULARIZERS: Final = ("none", "k2", "forward-kl")
"""The accepted values of `RecLoss.regularizer`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecLoss:
    """The loss is -A' I logprob + regularizer, where I says whether a token's ratio r is inside, and A' is the weighted
    advantage.

    I: none 1; two-side 1 - low ≤ r ≤ 1 + high; one-side only the bound that A moves to; gspo-one-side the same of s,
    e to the response's mean log r; ring two-side, or A ≥ 0 and r ≤ 1 - low', or A ≤ 0 and r ≥ 1 + high'.
    A': none A; importance_sampling A sg(r); gspo_importance_sampling A sg(s); advantage A e^(A / temp).
    Regularizer, of every token: none; k2 coef (logprob - old logprob)²; forward-kl -coef logprob.
    Source: Yao et al. 2025, Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm, arXiv 2509.24203.
    """

    epsilon_low: float = 0.2
    """1 minus the lower bound of the ratio."""
    epsilon_high: float = 0.2
    """Upper bound of the ratio, less 1."""
    epsilon_low_prime: float = 0.6
    """low' of the mask `ring`."""
    epsilon_high_prime: float = 2.0
    """high' of the mask `ring`."""
    clip_mode: str = "none"
    """Name of the mask I."""
    weight: str = "none"
    """Name of the weight in A'."""
    regularizer: str = "none"
    """Name of the regularizer."""
    regularizer_coef: float = 0.0
    """Coefficient of the regularizer."""
    temp: float = 1.0
    """Temperature of the weight `advantage`."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.one_of(CLIP_MODES, clip_mode=self.clip_mode)
        arguments.one_of(WEIGHTS, weight=self.weight)
        arguments.one_of(REGULARIZERS, regularizer=self.regularizer)
        arguments.above(0, temp=self.temp)
        arguments.at_least(
            0,
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            epsilon_low_prime=self.epsilon_low_prime,
            epsilon_high_prime=self.epsilon_high_prime,
            regularizer_coef=self.regularizer_coef,
        )

    @property
    def loss_agg_mode(self) -> str | None:
        """The aggregation: seq-mean-token-mean for gspo-one-side, which clips complete responses; None, the
        algorithm's, for all other modes.
        """
        return "seq-mean-token-mean" if self.clip_mode == "gspo-one-side" else None

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token inside the clip range, plus the regularizer of every token  # [N]"""
        log_ratio = tokens.log_ratio().detach()
        # The mean is clamped after it is taken: clamped tokens would bias the response's ratio.
        mean = tokens.sequence_mean((tokens.logprobs - tokens.old_logprobs).detach())
        of_response = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        ratio = log_ratio.exp()
        inside = self._inside(tokens.advantages, of_response if self.clip_mode == "gspo-one-side" else ratio)
        loss = (-self._weighted(tokens.advantages, ratio, of_response) * tokens.logprobs).masked_fill(~inside, 0.0)
        if self.regularizer == "k2":
            loss = loss + self.regularizer_coef * (tokens.logprobs - tokens.old_logprobs).square()
        elif self.regularizer == "forward-kl":
            loss = loss - self.regularizer_coef * tokens.logprobs
        metrics = {"pg_clipfrac": (~inside).to(loss.dtype), "ppo_kl": -log_ratio}
        return TokenLoss(loss=loss, metrics=metrics)

    def _inside(self, advantages: Tensor, ratio: Tensor) -> Tensor:
        """Returns True for tokens with a policy gradient  # [N], [N] -> [N] bool"""
        below = ratio <= 1 + self.epsilon_high
        above = ratio >= 1 - self.epsilon_low
        two_side = below & above
        if self.clip_mode == "none":
            return two_side | ~two_side
        if self.clip_mode == "two-side":
            return two_side
        if self.clip_mode == "ring":
            far_below = (advantages >= 0) & (ratio <= 1 - self.epsilon_low_prime)
            far_above = (advantages <= 0) & (ratio >= 1 + self.epsilon_high_prime)
            return two_side | far_below | far_above
        return ((advantages >= 0) & below) | ((advantages <= 0) & above)

    def _weighted(self, advantages: Tensor, ratio: Tensor, of_response: Tensor) -> Tensor:
        """Returns the weighted advantages A'  # [N] each -> [N]"""
        if self.weight == "importance_sampling":
            return advantages * ratio
        if self.weight == "gspo_importance_sampling":
            return advantages * of_response
        if self.weight == "advantage":
            # A reward may have any size: e^(A / temp) would overflow float32 from A / temp = 88 on.
            return advantages * (advantages / self.temp).clamp(max=LOG_RATIO_LIMIT).exp()
        return advantages
