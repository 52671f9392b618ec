"""CPT: the likelihood of texts."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

CPT: Final = AlgorithmDefinition(
    name="cpt",
    summary="Continued pre-training: raises the log-likelihood of every token of the texts of a dataset.",
    source="Gururangan et al. 2020, Don't Stop Pretraining, arXiv 2004.10964",
    when="A language or a field that the base model has seen little of, before any fine-tuning.",
    policy_loss="sft",
    rows="cpt",
    needs=Needs(rollouts=False),
)
