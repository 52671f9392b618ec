"""The workers of an experiment: who joined, in which slot, and who left."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.streams.events import worker
from rftd.streams.log.codec import Decoded


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that left."""

    role: str
    slot: int
    code: str = ""
    """The code of the error that ended it, if it said so itself."""
    reason: str = ""
    lost: bool = False
    """True if somebody else noticed."""
    host: str = ""
    pid: int = -1
    """Its process; -1 if it was never seen to join."""


class Roster(msgspec.Struct):
    """Workers by id; one that stopped or was lost never comes back under the same id."""

    live: dict[UUID, worker.WorkerStarted] = {}
    gone: dict[UUID, Gone] = {}
    last_of: dict[str, Gone] = {}
    """The worker that left last, by role."""

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the workers stream."""
        event = decoded.event
        match event:
            case worker.WorkerStarted():
                # A worker that was declared lost may have been slow only; its slot may be somebody else's by now.
                if event.worker not in self.gone:
                    self.live[event.worker] = event
            case worker.WorkerStopped():
                # What one says that was declared lost before counts for nothing: its place is somebody else's.
                said = Gone(role=event.role, slot=event.slot, code=event.code, reason=event.reason)
                self._leave(event.worker, said)
            case worker.WorkerLost():
                self._leave(event.worker, Gone(role=event.role, slot=event.slot, reason=event.reason, lost=True))
            case _:
                pass

    def _leave(self, id: UUID, gone: Gone) -> None:
        if (started := self.live.pop(id, None)) is not None:
            gone = msgspec.structs.replace(gone, host=started.host, pid=started.pid)
        if id in self.gone:
            return
        self.gone[id] = gone
        self.last_of[gone.role] = gone

    def explorers(self) -> list[worker.WorkerStarted]:
        """Live explorers by slot, which those of other machines may share; in a slot that is none they get no work."""
        slots = range(limits.WORKER_SLOTS)
        live = (started for started in self.live.values() if started.role == "explorer" and started.slot in slots)
        return sorted(live, key=lambda started: (started.slot, started.worker))
