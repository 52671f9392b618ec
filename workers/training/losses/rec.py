"""`rec`: the family of REINFORCE losses, with any clip, weight and regularizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.workers.training.losses import arguments
from rftd.workers.training.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

CLIP_MODES: Final = ("none", "one-side", "two-side", "gspo-one-side", "ring")
WEIGHTS: Final = ("none", "importance_sampling", "gspo_importance_sampling", "advantage")
REGULARIZERS: Final = ("none", "k2", "forward-kl")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecLoss:
    """-A' I logprob + regularizer, where I says whether a token's ratio r is inside, and A' is the weighted advantage.

    I: none 1; two-side 1 - low ≤ r ≤ 1 + high; one-side only the bound that A moves to; gspo-one-side the same of s,
    e to the response's mean log r; ring two-side, or A ≥ 0 and r ≤ 1 - low', or A ≤ 0 and r ≥ 1 + high'.
    A': none A; importance_sampling A sg(r); gspo_importance_sampling A sg(s); advantage A e^(A / temp).
    Regularizer, of every token: none; k2 coef (logprob - old logprob)²; forward-kl -coef logprob.
    Source: Yao et al. 2025, Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm, arXiv 2509.24203.
    """

    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    epsilon_low_prime: float = 0.6
    epsilon_high_prime: float = 2.0
    clip_mode: str = "none"
    weight: str = "none"
    regularizer: str = "none"
    regularizer_coef: float = 0.0
    temp: float = 1.0

    needs_old_logprobs = True

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
        """Whole responses are clipped by gspo-one-side: then each counts the same."""
        return "seq-mean-token-mean" if self.clip_mode == "gspo-one-side" else None

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """The loss of the tokens inside, with the regularizer of all  # [N]"""
        log_ratio = tokens.log_ratio().detach()
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
        if self.weight == "importance_sampling":
            return advantages * ratio
        if self.weight == "gspo_importance_sampling":
            return advantages * of_response
        if self.weight == "advantage":
            return advantages * (advantages / self.temp).clamp(max=LOG_RATIO_LIMIT).exp()
        return advantages
