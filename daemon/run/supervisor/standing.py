"""`StandingReads`: reads of an experiment from the daemon's memory, without asking log or tables."""

from __future__ import annotations

import asyncio
from uuid import UUID

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.runs import Runs
from rftd.daemon.run.supervisor.trackers import cursors_of
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.run.why.workers import largest_use, opening_waits
from rftd.ops.errors import LogLossError
from rftd.streams.folds.spine import Spine
from rftd.streams.spec.engines import WorkerMemory
from rftd.workers.control.budgets import Spent, spent_of
from rftd.workers.tracking.cursor import Cursor


class StandingReads:
    """The reads of `Operations` answered from memory, without waiting for log or tables."""

    runs: Runs
    """The experiments under way."""
    _loss_check: LossCheck
    _registry: Registry

    def stopped(self, experiment: UUID) -> LogLossError | None:
        """See `Operations.stopped`."""
        return self._loss_check.refusal(experiment)

    def memory(self, experiment: UUID) -> list[WorkerMemory]:
        """See `Operations.memory`."""
        entry = self._registry.entries.get(experiment)
        return [] if entry is None else list(entry.spec.memory)

    async def trackers(self, experiment: UUID) -> dict[str, Cursor]:
        """See `Operations.trackers`."""
        entry = self._registry.entries.get(experiment)
        return {} if entry is None or not entry.spec.trackers else await asyncio.to_thread(cursors_of, entry)

    def spent(self, experiment: UUID) -> Spent | None:
        """See `Operations.spent`."""
        if (run := self.runs.of(experiment)) is not None:
            return spent_of(run.state)
        entry = self._registry.entries.get(experiment)
        if entry is None or not entry.has_limits:
            return None
        return Spent(entry.spec, entry.spine.spending, tokens=None)

    def used_bytes(self, experiment: UUID) -> dict[tuple[str, str], int]:
        """See `Operations.used_bytes`."""
        run = self.runs.of(experiment)
        return {} if run is None else largest_use(run.snapshot())

    def opening(self, experiment: UUID) -> list[Wait]:
        """See `Operations.opening`."""
        run = self.runs.of(experiment)
        return [] if run is None else list(opening_waits(run.snapshot()))

    def spine(self, experiment: UUID) -> Spine | None:
        """See `Operations.spine`."""
        run = self.runs.of(experiment)
        return None if run is None else run.state.spine
