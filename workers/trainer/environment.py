"""The environment of a training history: what the bits of its weights may depend on beside the log."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from rftd.ops.releases import release_of
from rftd.workers.trainer.engine import TrainerEngine


def environment_of(engine: TrainerEngine) -> dict[str, str]:
    """Of this process and its engine, which is open."""
    here = {"rftd": release_of("rftd"), "python": platform.python_version(), "numpy": release_of("numpy")}
    return here | engine.environment()


def drift(recorded: Mapping[str, str], present: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What differs, by name: (recorded, present). Nothing, if nothing was recorded: earlier releases did not."""
    if not recorded:
        return {}
    names = sorted(recorded.keys() | present.keys())
    pairs = {name: (recorded.get(name, "-"), present.get(name, "-")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
