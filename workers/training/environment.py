"""The environment of a training history: what the bits of its weights may depend on beside the log."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import msgspec

from rftd.ops.releases import release_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.training.extensions import extensions_of


def environment_of(engine: TrainerEngine, spec: ExperimentSpec) -> dict[str, str]:
    """The environment of this process, its open engine, and the third parties' parts that the experiment trains
    with."""
    here = {"rftd": release_of("rftd"), "python": platform.python_version(), "numpy": release_of("numpy")}
    return here | engine.environment() | extensions_of(spec)


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A thing of the environment that is not as it was recorded."""

    generation: int
    """The newest that recorded it so."""
    name: str
    recorded: str
    here: str

    def __str__(self) -> str:
        return f"{self.name} was {self.recorded}, here it is {self.here}"


def drift(generation: int, recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[Drift, ...]:
    """The differences, by name; empty if nothing was recorded."""
    names = sorted(recorded.keys() | here.keys()) if recorded else ()
    pairs = [(name, recorded.get(name, "unknown"), here.get(name, "unknown")) for name in names]
    return tuple(
        Drift(generation=generation, name=name, recorded=before, here=now)
        for name, before, now in pairs
        if before != now
    )
