"""`Parts`: checks that permissions and third-party plug-ins needed by a run are present, and waits for missing ones."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rftd.daemon.run.supervisor.task_columns import TaskColumns
from rftd.daemon.trust.allowances import Allowances
from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError
from rftd.streams.events.experiment import Grant
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.hold import NOT_ALLOWED, PART_MISSING, Obstacle
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy
from rftd.workers.control.selectors.registry import check_selector
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.training.extensions import check_extensions
from rftd.workers.workflows.runner import check_names

POLL_INTERVAL_S: Final = 2.0
"""Seconds between two searches for a missing plug-in, which may be installed meanwhile."""


class Parts:
    """Checks permissions and plug-ins at the start of a run, and again periodically while one is missing."""

    def __init__(self, clock: Clock, allowances: Allowances, *, starts: bool) -> None:
        """`starts` is True if this daemon starts the workers; plug-ins of workers on other machines are not checked."""
        self._clock = clock
        self._allowances = allowances
        self._starts = starts
        self.columns = TaskColumns()
        """Columns of tasksets with row-drawing selectors; complete for the current stage once nothing is missing."""
        self._missing: Obstacle | None = None
        """Obstacle found by the last check; None: nothing is missing."""
        self._look_at_s: float | None = 0.0
        """Monotonic time of the next check; None once nothing is missing."""

    async def missing(
        self, spec: ExperimentSpec, stage: int, recorded: Mapping[str, str], grants: Sequence[Grant] = ()
    ) -> Obstacle | None:
        """Returns an obstacle for the first withdrawn permission, or plug-in missing here, needed from `stage` on; None
        if complete.

        `recorded` maps plug-ins to their sources in the run's earlier environment; `grants` are the permissions given
        at submission. Raises DataError for unreadable columns of the stage.
        """
        if self._starts and self._look_at_s is not None and self._clock.monotonic_s() >= self._look_at_s:
            # Finished stages are not checked: a plug-in no longer needed may be uninstalled.
            remaining = msgspec.structs.replace(spec, stages=spec.stages[max(0, stage) :])
            # In a thread: importing a plug-in may take seconds, and torch with it.
            self._missing = await asyncio.to_thread(self._look, remaining, recorded, tuple(grants))
            self._look_at_s = None if self._missing is None else self._clock.monotonic_s() + POLL_INTERVAL_S
        if self._missing is None:
            await self.columns.read(spec, stage)
        return self._missing

    def _look(self, spec: ExperimentSpec, recorded: Mapping[str, str], grants: Sequence[Grant]) -> Obstacle | None:
        """Returns the obstacle of the first withdrawn grant or missing plug-in; None if complete. Blocks."""
        for grant in self._allowances.withdrawn(grants):
            return Obstacle(
                cause=NOT_ALLOWED,
                reason=f"the daemon's configuration no longer allows {grant.value!r}, which was granted",
                fix=f"allow it again in the daemon's configuration, under `{grant.kind}`, and restart the daemon",
            )
        return missing_part(spec, recorded)


def missing_part(spec: ExperimentSpec, recorded: Mapping[str, str]) -> Obstacle | None:
    """Returns an obstacle for the first plug-in not installed here or failing to import; None if all work. Blocks."""
    importlib.invalidate_caches()  # a part may have been installed since the last look of this process
    try:
        check_extensions(spec, recorded)
        for stage in spec.stages:
            rollout_engines.ENGINES.check(stage.rollout.engine)
            make_policy(stage.policy)
            make_priority(stage.policy.priority)
            for taskset in (*tasksets_of(stage), *stage.evals):
                check_names(taskset)
                check_selector(taskset.selector)
    except ConfigError as error:
        return Obstacle(cause=PART_MISSING, reason=error.what, fix=error.fix or "install it")
    return None
