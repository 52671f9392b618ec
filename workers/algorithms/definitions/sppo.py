"""sPPO: the policy gradient of tokens whose ratio is near 1."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

SPPO: Final = AlgorithmDefinition(
    name="sppo",
    summary="Advantage = reward less the group's mean; -A log r of the tokens whose ratio is near 1.",
    source="Vaswani et al. 2021, arXiv 2108.05828, by token",
    when="As grpo, where a clip that also stops tokens on their way back is wanted.",
    repeat_times=2,
    advantage="opmd",
    policy_loss="sppo",
    policy_loss_args={"epsilon": 0.3},
    needs=Needs(groups=True, old_logprobs=True),
)
