"""Section `algorithm`: the objective."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rftd.daemon.config.schema.rollout_correction import RolloutCorrection
from rftd.daemon.config.schema.section import Args, Count, Section, Share, inert, section, word


class Optimizer(Section):
    """`algorithm.optimizer`; it reaches the actor only."""

    lr: Annotated[float, Field(ge=0, le=1)] = 1e-6
    lr_warmup_steps: Annotated[int, Field(ge=-1, le=10**9)] = -1
    """-1: the ratio counts."""
    lr_warmup_steps_ratio: Share = 0.0
    min_lr_ratio: Share = 0.01
    lr_scheduler_type: Annotated[Literal["constant", "cosine"], word()] = "constant"
    optimizer_type: Annotated[Literal["adam", "adamw", "sgd"], word()] = "adam"
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """rftd's own: Adam's, which is added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    decay_all: bool = False
    """rftd's own: decay norms, biases and whatever has one dimension too."""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0


class Algorithm(Section):
    """`algorithm`; a part that is not given is the default of the type."""

    algorithm_type: Annotated[str, word()] = "ppo"
    repeat_times: Count | None = None
    optimizer: Optimizer = section(Optimizer)
    sample_strategy: Annotated[str | None, word(warmup="default")] = None
    sample_strategy_args: Args | None = None
    advantage_fn: Annotated[str | None, word()] = None
    advantage_fn_args: Args | None = None
    kl_penalty_fn: Annotated[str | None, word()] = None
    kl_penalty_fn_args: Args | None = None
    kl_penalty_place: Annotated[Literal["after", "before"], word()] = "after"
    """rftd's own: `before` takes the penalty from rewards before a group's normalisation, as verl does."""
    policy_loss_fn: Annotated[str | None, word()] = None
    policy_loss_fn_args: Args | None = None
    kl_loss_fn: Annotated[str | None, word()] = None
    kl_loss_fn_args: Args | None = None
    entropy_loss_fn: Annotated[str | None, word()] = None
    entropy_loss_fn_args: Args | None = None
    loss_agg_mode: (
        Annotated[Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"], word()]
        | None
    ) = None
    loss_scale_factor: Annotated[float | None, Field(gt=0)] = None
    """The divisor of `seq-mean-token-sum-norm`."""
    enable_router_replay: bool = inert(False)
    bypass_old_logprobs: bool = True
    rollout_correction: RolloutCorrection | None = None
