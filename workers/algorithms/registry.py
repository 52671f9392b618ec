"""Every algorithm by name; importing this imports none of them, and never torch."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.definition import AlgorithmDefinition
from rftd.workers.plugins import Plugins

ALGORITHMS: Final = Plugins[AlgorithmDefinition](
    "algorithm type",
    group="rftd.algorithms",
    table={
        "grpo": "rftd.workers.algorithms.grpo:GRPO",
        "sft": "rftd.workers.algorithms.sft:SFT",
        "dpo": "rftd.workers.algorithms.dpo:DPO",
        "cpt": "rftd.workers.algorithms.cpt:CPT",
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
