"""RAFT: the likelihood of the best answers to each task."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

RAFT: Final = AlgorithmDefinition(
    name="raft",
    summary="Raises the log-likelihood of a group's best answers; others, and groups of equal rewards, count nothing.",
    source="Dong et al. 2023, RAFT, arXiv 2304.06767",
    when="A simple and stable beginning; it learns from successes alone.",
    repeat_times=2,
    advantage="best",
    policy_loss="sft",
    policy_loss_args={"weighted": True},
    needs=Needs(groups=True),
)
