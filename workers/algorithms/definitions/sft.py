"""SFT: the likelihood of given responses."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

SFT: Final = AlgorithmDefinition(
    name="sft",
    summary="Supervised fine-tuning: raises the log-likelihood of the responses of a dataset.",
    source="Ouyang et al. 2022, InstructGPT, arXiv 2203.02155",
    when="Before reinforcement: a form or a skill of which there are examples.",
    policy_loss="sft",
    needs=Needs(rollouts=False),
)
