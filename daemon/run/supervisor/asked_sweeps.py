"""`AskedSweeps`: the commands of `Operations` concerning sweeps, carried out for one asker."""

from __future__ import annotations

from uuid import UUID

from rftd.daemon.run.operations import Done, StandingSweep, SweepTaken, WantedSweep
from rftd.daemon.run.supervisor.foresight import cancelled_sweep, new_sweep
from rftd.daemon.run.supervisor.rehearsals import Rehearsals
from rftd.daemon.run.supervisor.sweeping import SweepDriver
from rftd.daemon.trust.asker import Asker


class AskedSweeps(Rehearsals):
    """The sweep commands of `Operations`, for one asker, passed on to the daemon's SweepDriver."""

    _asker: Asker
    """The person or program whose rights are checked."""
    _sweeping: SweepDriver
    """The daemon's driver of all sweeps."""

    async def sweep(self, request: WantedSweep, *, request_id: UUID) -> SweepTaken:
        """Submits a sweep: every run is checked as by `submit`, and none begins if one is refused. See
        `Operations.sweep`.
        """
        self._check_decides()
        if self._rehearses:
            line = self._current_line()
            event = await self._sweeping.checked(request, self._asker)
            self._end_rehearsal(new_sweep(event, line.entries, line.slots))
        return await self._sweeping.submit(request, request_id, asker=self._asker)

    async def sweeps(self) -> list[StandingSweep]:
        """Returns every sweep ever submitted, in the order of the log. See `Operations.sweeps`."""
        return await self._sweeping.standing()

    async def sweep_named(self, name_or_id: str) -> StandingSweep:
        """Returns the sweep with this name or id. See `Operations.sweep_named`."""
        return await self._sweeping.named(name_or_id)

    async def cancel_sweep(self, sweep: UUID, *, reason: str, request_id: UUID) -> Done:
        """Cancels a sweep and its runs before their end. See `Operations.cancel_sweep`."""
        self._check_decides()
        if self._rehearses:
            self._end_rehearsal(cancelled_sweep(await self._sweeping.unfinished(sweep, self._asker)))
        return await self._sweeping.cancel(sweep, reason, request_id, asker=self._asker)

    def _check_decides(self) -> None:
        """Raises ConflictError if this daemon decides about no experiment; implemented by AskedCommands."""
        raise NotImplementedError
