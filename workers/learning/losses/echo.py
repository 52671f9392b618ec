"""`echo`: PPO's loss of the model's own tokens, and the likelihood of what its environment answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LossTokens, TokenLoss
from rftd.workers.learning.losses.token_ratios import PpoLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class EchoLoss:
    """The loss is L_ppo(own tokens) + alpha L_nll(observed tokens), each aggregated over its kind of tokens in the
    batch, from one forward pass.

    Observed tokens lie between the turns of a response, such as the output of a tool with the template around the
    output: masked, and with a log-probability of 0. The first prompt is not trained. Observations of failed rollouts
    teach as much as others, and advantages play no part there.

    Source: Shrivastava et al. 2026, ECHO, arXiv 2605.24517; without its filter of warnings.
    """

    alpha: float = 0.1
    """Weight of the likelihood: the paper's lambda."""
    clip_range: float = 0.2
    clip_range_low: float | None = None
    clip_range_high: float | None = None
    clip_ratio_c: float = 3.0
    observation_agg_mode: str = "token-mean"
    """Aggregation of the observed tokens."""

    own: PpoLoss = field(init=False, repr=False)

    needs_old_logprobs = True
    needs_observations = True

    def __post_init__(self) -> None:
        arguments.at_least(0, alpha=self.alpha)
        arguments.mode(self.observation_agg_mode)
        own = PpoLoss(
            clip_range=self.clip_range,
            clip_range_low=self.clip_range_low,
            clip_range_high=self.clip_range_high,
            clip_ratio_c=self.clip_ratio_c,
        )
        # The dataclass is frozen, and `own` follows from the other fields: made once, so that its checks run here.
        object.__setattr__(self, "own", own)

    @property
    def expert_agg_mode(self) -> str:
        """Aggregation of the observed tokens, which are of the expert's kind."""
        return self.observation_agg_mode

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns PPO's loss of the model's own tokens, and alpha times -logprob of the observed ones  # [N]"""
        own = self.own.per_token(tokens)
        surprise = -tokens.logprobs
        metrics = {name: figure.masked_fill(tokens.expert, 0.0) for name, figure in own.metrics.items()}
        metrics["observation_loss"] = surprise.detach().masked_fill(~tokens.expert, 0.0)
        return TokenLoss(loss=own.loss.where(~tokens.expert, self.alpha * surprise), metrics=metrics, by_kind=True)
