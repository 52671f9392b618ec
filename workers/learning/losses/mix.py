"""`mix` and `mix_chord`: PPO's loss of rollouts and the likelihood of an expert's rows, in one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses import arguments
from rftd.workers.learning.losses.policy_loss import LossTokens, PolicyLoss, TokenLoss
from rftd.workers.learning.losses.sft import SftLoss, SftPhiLoss, mode_of
from rftd.workers.learning.losses.token_ratios import PpoLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoLosses:
    """Base of `mix` and `mix_chord`: (1 - mu) L_rl + mu L_expert, each aggregated over its kind of rows in the
    batch.
    """

    clip_range: float = 0.2
    """Clip range of the ratio on both sides, unless a side has its own."""
    clip_range_low: float | None = None
    """Clip range below 1; None: `clip_range`."""
    clip_range_high: float | None = None
    """Clip range above 1; None: `clip_range`."""
    clip_ratio_c: float = 3.0
    """c of the dual clip: bound of the loss of a bad token, in multiples of -A."""
    sft_loss_agg_mode: str | None = None
    """Aggregation of the expert's rows; None: that of the other rows."""
    use_token_level_loss_in_sft: bool | None = None
    """`sft_loss_agg_mode` as a switch. True: token-mean; False: seq-mean-token-mean."""
    use_dynamic_bsz: object = None
    """No effect, like the five below: Trinity-RFT weights micro-batches by them; in rftd, micro-batches simply add
    up.
    """
    ppo_mini_batch_size: object = None
    """Accepted and ignored, as an argument of Trinity-RFT."""
    ppo_micro_batch_size_per_gpu: object = None
    """Accepted and ignored, as an argument of Trinity-RFT."""
    ngpus_trainer: object = None
    """Accepted and ignored, as an argument of Trinity-RFT."""
    train_batch_size_usual: object = None
    """Accepted and ignored, as an argument of Trinity-RFT."""
    train_batch_size_expert: object = None
    """Accepted and ignored, as an argument of Trinity-RFT."""

    usual: PpoLoss = field(init=False, repr=False)
    """Loss of the rollouts."""

    needs_old_logprobs = True
    """True: the loss needs the log-probabilities under the weights that drew the tokens."""

    def __post_init__(self) -> None:
        arguments.mode(self.sft_loss_agg_mode)
        switched = mode_of(self.use_token_level_loss_in_sft)
        if switched and self.sft_loss_agg_mode not in (None, switched):
            raise ConfigError(
                f"sft_loss_agg_mode is {self.sft_loss_agg_mode}, and use_token_level_loss_in_sft asks for {switched}",
                field="policy_loss_fn_args.sft_loss_agg_mode",
                fix="keep one of them",
            )
        usual = PpoLoss(
            clip_range=self.clip_range,
            clip_range_low=self.clip_range_low,
            clip_range_high=self.clip_range_high,
            clip_ratio_c=self.clip_ratio_c,
        )
        # The dataclass is frozen, and `usual` follows from the other fields: made once, so that its checks run here.
        object.__setattr__(self, "usual", usual)

    @property
    def expert_agg_mode(self) -> str | None:
        """Aggregation of the expert's rows, if set by either argument; None: that of the other rows."""
        return self.sft_loss_agg_mode or mode_of(self.use_token_level_loss_in_sft)

    def mixed(self, tokens: LossTokens, expert: PolicyLoss, mu: float) -> TokenLoss:
        """Returns (1 - mu) times PPO's loss at tokens of rollouts, mu times the loss `expert` at tokens of an expert's
        rows  # [N]
        """
        of_rollouts = self.usual.per_token(tokens)
        of_rows = expert.per_token(tokens)
        # Both losses are computed for all tokens: those of the wrong kind mean nothing, and are dropped here.
        loss = ((1 - mu) * of_rollouts.loss).where(~tokens.expert, mu * of_rows.loss)
        metrics = {
            f"usual/{name}": value.masked_fill(tokens.expert, 0.0) for name, value in of_rollouts.metrics.items()
        }
        metrics |= {f"expert/{name}": value.masked_fill(~tokens.expert, 0.0) for name, value in of_rows.metrics.items()}
        return TokenLoss(loss=loss, metrics=metrics, by_kind=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixLoss(TwoLosses):
    """The loss is (1 - mu) L_ppo(rollouts) + mu L_sft(expert's rows), each aggregated over its kind of rows in the
    batch.

    Source: Pan et al. 2025, Trinity-RFT, arXiv 2505.17826.
    """

    mu: float = 0.1
    """Weight of the expert's rows."""

    def __post_init__(self) -> None:
        TwoLosses.__post_init__(self)
        arguments.share(mu=self.mu)

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token: PPO's for rollouts, the likelihood's for an expert's rows  # [N]"""
        return self.mixed(tokens, SftLoss(), self.mu)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixChordLoss(TwoLosses):
    """The loss is that of `mix`, with L_sft_phi (L_sft if enable_phi_function is false), and a mu that depends on the
    stage's step.

    mu rises from 0 to mu_peak over mu_warmup_steps, falls as a cosine to mu_valley over mu_decay_steps, and then stays
    constant.

    Source: Zhang et al. 2025, CHORD, arXiv 2508.11408.
    """

    mu_warmup_steps: int = 0
    """Steps in which mu rises."""
    mu_decay_steps: int = 0
    """Steps in which mu falls."""
    mu_peak: float = 0.1
    """mu after the warm-up, before the decay."""
    mu_valley: float = 0.1
    """Final mu."""
    enable_phi_function: bool = True
    """True: rows of the expert have the loss `sft_phi`, otherwise `sft`."""

    def __post_init__(self) -> None:
        TwoLosses.__post_init__(self)
        arguments.at_least(0, mu_warmup_steps=self.mu_warmup_steps, mu_decay_steps=self.mu_decay_steps)
        arguments.share(mu_peak=self.mu_peak, mu_valley=self.mu_valley)

    def mu(self, stage_step: int) -> float:
        """Returns the weight of the expert's rows in the given step of the stage."""
        after = stage_step - self.mu_warmup_steps
        # Before any division: without a warm-up `after` is never below 0 here, so mu_warmup_steps is above 0.
        if after < 0:
            return self.mu_peak * stage_step / self.mu_warmup_steps
        if after >= self.mu_decay_steps:
            return self.mu_valley
        fall = (1 + math.cos(math.pi * after / self.mu_decay_steps)) / 2
        return self.mu_valley + (self.mu_peak - self.mu_valley) * fall

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Returns the loss of each token: PPO's for rollouts, the likelihood's for an expert's rows  # [N]"""
        mu = self.mu(tokens.stage_step)
        mixture = self.mixed(tokens, SftPhiLoss() if self.enable_phi_function else SftLoss(), mu)
        return TokenLoss(loss=mixture.loss, metrics=mixture.metrics, by_kind=True)
