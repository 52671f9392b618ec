"""`Demand`: what a stage needs of its engine beyond log-probabilities of tokens, and the argument that needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossNeeds
from rftd.workers.learning.token_advantages.token_advantage import PassField

Part: TypeAlias = Literal["entropies", "reference", "critic", "teacher", "temperatures", "adapter"]
"""A capability that an engine may lack, besides log-probabilities of the policy at temperature 1."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)
"""All capabilities of `Part`."""
_WORDS: Final[dict[Part, str]] = {
    "entropies": "the entropy at each token",
    "reference": "log-probabilities under a frozen reference",
    "critic": "a critic's values",
    "teacher": "log-probabilities under a teacher",
    "temperatures": "log-probabilities at the temperature that a token was drawn with",
    "adapter": "an adapter that learns beside a frozen model",
}
"""Capabilities in words."""
_CAPABILITY_BY_FIELD: Final[dict[PassField, Part]] = {
    "entropies": "entropies",
    "entropy_signals": "entropies",
    "squares": "entropies",
    "ref_logprobs": "reference",
    "values": "critic",
    "teacher_logprobs": "teacher",
}
"""Capability needed for each field of a pass."""


_OBJECTIVE_CAPABILITIES: Final[frozenset[Part]] = frozenset({"entropies", "reference", "critic", "teacher"})
"""Capabilities whose need follows from the objective."""


class Demand(NamedTuple):
    """One capability needed by a stage."""

    part: Part
    """Name of the capability."""
    field: tuple[str, ...]
    """Path, in the experiment file, of the argument that needs the capability."""
    by: str
    """The argument in words, for example `a KL loss of 0.1`."""
    fix: str
    """What to change if the engine lacks the capability."""

    @property
    def words(self) -> str:
        """The argument and the needed capability, as a clause."""
        return f"{self.by} needs {_WORDS[self.part]}"


def demands_of(stage: StageSpec, parts: Collection[Part] = PARTS) -> tuple[Demand, ...]:
    """Returns the capabilities needed by the stage, one for each capability and argument. Raises ConfigError as
    `Objective.of` does.

    `parts` limits the search; without a capability of objectives among them, the objective is not built, because a
    third party's losses may only be installed elsewhere.
    """
    of_objective = _of_objective(stage) if _OBJECTIVE_CAPABILITIES & set(parts) else ()
    return tuple(dict.fromkeys((*of_objective, *_of_rollouts(stage), *_of_model(stage))))


def _of_model(stage: StageSpec) -> Iterator[Demand]:
    """Yields the demands of the model: an adapter."""
    if stage.model.lora is not None:
        fix = "leave it out, or train with an engine that has it, such as torch"
        yield Demand("adapter", ("model", "lora_configs"), "a LoRA", fix)


def _of_rollouts(stage: StageSpec) -> Iterator[Demand]:
    """Greedy tokens carry log-probabilities at temperature 1, like a dataset's."""
    for temperature in {taskset.sampling.temperature: None for taskset in tasksets_of(stage)}:
        if temperature in (0, 1):
            continue
        by = f"a rollout at temperature {temperature:g}"
        fix = "write 1.0, or train with an engine that has it, such as torch"
        yield Demand("temperatures", ("model", "temperature"), by, fix)


def _of_objective(stage: StageSpec) -> Iterator[Demand]:
    """Yields the demands of the objective, each with the argument causing it."""
    spec = stage.algorithm
    objective = Objective.of(spec, stage.sources, runs=False)
    definition = lookup(spec.kind)
    without = "write 0.0, or train with an engine that has it, such as torch"
    if objective.entropy.coef != 0:
        by = f"an entropy bonus of {objective.entropy.coef:g}"
        yield Demand("entropies", _at("entropy_loss_fn_args", "entropy_coef"), by, without)
    if objective.kl.coef > 0:
        by = f"a KL loss of {objective.kl.coef:g}"
        yield Demand("reference", _at("kl_loss_fn_args", "kl_coef"), by, without)
    if objective.kl_penalty.coef > 0:
        by = f"a KL penalty of {objective.kl_penalty.coef:g}"
        yield Demand("reference", _at("kl_penalty_fn_args", "kl_coef"), by, without)
    fix = "choose another, or train with an engine that has it, such as torch"
    if objective.token_advantage is not None:
        # What the type brings along is changed by another type; what the file names, by its own field.
        own = spec.advantage == definition.advantage
        by = spec.kind if own else f"the advantage {spec.advantage}"
        for name in sorted(objective.token_advantage.needs & _CAPABILITY_BY_FIELD.keys()):
            yield Demand(_CAPABILITY_BY_FIELD[name], _at("algorithm_type" if own else "advantage_fn"), by, fix)
    needs = LossNeeds.of(objective.policy_loss)
    if needs.reference or needs.reference_kl:
        own = spec.policy_loss == definition.policy_loss
        by = spec.kind if own else f"the loss {spec.policy_loss}"
        yield Demand("reference", _at("algorithm_type" if own else "policy_loss_fn"), by, fix)


def _at(*names: str) -> tuple[str, ...]:
    """Returns the path of a field of `algorithm`."""
    return ("algorithm", *names)
