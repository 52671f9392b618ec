"""Third-party plug-ins used in an experiment's training: their packages, and whether they are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.registry import ALGORITHMS
from rftd.workers.learning.corrections.registry import CORRECTIONS
from rftd.workers.learning.engine_registry import ENGINES
from rftd.workers.learning.losses.entropy_losses import ENTROPY_LOSSES
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.workflows.source import source_name

MISSING: Final = "not installed"
"""Origin of a plug-in that is not installed."""


def extensions_of(spec: ExperimentSpec) -> dict[str, str]:
    """Returns the package of each plug-in: `advantage function 'theirs'` -> `their-package 1.2 (their_module:Theirs)`.

    Imports no plug-in: packages are found by their entry points.
    """
    return {
        f"{plugins.kind} {name!r}": plugins.origin(name) or MISSING for plugins, name in _plugins_of_third_parties(spec)
    }


def check_extensions(spec: ExperimentSpec, recorded: Mapping[str, str]) -> None:
    """Raises ConfigError for a plug-in that is not installed; `recorded` maps plug-ins to packages at training time."""
    for extension, origin in extensions_of(spec).items():
        if origin == MISSING:
            former_origin = recorded.get(extension, MISSING)
            history = f"; it was {former_origin} where it was trained" if former_origin != MISSING else ""
            raise ConfigError(
                f"the {extension}, which this experiment trains with, is not installed here{history}",
                fix="install it in this environment, or put its folder on PYTHONPATH, with serve --pass-env PYTHONPATH",
            )


def _plugins_of_third_parties(spec: ExperimentSpec) -> Iterator[tuple[Plugins[Any], str]]:
    """Yields the kind and name of each third-party plug-in used in training."""
    for stage in spec.stages:
        algorithm = stage.algorithm
        parts: tuple[tuple[Plugins[Any], str], ...] = (
            (ALGORITHMS, algorithm.kind),
            (ADVANTAGES, algorithm.advantage),
            (POLICY_LOSSES, algorithm.policy_loss),
            (KL_LOSSES, algorithm.kl_loss),
            (KL_LOSSES, algorithm.kl_penalty),
            *((CORRECTIONS, correction.kind) for correction in algorithm.correction.parts),
            (ENTROPY_LOSSES, algorithm.entropy_loss),
            (ENGINES, stage.trainer.engine),
        )
        yield from (
            (plugins, name) for plugins, name in parts if not plugins.builtin(name) and source_name(name) is None
        )
