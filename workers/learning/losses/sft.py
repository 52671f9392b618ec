"""`sft`, `sft_is` and `sft_phi`: the negative log-likelihood, plain or weighted by the token's probability."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LossTokens, TokenLoss


def mode_of(use_token_level_loss: bool | None) -> str | None:
    """Returns the aggregation for Trinity-RFT's switch `use_token_level_loss`: token-mean or seq-mean-token-mean; None
    if unset.
    """
    if use_token_level_loss is None:
        return None
    return "token-mean" if use_token_level_loss else "seq-mean-token-mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class SftLoss:
    """The loss is -logprob; with `weighted` -A logprob, so that an advantage function may choose among rollouts.

    Source: Ouyang et al. 2022, InstructGPT, arXiv 2203.02155.
    """

    use_token_level_loss: bool | None = None
    """True: loss_agg_mode is token-mean; False: seq-mean-token-mean."""
    weighted: bool = False
    """True: the loss is weighted by the advantage."""

    @property
    def loss_agg_mode(self) -> str | None:
        """The aggregation set by `use_token_level_loss`; None: the algorithm's."""
        return mode_of(self.use_token_level_loss)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the negative log-likelihood of each token, times its advantage if `weighted`  # [N]"""
        loss = -tokens.logprobs * tokens.advantages if self.weighted else -tokens.logprobs
        return TokenLoss(loss=loss, metrics={"sft_loss": loss.detach()})


@dataclass(frozen=True, kw_only=True, slots=True)
class SftIsLoss:
    """The loss is -sg(p) logprob: tokens unlikely under the policy have a smaller gradient.

    Source: Wu et al. 2025, On the Generalization of SFT (dynamic fine-tuning), arXiv 2508.05629.
    """

    use_token_level_loss: bool | None = None
    """Trinity-RFT's switch of the aggregation; None: not set."""

    @property
    def loss_agg_mode(self) -> str | None:
        """The aggregation set by `use_token_level_loss`; None: the algorithm's."""
        return mode_of(self.use_token_level_loss)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the negative log-likelihood of each token, weighted by its probability  # [N]"""
        # Detached: the weight p cancels the 1 / p in the gradient of log p, which is the method; with its gradient it
        # would not.
        loss = -tokens.logprobs * tokens.logprobs.detach().exp()
        return TokenLoss(loss=loss, metrics={"sft_is_loss": loss.detach()})


@dataclass(frozen=True, kw_only=True, slots=True)
class SftPhiLoss:
    """The loss is -sg(p (1 - p)) min(logprob, log cutoff_prob): neither unlikely nor nearly certain tokens have a large
    gradient.

    Source: Zhang et al. 2025, CHORD, arXiv 2508.11408.
    """

    use_token_level_loss: bool | None = None
    """Trinity-RFT's switch of the aggregation; None: not set."""
    cutoff_prob: float = 1.0
    """Probability above which the loss no longer falls."""

    def __post_init__(self) -> None:
        arguments.above(0, cutoff_prob=self.cutoff_prob)
        arguments.share(cutoff_prob=self.cutoff_prob)

    @property
    def loss_agg_mode(self) -> str | None:
        """The aggregation set by `use_token_level_loss`; None: the algorithm's."""
        return mode_of(self.use_token_level_loss)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the negative log-likelihood of each token, weighted by p (1 - p)  # [N]"""
        probability = tokens.logprobs.detach().exp()
        logprobs = tokens.logprobs
        if self.cutoff_prob < 1:
            # The clamp has no gradient above the cut-off: a token that is likely enough is left alone.
            logprobs = logprobs.clamp(max=math.log(self.cutoff_prob))
        loss = -logprobs * probability * (1 - probability)
        return TokenLoss(loss=loss, metrics={"sft_phi_loss": loss.detach()})
