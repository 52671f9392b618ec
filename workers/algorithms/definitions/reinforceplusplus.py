"""REINFORCE++: PPO's loss without a critic, with advantages that are whitened over the batch."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

REINFORCEPLUSPLUS: Final = AlgorithmDefinition(
    name="reinforceplusplus",
    summary="The reward, discounted to each token and whitened over the batch; PPO's clipped policy loss; no critic.",
    source="Hu 2025, REINFORCE++, arXiv 2501.03262",
    when="One answer to a task, or tasks of very unlike difficulty: the batch is the baseline, not the group.",
    repeat_times=2,
    advantage="reinforceplusplus",
    advantage_args={"gamma": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(old_logprobs=True, reference=True),
)
