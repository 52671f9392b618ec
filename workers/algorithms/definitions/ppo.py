"""PPO: clipped policy loss, with a critic's generalised advantages."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

PPO: Final = AlgorithmDefinition(
    name="ppo",
    summary="Generalised advantages of a critic, whitened over the batch; PPO's clipped policy loss.",
    source="Schulman et al. 2017, arXiv 1707.06347; advantages: Schulman et al. 2016, arXiv 1506.02438",
    when="Rewards that come late in long answers, or one answer to a task: a critic tells good tokens from bad ones.",
    advantage="ppo",
    advantage_args={"gamma": 1.0, "lam": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(old_logprobs=True, reference=True, critic=True),
)
