"""Every algorithm by name; importing this imports none of them, and never torch."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.definition import AlgorithmDefinition
from rftd.workers.plugins import Plugins

_HERE: Final = "rftd.workers.algorithms.definitions"

ALGORITHMS: Final = Plugins[AlgorithmDefinition](
    "algorithm type",
    group="rftd.algorithms",
    table={
        "grpo": f"{_HERE}.grpo:GRPO",
        "ppo": f"{_HERE}.ppo:PPO",
        "grpo_verl": f"{_HERE}.grpo_verl:GRPO_VERL",
        "dapo": f"{_HERE}.dapo:DAPO",
        "gspo": f"{_HERE}.gspo:GSPO",
        "cispo": f"{_HERE}.cispo:CISPO",
        "sapo": f"{_HERE}.sapo:SAPO",
        "reinforceplusplus": f"{_HERE}.reinforceplusplus:REINFORCEPLUSPLUS",
        "rloo": f"{_HERE}.rloo:RLOO",
        "opmd": f"{_HERE}.opmd:OPMD",
        "asymre": f"{_HERE}.asymre:ASYMRE",
        "topr": f"{_HERE}.topr:TOPR",
        "sppo": f"{_HERE}.sppo:SPPO",
        "rec": f"{_HERE}.rec:REC",
        "raft": f"{_HERE}.raft:RAFT",
        "multi_step_grpo": f"{_HERE}.multi_step_grpo:MULTI_STEP_GRPO",
        "gigpo": f"{_HERE}.gigpo:GIGPO",
        "m2po": f"{_HERE}.m2po:M2PO",
        "mix": f"{_HERE}.mix:MIX",
        "mix_chord": f"{_HERE}.mix_chord:MIX_CHORD",
        "on_policy_distill": f"{_HERE}.on_policy_distill:ON_POLICY_DISTILL",
        "jsd": f"{_HERE}.jsd:JSD",
        "sft": f"{_HERE}.sft:SFT",
        "cpt": f"{_HERE}.cpt:CPT",
        "dpo": f"{_HERE}.dpo:DPO",
    },
)


def lookup(name: str) -> AlgorithmDefinition:
    """The algorithm of that name. Raises ConfigError, with the nearest name, if there is none."""
    found = ALGORITHMS.load(name)
    if not isinstance(found, AlgorithmDefinition):
        raise ConfigError(
            f"entry point {name!r} of the group {ALGORITHMS.group!r} is a {type(found).__name__}",
            fix="let it name an rftd.workers.algorithms.definition.AlgorithmDefinition",
        )
    return found


def names() -> tuple[str, ...]:
    """Every name that `lookup` knows, ours first."""
    return ALGORITHMS.names()
