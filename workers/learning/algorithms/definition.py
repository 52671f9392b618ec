"""`AlgorithmDefinition`: an algorithm as names of registered parts, their arguments, and its needs."""

from __future__ import annotations

from typing import Any

import msgspec


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The things that a stage must provide for an algorithm, beyond a policy to train."""

    rollouts: bool = True
    """False for algorithms of dataset rows alone: their stage has no explorer."""
    groups: bool = False
    """Several rollouts of one task, closed together."""
    old_logprobs: bool = False
    """The log-probability of each token under the weights that drew it."""
    reference: bool = False
    """A frozen copy of the policy of the stage's beginning, if the KL coefficient is not zero."""
    critic: bool = False
    teacher: bool = False
    expert_data: bool = False
    """Rows of a dataset beside the rollouts."""


class AlgorithmDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """An algorithm. A part's arguments here are defaults: arguments of an experiment replace them as a whole."""

    name: str
    summary: str
    source: str
    """The publication that it comes from."""
    when: str = ""
    """The situation in which to use it."""
    repeat_times: int = 1
    """Rollouts of one task, unless the experiment says otherwise."""
    own_tries: bool = False
    """True: one rollout suffices where the workflow tries the task several times and returns what is to be learned."""
    advantage: str = "none"
    advantage_args: dict[str, Any] = {}
    policy_loss: str
    policy_loss_args: dict[str, Any] = {}
    kl_penalty: str = "none"
    kl_penalty_args: dict[str, Any] = {}
    kl_loss: str = "none"
    kl_loss_args: dict[str, Any] = {}
    entropy_loss: str = "none"
    entropy_loss_args: dict[str, Any] = {}
    loss_agg_mode: str = "token-mean"
    rows: str = "sft"
    """The kind of its dataset's rows: `sft` an answer, `dpo` two of them, `kto` one with a label, `cpt` a text."""
    other_rows: tuple[str, ...] = ()
    """The other kinds that rows may have, if the experiment says so with `schema_type`."""
    sample_strategy: str = "default"
    sample_strategy_args: dict[str, Any] = {}
    needs: Needs = Needs()
