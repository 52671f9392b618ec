"""`Parts`: whether what an experiment names of third parties is installed here, where its workers are started."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError
from rftd.streams.spec import ExperimentSpec
from rftd.workers.control.obstacle import PART_MISSING, Obstacle
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.rollout.workflows.runner import check_names
from rftd.workers.training.extensions import check_extensions

LOOK_S: Final = 2.0


class Parts:
    """Looks when a run is taken up, and again and again while something is missing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missing: Obstacle | None = None
        self._look_at_s: float | None = 0.0
        """None: everything was there."""

    async def missing(self, spec: ExperimentSpec, stage: int, recorded: Mapping[str, str]) -> Obstacle | None:
        """What the stages from `stage` on need and is not here; `recorded` says where it came from before."""
        if self._look_at_s is not None and self._clock.monotonic_s() >= self._look_at_s:
            rest = msgspec.structs.replace(spec, stages=spec.stages[max(0, stage) :])
            self._missing = await asyncio.to_thread(missing_part, rest, recorded)
            self._look_at_s = None if self._missing is None else self._clock.monotonic_s() + LOOK_S
        return self._missing


def missing_part(spec: ExperimentSpec, recorded: Mapping[str, str]) -> Obstacle | None:
    """The first part that is not installed here, or cannot be imported. Blocks."""
    importlib.invalidate_caches()  # it may have been installed since this process last looked
    try:
        check_extensions(spec, recorded)
        for stage in spec.stages:
            make_policy(stage.policy)
            make_priority(stage.policy.priority)
            for taskset in (stage.taskset, *stage.evals):
                if taskset is not None:
                    check_names(taskset)
    except ConfigError as error:
        return Obstacle(cause=PART_MISSING, reason=error.what, fix=error.fix or "install it")
    return None
