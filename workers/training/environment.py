"""The environment of a training history: everything besides the log that can change the bits of the weights."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import msgspec

from rftd.ops.releases import release_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.training.extensions import extensions_of


def environment_of(engine: TrainerEngine, spec: ExperimentSpec) -> dict[str, str]:
    """Returns releases and settings by name: of the process, the open engine, and plug-ins used in training."""
    releases = {"rftd": release_of("rftd"), "python": platform.python_version(), "numpy": release_of("numpy")}
    return releases | engine.environment() | extensions_of(spec)


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A setting or release that differs from the recorded one."""

    generation: int
    """Newest generation recorded with the other setting."""
    name: str
    """Name of the setting or package."""
    recorded: str
    """Recorded value."""
    here: str
    """Value in the present environment."""

    def __str__(self) -> str:
        """Returns the difference as a clause of a message."""
        return f"{self.name} was {self.recorded}, here it is {self.here}"


def drift(generation: int, recorded: Mapping[str, str], present: Mapping[str, str]) -> tuple[Drift, ...]:
    """Returns the settings that differ from the `recorded` ones, sorted by name; empty if none were recorded.

    `generation` is the number of the recorded generation.
    """
    names = sorted(recorded.keys() | present.keys()) if recorded else ()
    pairs = [(name, recorded.get(name, "unknown"), present.get(name, "unknown")) for name in names]
    return tuple(
        Drift(generation=generation, name=name, recorded=before, here=now)
        for name, before, now in pairs
        if before != now
    )
