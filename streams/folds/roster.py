"""`Roster`: the workers of an experiment: live ones by id, and departed ones."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.streams.events import worker
from rftd.streams.log.envelope import Decoded


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """A departed worker, with the error or reason of its end."""

    role: str
    """Role of the worker."""
    slot: int
    """Slot of the worker; negative for a trainer."""
    code: str = ""
    """The code of the error that ended the worker, if it reported one."""
    reason: str = ""
    """Reason of the end."""
    lost: bool = False
    """True if the supervisor recorded the end, and not the worker itself."""
    host: str = ""
    """Machine of the worker."""
    pid: int = -1
    """The worker's process; -1 if its start was never read."""


class Roster(msgspec.Struct):
    """Workers by id; a stopped or lost worker never comes back under the old id."""

    live: dict[UUID, worker.WorkerStarted] = {}
    """Live workers, by id."""
    gone: dict[UUID, Gone] = {}
    """Departed workers, by id."""
    last_of: dict[str, Gone] = {}
    """The worker that departed last, by role."""

    def apply(self, decoded: Decoded) -> None:
        """Folds worker.started, worker.stopped and worker.lost; events of a departed worker change nothing."""
        event = decoded.event
        match event:
            case worker.WorkerStarted():
                # A worker declared lost may only have been slow; its slot may be another worker's by now.
                if event.worker not in self.gone:
                    self.live[event.worker] = event
            case worker.WorkerStopped():
                # Reports of a worker declared lost before count for nothing: the slot may be another worker's.
                departure = Gone(role=event.role, slot=event.slot, code=event.code, reason=event.reason)
                self._record_departure(event.worker, departure)
            case worker.WorkerLost():
                self._record_departure(
                    event.worker, Gone(role=event.role, slot=event.slot, reason=event.reason, lost=True)
                )
            case _:
                pass

    def _record_departure(self, id: UUID, departure: Gone) -> None:
        """Moves a worker to the departed workers; of several departures of a worker, the first counts."""
        if (started := self.live.pop(id, None)) is not None:
            departure = msgspec.structs.replace(departure, host=started.host, pid=started.pid)
        if id in self.gone:
            return
        self.gone[id] = departure
        self.last_of[departure.role] = departure

    def explorers(self) -> list[worker.WorkerStarted]:
        """Returns the live explorers with a slot, by slot; explorers on several machines may share a slot."""
        slots = range(limits.WORKER_SLOTS)
        live = (started for started in self.live.values() if started.role == "explorer" and started.slot in slots)
        return sorted(live, key=lambda started: (started.slot, started.worker))
