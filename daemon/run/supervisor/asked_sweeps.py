"""`AskedSweeps`: the commands of `Operations` about sweeps, carried out for one asker."""

from __future__ import annotations

from uuid import UUID

from rftd.daemon.run.operations import Done, StandingSweep, SweepTaken, WantedSweep
from rftd.daemon.run.supervisor.sweeping import SweepDriver
from rftd.daemon.trust.asker import Asker


class AskedSweeps:
    """The part of `Operations` that is about sweeps."""

    _asker: Asker
    _sweeping: SweepDriver

    async def sweep(self, wanted: WantedSweep, *, request_id: UUID) -> SweepTaken:
        """See `Operations.sweep`."""
        self._check_decides()
        return await self._sweeping.submit(wanted, request_id, asker=self._asker)

    async def sweeps(self) -> list[StandingSweep]:
        """See `Operations.sweeps`."""
        return await self._sweeping.standing()

    async def sweep_named(self, wanted: str) -> StandingSweep:
        """See `Operations.sweep_named`."""
        return await self._sweeping.named(wanted)

    async def cancel_sweep(self, sweep: UUID, *, reason: str, request_id: UUID) -> Done:
        """See `Operations.cancel_sweep`."""
        self._check_decides()
        return await self._sweeping.cancel(sweep, reason, request_id, asker=self._asker)

    def _check_decides(self) -> None:
        raise NotImplementedError
