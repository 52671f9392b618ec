"""Third parties' parts that an experiment trains with: where they come from, and whether they are here."""

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

MISSING: Final = "not installed"


def extensions_of(spec: ExperimentSpec) -> dict[str, str]:
    """The origin of each third party's part: `advantage function 'theirs'` -> `their-package 1.2
    (their_module:Theirs)`.

    Imports none of them.
    """
    return {f"{plugins.kind} {name!r}": plugins.origin(name) or MISSING for plugins, name in _named(spec)}


def check_extensions(spec: ExperimentSpec, recorded: Mapping[str, str]) -> None:
    """Raises ConfigError for a part that is not installed here; `recorded` says where it once came from."""
    for part, origin in extensions_of(spec).items():
        if origin == MISSING:
            known = recorded.get(part, MISSING)
            was = f"; it was {known} where it was trained" if known != MISSING else ""
            raise ConfigError(
                f"the {part}, which this experiment trains with, is not installed here{was}",
                fix="install it in this environment, or put its folder on PYTHONPATH, with serve --pass-env PYTHONPATH",
            )


def _named(spec: ExperimentSpec) -> Iterator[tuple[Plugins[Any], str]]:
    for stage in spec.stages:
        algorithm = stage.algorithm
        named: tuple[tuple[Plugins[Any], str], ...] = (
            (ALGORITHMS, algorithm.kind),
            (ADVANTAGES, algorithm.advantage),
            (POLICY_LOSSES, algorithm.policy_loss),
            (KL_LOSSES, algorithm.kl_loss),
            (KL_LOSSES, algorithm.kl_penalty),
            *((CORRECTIONS, part.kind) for part in algorithm.correction.parts),
            (ENTROPY_LOSSES, algorithm.entropy_loss),
            (ENGINES, stage.trainer.engine),
        )
        yield from ((plugins, name) for plugins, name in named if not plugins.builtin(name))
