"""`StandingReads`: reads of experiments answered from the daemon's memory, without waiting for log or tables."""

from __future__ import annotations

import asyncio
from uuid import UUID

from rftd.daemon.run.operations import TextOrigin
from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.runs import Runs
from rftd.daemon.run.supervisor.trackers import cursors_of
from rftd.daemon.run.why.pause import RELEASED_PAUSE, PauseState, pause_of
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.run.why.workers import largest_use, opening_waits
from rftd.ops.errors import LogLossError
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.engines import WorkerMemory
from rftd.workers.control.budgets import Spent, spent_of
from rftd.workers.devices.host import Host
from rftd.workers.hosts.executor import Executor
from rftd.workers.tracking.cursor import Cursor


class StandingReads:
    """The reads of `Operations` answered from memory, without waiting for log or tables."""

    runs: Runs
    """Experiments running on this daemon."""
    _loss_check: LossCheck
    """Detected losses, and the experiments stopped by them."""
    _registry: Registry
    """Folded life of every experiment."""
    _executor: Executor
    """Launcher of workers."""

    def stopped(self, experiment: UUID) -> LogLossError | None:
        """Returns the error of an experiment stopped by lost log records, with the operator's choices; None if not
        stopped. See `Operations.stopped`.
        """
        return self._loss_check.refusal(experiment)

    def memory(self, experiment: UUID) -> list[WorkerMemory]:
        """Returns the forecast of the workers' memory, computed when the experiment was accepted. See
        `Operations.memory`.
        """
        entry = self._registry.entries.get(experiment)
        return [] if entry is None else list(entry.spec.memory)

    async def trackers(self, experiment: UUID) -> dict[str, Cursor]:
        """Returns the cursors of the experiment's trackers by kind, as last written by the tracker processes. See
        `Operations.trackers`.
        """
        entry = self._registry.entries.get(experiment)
        return {} if entry is None or not entry.spec.trackers else await asyncio.to_thread(cursors_of, entry)

    def spent(self, experiment: UUID) -> Spent | None:
        """Returns the amounts spent of an experiment's budgets; None without budgets, or for an unknown experiment. See
        `Operations.spent`.
        """
        if (run := self.runs.of(experiment)) is not None:
            return spent_of(run.state)
        entry = self._registry.entries.get(experiment)
        if entry is None or not entry.has_limits:
            return None
        return Spent(entry.spec, entry.spine.spending, tokens=None)

    async def text_origin(self, experiment: UUID) -> TextOrigin | None:
        """Returns the specification and tokenizers of an experiment; None for an unknown experiment. See
        `Operations.text_origin`.
        """
        entry = self._registry.entries.get(experiment)
        return None if entry is None else TextOrigin.of(entry.spine)

    def host(self) -> Host:
        """Returns the machine or cluster of the workers started here. Blocks. See `Operations.host`."""
        return self._executor.host()

    def used_bytes(self, experiment: UUID) -> dict[tuple[str, str], int]:
        """Returns the resident memory in bytes of the largest live worker by (role, stage), from the last heartbeats.
        See `Operations.used_bytes`.
        """
        run = self.runs.of(experiment)
        return {} if run is None else largest_use(run.snapshot())

    def under_way(self, experiment: UUID) -> WorkUnderWay | None:
        """Returns the unfinished rollouts or held-out rows of an experiment running here, with the tokens sampled
        meanwhile; None without any. See `Operations.under_way`.
        """
        run = self.runs.of(experiment)
        return None if run is None else run.under_way()

    def pause_state(self, experiment: UUID) -> PauseState | None:
        """Returns how far the pause of an experiment has come: draining, quiet or released; None unless paused. See
        `Operations.pause_state`.
        """
        if (run := self.runs.of(experiment)) is not None:
            return pause_of(run.snapshot())
        entry = self._registry.entries.get(experiment)
        released = entry is not None and entry.status is Status.PAUSED and entry.spine.released
        return RELEASED_PAUSE if released else None

    def opening(self, experiment: UUID) -> list[Wait]:
        """Returns a wait for each started worker still preparing (for example loading its model), with activity and
        start time. See `Operations.opening`.
        """
        run = self.runs.of(experiment)
        return [] if run is None else list(opening_waits(run.snapshot()))

    def spine(self, experiment: UUID) -> Spine | None:
        """Returns the folded life of an experiment running on this daemon; None if no run of this daemon drives the
        experiment. See `Operations.spine`.
        """
        run = self.runs.of(experiment)
        return None if run is None else run.state.spine
