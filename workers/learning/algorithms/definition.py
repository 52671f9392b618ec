"""`AlgorithmDefinition`: an algorithm as names of registered parts, their arguments, and its needs."""

from __future__ import annotations

from typing import Any

import msgspec


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage must provide for an algorithm, besides a policy to train."""

    rollouts: bool = True
    """False for algorithms trained on dataset rows only: their stage has no explorer."""
    groups: bool = False
    """True: several rollouts of each task, closed together."""
    old_logprobs: bool = False
    """True: the log-probability of each token under the weights that drew it."""
    reference: bool = False
    """True: a frozen copy of the policy from the beginning of the stage, unless the KL coefficient is zero."""
    critic: bool = False
    """True: a critic of each token's expected return."""
    teacher: bool = False
    """True: a teacher model."""
    expert_data: bool = False
    """True: dataset rows in each batch, in addition to rollouts."""


class AlgorithmDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """An algorithm as data. Its arguments of a part are defaults: an experiment's arguments replace them as a unit."""

    name: str
    """Name in `algorithm_type`."""
    summary: str
    """What the algorithm does, in one sentence."""
    source: str
    """The publication that describes the algorithm."""
    when: str = ""
    """When to use the algorithm."""
    repeat_times: int = 1
    """Rollouts of one task, unless set by the experiment."""
    own_tries: bool = False
    """True: one rollout of a task suffices, because the workflow makes several attempts and returns what is to be
    learned.
    """
    advantage: str = "none"
    """Name of the advantage function."""
    advantage_args: dict[str, Any] = {}
    """Arguments of the advantage function."""
    policy_loss: str
    """Name of the policy loss."""
    policy_loss_args: dict[str, Any] = {}
    """Arguments of the policy loss."""
    kl_penalty: str = "none"
    """Name of the KL estimator subtracted from rewards or advantages."""
    kl_penalty_args: dict[str, Any] = {}
    """Arguments of the KL penalty."""
    kl_loss: str = "none"
    """Name of the KL estimator added to the loss."""
    kl_loss_args: dict[str, Any] = {}
    """Arguments of the KL loss."""
    entropy_loss: str = "none"
    """Name of the entropy bonus."""
    entropy_loss_args: dict[str, Any] = {}
    """Arguments of the entropy bonus."""
    loss_agg_mode: str = "token-mean"
    """Aggregation of token losses."""
    rows: str = "sft"
    """The kind of its dataset rows: `sft` one answer, `dpo` two answers, `kto` an answer with a label, `cpt` a text."""
    other_rows: tuple[str, ...] = ()
    """Further kinds of dataset rows, chosen by the experiment's `schema_type`."""
    sample_strategy: str = "default"
    """Composition of batches."""
    sample_strategy_args: dict[str, Any] = {}
    """Arguments of the sample strategy."""
    needs: Needs = Needs()
    """What a stage must provide."""
