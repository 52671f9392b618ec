"""DAPO: GRPO with a wider clip above, and no KL."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

DAPO: Final = AlgorithmDefinition(
    name="dapo",
    summary="GRPO with a clip that is wider above 1 than below, and no KL to a reference.",
    source="Yu et al. 2025, DAPO, arXiv 2503.14476",
    when="Long chains of thought, where grpo loses its entropy. advantage_fn_args.std_threshold: 0 leaves out groups "
    "with equal rewards, as the paper does; a reward for overlong answers is the task's.",
    repeat_times=16,
    advantage="grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range_low": 0.2, "clip_range_high": 0.28},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True),
)
