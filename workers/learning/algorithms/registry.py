"""The algorithms by name: those of the built-in catalogue and of third parties, imported at their first use."""

from __future__ import annotations

from typing import Final

from rftd.ops.plugins import Plugins
from rftd.workers.learning.algorithms.catalogue import off_policy, policy_gradients, supervised
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition


def _locations_of_builtins() -> dict[str, str]:
    """Returns the location of each built-in algorithm, `module:variable`, by name."""
    return {
        definition.name: f"{chapter.__name__}:{variable}"
        for chapter in (policy_gradients, off_policy, supervised)
        for variable, definition in vars(chapter).items()
        if isinstance(definition, AlgorithmDefinition)
    }


ALGORITHMS: Final = Plugins[AlgorithmDefinition](
    "algorithm type", group="rftd.algorithms", table=_locations_of_builtins()
)
"""Plug-ins of the kind "algorithm type": built-in ones, and entry points of the group `rftd.algorithms`."""


def lookup(name: str) -> AlgorithmDefinition:
    """Returns the algorithm of that name.

    Raises ConfigError for an unknown name, with the nearest one, and for a third party's entry point that is not an
    AlgorithmDefinition.
    """
    path = "rftd.workers.learning.algorithms.definition.AlgorithmDefinition"
    return ALGORITHMS.definition(name, AlgorithmDefinition, path)


def names() -> tuple[str, ...]:
    """Returns the names of all algorithms, built-in ones first."""
    return ALGORITHMS.names()
